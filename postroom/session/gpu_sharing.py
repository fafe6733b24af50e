"""File locks: a job can have its GPU alone while several sessions use it (`--gpus 0,0`).

    ordinary job    lock the gate; lock the GPU, shared; unlock the gate; run jobs; unlock the GPU
    exclusive job   lock the gate; lock the GPU, alone; run the job; unlock both

A dead worker loses its locks at once. An exclusive job that waits for the GPU holds the gate, and
nobody gets past it, so it is not starved. An ordinary session keeps the GPU's lock from job to job,
and returns to the gate only every STAY_S, so that a session that is alone on its GPU pays almost
nothing. Before it lets another one in, it gives back the memory that it has cached on the GPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from ..store.base import Base
from ..store.files import LocalLock

STAY_S = 0.03


class GpuSharing:
    """One worker's locks on the GPU that it shares with others."""

    def __init__(
        self, base: Base, gpu: str, *, give_back: Callable[[], None] = lambda: None
    ) -> None:
        """`give_back` is called before somebody who waits gets the GPU."""
        self._give_back = give_back
        self._gate = _open(base.card_lock(gpu, "gate"))
        self._use = _open(base.card_lock(gpu, "use"))
        self._members = _open(base.card_lock(gpu, "members"))  # every worker of the GPU, always
        fcntl.flock(self._members.fd, fcntl.LOCK_SH)
        self._leave_at = 0.0
        self.inside = False

    def enter(self) -> None:
        """Use the GPU beside others; waits while a job has it alone, or waits for that."""
        if self.inside and time.monotonic() < self._leave_at:
            return
        if self.inside and self._somebody_waits():
            self._give_back()
        self.leave()
        fcntl.flock(self._gate.fd, fcntl.LOCK_EX)
        fcntl.flock(self._use.fd, fcntl.LOCK_SH)
        fcntl.flock(self._gate.fd, fcntl.LOCK_UN)
        self.inside = True
        self._leave_at = time.monotonic() + STAY_S

    def _somebody_waits(self) -> bool:
        """Whether a job waits to have the GPU alone: it holds the gate meanwhile."""
        try:
            fcntl.flock(self._gate.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._gate.fd, fcntl.LOCK_UN)
        return False

    def leave_idle(self) -> None:
        """Stop using the GPU since no job comes; others may need the memory at any time."""
        if self._has_neighbours():
            self._give_back()
        self.leave()

    def _has_neighbours(self) -> bool:
        try:
            fcntl.flock(self._members.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            fcntl.flock(self._members.fd, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Stop using the GPU; to be called before a wait, too."""
        if self.inside:
            fcntl.flock(self._use.fd, fcntl.LOCK_UN)
            self.inside = False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the GPU alone while the block runs; waits until the others have left."""
        self.leave()
        fcntl.flock(self._gate.fd, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._use.fd, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(self._use.fd, fcntl.LOCK_UN)
            fcntl.flock(self._gate.fd, fcntl.LOCK_UN)


def _open(path: str) -> LocalLock:
    # As a LocalLock it is dropped by processes that tasks fork, which must not block the GPU.
    return LocalLock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
