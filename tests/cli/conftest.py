"""The queue's fixtures: a base of its own for each test, and a View of it."""

from __future__ import annotations

from tests.queue.conftest import base, view

__all__ = ["base", "view"]
