from __future__ import annotations

from pathlib import Path

import pytest

from postroom.jobs import Job
from postroom.project.report import count_running, progress, summary
from postroom.text.safe_text import printable
from tests.in_one_process import in_one_process

EVIL = "\x1b[31mred\x07\x9b"


def test_control_characters_are_shown_instead_of_obeyed() -> None:
    assert printable(EVIL) == "\\x1b[31mred\\x07\\x9b"
    assert printable("two\nlines") == "two\nlines"


def test_nothing_that_a_job_says_reaches_the_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"def kernel():\n    raise ValueError({EVIL!r})\n"
    with in_one_process(tmp_path, source) as room:
        pool = room.run([Job("kernels:kernel").options(name=EVIL)])
        with progress(room.master, pool) as show:
            show(pool)
        summary(room.master, pool, 1.0)
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err and "\x07" not in shown.out
    assert "0 of 1 ok, 1 failed" in shown.out
    assert "1/1 done, 0 running, 1 failed" in shown.err


def test_running_are_the_agents_that_have_a_letter_of_the_pool(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def kernel():\n    return 1\n", inboxes=2) as room:
        pool = room.master.submit_all([Job("kernels:kernel") for _ in range(2)])
        room.master.step(0.0)
        assert count_running(room.master, pool) == 2
        room.finish(pool)
        assert count_running(room.master, pool) == 0
