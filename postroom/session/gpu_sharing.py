"""The hall: how a job has its card to itself although several sessions share it (`--gpus 0,0`).

    ordinary   gate, hall (shared), leave the gate ... jobs ... leave the hall
    exclusive  gate, hall (alone)                  ... a job ... leave the hall, leave the gate

Both are kernel locks, so a dead worker is out at once. Who waits for the hall to empty stands in
the gate, and nobody enters past it: an exclusive job is not starved. An ordinary session stays in
the hall from job to job, and looks at the gate only every few tens of milliseconds: a session that
has its card to itself anyway pays next to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from ..store.base import Base
from ..store.files import LocalLock

STAY_S = 0.03


class GpuSharing:
    """One worker's place among those that share its card."""

    def __init__(self, base: Base, gpu: str) -> None:
        self._gate = _open(base.card_lock(gpu, "gate"))
        self._sharing = _open(base.card_lock(gpu, "hall"))
        self._leave_at = 0.0
        self.inside = False

    def enter(self) -> None:
        """Be in the hall with others; waits while a job has the card alone, or is about to."""
        if self.inside and time.monotonic() < self._leave_at:
            return
        self.leave()
        fcntl.flock(self._gate.fd, fcntl.LOCK_EX)
        fcntl.flock(self._sharing.fd, fcntl.LOCK_SH)
        fcntl.flock(self._gate.fd, fcntl.LOCK_UN)
        self.inside = True
        self._leave_at = time.monotonic() + STAY_S

    def leave(self) -> None:
        """Make room; to be called before a rest, too."""
        if self.inside:
            fcntl.flock(self._sharing.fd, fcntl.LOCK_UN)
            self.inside = False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the card alone while the block runs; waits until the others have left."""
        self.leave()
        fcntl.flock(self._gate.fd, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._sharing.fd, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(self._sharing.fd, fcntl.LOCK_UN)
            fcntl.flock(self._gate.fd, fcntl.LOCK_UN)


def _open(path: str) -> LocalLock:
    # As a LocalLock, a child that a kernel forks drops it, and cannot keep the card from others.
    return LocalLock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
