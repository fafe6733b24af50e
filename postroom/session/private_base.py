"""A base that one process has for itself: removed when that process is gone, and its agents, too.

The process removes it when it shuts down. If it was killed, its last agent does.
"""

from __future__ import annotations

import contextlib

from ..errors import PostroomError
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.snapshot import DEAD, snapshot


def remove_private(base: Base) -> None:
    """Remove a base whose owner is gone, unless an agent lives there: the last one removes it."""
    with contextlib.suppress(OSError, PostroomError):
        if all(agent.state in DEAD for agent in snapshot(base, runs=False).agents):
            LocalFiles().remove_tree(base.root)
