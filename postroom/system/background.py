"""Threads that work behind the one that asks; where none can start, the work is done at once.

concurrent.futures.ThreadPoolExecutor has queued the work already when it finds that it can start no
thread: a caller that then did the work itself might do it twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Threads that start with the first work, and take it in the order in which it comes."""

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Have something done; its result, or its error, is in the future."""
        future: Future[T] = Future()
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            try:
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # no more threads can be started
                pass
        if self._threads:
            self._asked.put((future, work))
        else:
            _do(future, work)
        return future

    def close(self) -> None:
        """Wait for what was begun, and end the threads."""
        for _ in self._threads:
            self._asked.put(None)
        while self._threads:
            self._threads.pop().join()

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            _do(*asked)
            del asked  # while it waits, it keeps nothing


def _do(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
        del future, work  # the error refers to what this frame has
