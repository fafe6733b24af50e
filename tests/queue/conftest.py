"""A base of its own for each test, and a View of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.queue.queue_view import QueueView
from postroom.store.base import Base, create_base


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


@pytest.fixture
def view(base: Base) -> Iterator[QueueView]:
    with QueueView(base) as opened:
        yield opened
