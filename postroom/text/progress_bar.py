"""A line that says how far some work is: it moves on a terminal and in a notebook.

Elsewhere, in a log, a line is printed now and then. One bar is shown at a time: while one is,
others of the same process stay silent.
"""

from __future__ import annotations

import html
import os
import shutil
import sys
import threading
import time
from typing import Any

from .safe_text import printable
from .table import cut

TERMINAL_S = 0.1  # a person cannot read faster
LINES_S = 5.0  # a log should not fill up
WIDTH = 24

_turn = threading.Lock()  # held by the bar that is shown


class ProgressBar:
    """Shows `done` of `total`, and some words."""

    def __init__(self, *, after_s: float = 0.0, lines_s: float = LINES_S) -> None:
        """Nothing is shown for the first `after_s`; in a log, lines are `lines_s` apart."""
        self._is_notebook = in_notebook()
        self._is_terminal = not self._is_notebook and _is_terminal()
        moves = self._is_notebook or self._is_terminal
        self._every_s = TERMINAL_S if moves else lines_s
        self._next_at = time.monotonic() + after_s
        self._shown: Any = None  # of a notebook
        self._has_turn = False

    def is_due(self) -> bool:
        """Whether it is time to show something: the words need not be made before."""
        return time.monotonic() >= self._next_at

    def update(self, done: int, total: int | None, words: str) -> None:
        """Show how far it is, if it is time."""
        if self.is_due():
            self._show(done, total, words)

    def end(self, done: int, total: int | None, words: str) -> None:
        """Show the last state of what was shown, and leave it there."""
        if self._has_turn:
            self._show(done, total, words)
            if self._is_terminal:
                _write("\n")
        self.close()

    def close(self) -> None:
        """Show nothing more."""
        self._next_at = float("inf")
        if self._has_turn:
            self._has_turn = False
            _turn.release()

    def _show(self, done: int, total: int | None, words: str) -> None:
        self._next_at = time.monotonic() + self._every_s
        if not self._has_turn:
            self._has_turn = _turn.acquire(blocking=False)
            if not self._has_turn:
                return
        text = printable(words).replace("\n", " ")
        if self._is_notebook:
            self._show_html(as_html(done, total, text))
        elif self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            _write(f"\r{cut(f'{drawn(done, total)} {text}', width)}\x1b[K")
        else:
            _write(f"{text}\n")

    def _show_html(self, text: str) -> None:
        from IPython.display import HTML, display

        if self._shown is None:
            self._shown = display(HTML(text), display_id=True)
        else:
            self._shown.update(HTML(text))


def drawn(done: int, total: int | None) -> str:
    """The bar itself."""
    full = WIDTH * min(done, total) // total if total else 0
    return f"{'━' * full}{'─' * (WIDTH - full)}"


def as_html(done: int, total: int | None, words: str) -> str:
    """The bar for a notebook; without a total it only says that something goes on."""
    ends = f' value="{done}" max="{total}"' if total else ""
    return f"<progress{ends}></progress> <code>{html.escape(words)}</code>"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


def _is_terminal() -> bool:
    return (
        sys.stderr is not None
        and sys.stderr.isatty()
        and os.environ.get("TERM", "dumb") not in ("", "dumb")
    )


def _write(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
