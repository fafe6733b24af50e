from __future__ import annotations

from pathlib import Path

import pytest

from postroom.dispatch.pool_progress import PoolProgress, count_running
from postroom.jobs import Job
from tests.in_one_process import in_one_process

EVIL = "\x1b[31mred\x07\x9b"


def test_nothing_that_a_job_says_reaches_the_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"def kernel():\n    raise ValueError({EVIL!r})\n"
    with in_one_process(tmp_path, source) as room:
        pool = room.master.submit_all([Job("kernels:kernel").options(name=EVIL)])
        show = PoolProgress(room.master, pool)
        show(pool)
        room.finish(pool)
        show(pool)
        print(pool.summary())
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err and "\x07" not in shown.out
    assert "0 of 1 ok, 1 failed" in shown.out
    first, last = shown.err.splitlines()
    assert first.startswith("0/1 done, 0 running, 0 failed") and last.startswith("1/1 done")


def test_running_are_the_agents_that_have_a_letter_of_the_pool(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def kernel():\n    return 1\n", inboxes=2) as room:
        pool = room.master.submit_all([Job("kernels:kernel") for _ in range(2)])
        room.master.step(0.0)
        assert count_running(room.master, pool) == 2
        room.finish(pool)
        assert count_running(room.master, pool) == 0
