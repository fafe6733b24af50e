"""The results of many futures in their order, with a bounded number under way."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")


def results_in_order(
    submitted: Iterator[Future[R]], buffersize: int | None, deadline: float | None
) -> Iterator[R]:
    """The results in order; the first `buffersize` are submitted now, not when they are asked."""
    waiting = deque(itertools.islice(submitted, buffersize))

    def results() -> Iterator[R]:
        try:
            while waiting:
                if buffersize is not None:
                    waiting.extend(itertools.islice(submitted, 1))
                left = None if deadline is None else deadline - time.monotonic()
                yield _taken(waiting.popleft(), left)
        finally:
            for future in waiting:
                future.cancel()

    return results()


def _taken(future: Future[R], timeout: float | None) -> R:
    """The result; the caller keeps no reference to the future."""
    try:
        try:
            return future.result(timeout)
        finally:
            future.cancel()
    finally:
        del future
