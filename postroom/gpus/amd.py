"""AMD cards."""

from __future__ import annotations

from .inventory import Card


def cards() -> list[Card]:
    """List the AMD cards."""
    return []
