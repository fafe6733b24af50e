"""Publishes large results while the next job runs.

To check a result of 4 MB and to write it into a new file takes 2 ms or more, to copy it less than
half of one. So a result that the kernel still refers to, and may change, is copied; another is
taken as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ..parcel.sheets import JobEnd
from ..system.background import Background

# Larger results are published before the next job begins: a copy would take too much memory.
MOST_BYTES = 64 << 20


def _own_references() -> int:
    """What refers to a result that only its JobEnd and a variable here have; Pythons differ."""
    done = JobEnd(object())
    value = done.value
    return sys.getrefcount(value)


_OWN_REFERENCES = _own_references()


class BackgroundPublisher:
    """A thread that publishes the results of one worker, one parcel after another."""

    def __init__(self, own: Callable[[Any], Any]) -> None:
        """`own` copies a value, or raises if it does not know how."""
        self._own = own
        self._thread = Background(1, "postroom publish")
        self._publishing: Future[bool] | None = None

    def owned(self, done: Sequence[JobEnd]) -> list[JobEnd] | None:
        """The same results, which no kernel can change any more; None: publish them now."""
        if sum(one.nbytes for one in done) > MOST_BYTES:
            return None
        try:
            return [self._owned(one) for one in done]
        except Exception:  # it cannot be copied
            return None

    def _owned(self, done: JobEnd) -> JobEnd:
        value = done.value
        if value is None:
            return done
        import numpy as np  # here, since a session that has only commands does without it

        alone = type(value) is np.ndarray and value.flags.owndata
        if alone and sys.getrefcount(value) <= _OWN_REFERENCES:
            return done
        return done._replace(value=self._own(value))

    def begin(self, publish: Callable[[], bool]) -> None:
        """Have something published; it must be waited for before the next."""
        assert self._publishing is None
        self._publishing = self._thread.begin(publish)

    def later(self, work: Callable[[], None]) -> None:
        """Have something done that nobody waits for."""
        self._thread.begin(work)

    def wait(self) -> bool:
        """Wait for what is being published: whether it is. Its error is raised here."""
        publishing, self._publishing = self._publishing, None
        return publishing is None or publishing.result()

    def close(self) -> None:
        """End the thread."""
        self._thread.close()
