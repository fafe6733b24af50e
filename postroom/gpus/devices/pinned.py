"""A bounded buffer of pinned memory, for the one parcel that is read ahead.

From pinned memory a card reads about twice as fast, and without help of the CPU. But pinning takes
long, and torch keeps what was pinned for good, in powers of two. So arguments are copied to a card
as they are, and only the prefetch, which has time while a job runs, copies the next ones here
first. The copy to the card then runs at full speed, with no second copy in the job's own time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

LIMIT_BYTES = 128 << 20  # of one half; torch may keep smaller ones that came before: 512 MiB in all
_LEAST_BYTES = 1 << 20


class PinnedBuffer:
    """Pinned memory of one process, in two halves: the running job's, and the next one's."""

    def __init__(self, pin: Callable[[int], Any]) -> None:
        """`pin` returns that many bytes as a numpy array; None where nothing can be pinned."""
        self._halves = [_Half(pin), _Half(pin)]

    def copy(self, data: Any) -> memoryview | None:
        """A read-only copy of some bytes; None: they are too many, or both halves are in use.

        A half is free again when the last view of the copy is dropped.
        """
        if len(data) > LIMIT_BYTES:
            return None
        free = [half for half in self._halves if not half.lent]
        free.sort(key=lambda half: half.size < len(data))  # first one that need not grow
        return free[0].copy(data) if free else None


class _Half:
    def __init__(self, pin: Callable[[int], Any]) -> None:
        self._pin = pin
        self._memory: Any = None
        self.lent = False

    @property
    def size(self) -> int:
        return 0 if self._memory is None else len(self._memory)

    def copy(self, data: Any) -> memoryview | None:
        size = len(data)
        if self.size < size:
            self._memory = None  # first: two of them would be more than the limit
            self._memory = self._pin(max(_LEAST_BYTES, 1 << (size - 1).bit_length()))
            if self._memory is None:
                return None
        import numpy as np

        # Numpy copies without the interpreter's lock: the running job goes on.
        self._memory[:size] = np.frombuffer(data, np.uint8)
        # All views refer to this object, however they were made; numpy and memoryview would refer
        # to the memory itself, and not say when they are done with it.
        lent: Any = (ctypes.c_char * size).from_buffer(self._memory)
        self.lent = True
        weakref.finalize(lent, self._take_back).atexit = False
        copied: Any = np.frombuffer(lent, np.uint8)
        return memoryview(copied).toreadonly()

    def _take_back(self) -> None:
        self.lent = False
