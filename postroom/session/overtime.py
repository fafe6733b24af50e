"""Notices a job that takes long while it runs, so that the rest of its letter goes to others.

A letter may hold many short jobs. If one of them turns out to be long, no other should wait behind
it while an agent is idle; and a job that waits for what a later one does would wait for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

# A job that has run for so long, and at most twice as long, is late.
LATE_S = 0.02


_T = TypeVar("_T")


class Overtime:
    """Calls a function from a thread of its own while a job is late; never after the job's end."""

    def __init__(self, late: Callable[[], None]) -> None:
        self._late = late
        self._lock = threading.Lock()  # held while the function is called
        self._count = 0  # of beginnings and ends: while it is odd, a job runs
        self._awake = threading.Event()
        self._started = False

    def begin(self) -> None:
        """A job begins that has others behind it."""
        self._count += 1
        if not self._awake.is_set():
            if not self._started:
                self._started = True
                threading.Thread(target=self._watch, name="postroom overtime", daemon=True).start()
            self._awake.set()

    def end(self) -> None:
        """The job has ended; if the function is being called, this waits for it."""
        with self._lock:
            self._count += 1

    def next(self, add: Callable[[_T], None], done: _T) -> None:
        """One job has ended, which is noted, and the next begins."""
        with self._lock:
            add(done)
            self._count += 2

    def _watch(self) -> None:
        told = -1
        while True:
            self._awake.wait()
            seen = self._count
            time.sleep(LATE_S)
            with self._lock:
                if self._count != seen:
                    continue  # jobs begin and end
                if seen % 2 and seen != told:
                    told = seen
                    self._late()
                elif seen % 2 == 0:
                    self._awake.clear()
