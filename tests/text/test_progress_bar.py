from __future__ import annotations

import os
import pty
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from postroom.text.progress_bar import ProgressBar, as_html, drawn


@contextmanager
def terminal() -> Iterator[int]:
    """Stderr is a terminal of 80 columns; what is read here is what it shows."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    names = {"TERM": "xterm", "COLUMNS": "80"}
    with (
        os.fdopen(theirs, "w") as stream,
        mock.patch.object(sys, "stderr", stream),
        mock.patch.dict(os.environ, names),
    ):
        yield ours
    os.close(ours)


def read_line(screen: int) -> str:
    """What the terminal has shown up to the end of a line; it may come in pieces."""
    shown = b""
    while not shown.endswith(b"\n"):
        assert select.select([screen], [], [], 60)[0], shown
        shown += os.read(screen, 10_000)
    return shown.decode()


def test_on_a_terminal_the_line_moves_and_its_last_state_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("postroom.text.progress_bar.TERMINAL_S", 60.0)
    with terminal() as screen:
        bar = ProgressBar()
        bar.update(1, 4, "1/4 done")
        bar.update(2, 4, "too soon")
        bar.end(4, 4, "4/4 done, " + "x" * 200)
        shown = read_line(screen)
    first, last = shown.strip("\r\n").split("\r")
    assert first.startswith(f"{'━' * 6}{'─' * 18} 1/4 done") and "too soon" not in shown
    assert last.startswith("━" * 24) and len(last.removesuffix("\x1b[K")) == 79
    assert shown.endswith("\r\n")


def test_a_bar_that_was_never_shown_leaves_nothing() -> None:
    with terminal() as screen:
        bar = ProgressBar(after_s=60)
        bar.update(1, 2, "1/2")
        bar.end(2, 2, "2/2")
        with pytest.raises(BlockingIOError):
            os.read(screen, 100)


def test_one_bar_is_shown_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = ProgressBar(lines_s=0), ProgressBar(lines_s=0)
    first.update(0, 1, "first")
    second.update(0, 1, "second")
    first.end(1, 1, "over")
    second.update(0, 1, "now second")
    second.close()
    assert capsys.readouterr().err.splitlines() == ["first", "over", "now second"]


def test_with_no_total_the_bar_says_only_that_something_goes_on() -> None:
    assert "max" not in as_html(3, None, "3/? done") and set(drawn(3, None)) == {"─"}
    assert as_html(1, 2, "<b>") == '<progress value="1" max="2"></progress> <code>&lt;b&gt;</code>'
