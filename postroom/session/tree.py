"""The trees of a session's processes: see `postroom.tree`."""

from __future__ import annotations

from ..tree import MARK, adopt_orphans, below, die_with_parent, mark_of, marked, reap, sweep

__all__ = [
    "MARK",
    "adopt_orphans",
    "below",
    "die_with_parent",
    "mark_of",
    "marked",
    "reap",
    "sweep",
]
