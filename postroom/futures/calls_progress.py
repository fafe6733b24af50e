"""How far many calls are, as a line: done, running, failed, and what their keeper adds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from ..text.progress_bar import ProgressBar

FIRST_S = 1.0  # what is done sooner needs no line
LINES_S = 30.0  # between two lines of a log
LOOK_S = 0.5  # how often the keeper is asked


class Calls(Protocol):
    """What it asks a FuturePool. Those since nothing was pending are counted."""

    @property
    def n_done(self) -> int: ...

    @property
    def n_failed(self) -> int: ...

    @property
    def n_pending(self) -> int: ...

    @property
    def n_running(self) -> int: ...


class CallsProgress:
    """Shows how far the calls of a pool are, while there are several and they take a while."""

    def __init__(self, words: Callable[[], str] | None = None) -> None:
        """`words` says more, such as which GPUs are idle; it is asked twice a second."""
        self._words = words
        self._said, self._ask_at = "", 0.0
        self._bar: ProgressBar | None = None

    def __call__(self, calls: Calls) -> None:
        total = calls.n_done + calls.n_pending
        if not calls.n_pending:
            if self._bar is not None:
                self._bar.end(calls.n_done, total, self._line(calls, total, ""))
                self._bar = None
        elif total > 1 and not os.environ.get("POSTROOM_QUIET"):
            if self._bar is None:
                self._bar = ProgressBar(after_s=FIRST_S, lines_s=LINES_S)
            if self._bar.is_due():
                self._bar.update(calls.n_done, total, self._line(calls, total, self._more()))

    def _line(self, calls: Calls, total: int, more: str) -> str:
        failed = f", {calls.n_failed} failed" if calls.n_failed else ""
        running = f", {calls.n_running} running" if calls.n_pending else ""
        return f"{calls.n_done}/{total} done{running}{failed}{', ' if more else ''}{more}"

    def _more(self) -> str:
        now = time.monotonic()
        if self._words is not None and now >= self._ask_at:
            self._ask_at = now + LOOK_S
            self._said = self._words()
        return self._said
