"""What a batch prints while it runs, without running one."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from postroom.batch.batch_view import (
    BatchState,
    PlainView,
    SlotState,
    draw,
    headline,
    summary,
    write_results,
)
from postroom.batch.runner import BatchCounts
from postroom.commands.job_folder import JobFolder
from postroom.commands.spec import COMMAND
from postroom.jobs import Finished, Job
from postroom.parcel.sheets import Failure, JobEnd, Outcome

SLOTS = [SlotState("0", "0", "job_3", "train \x1b[2J", 65.0), SlotState("1", "1", "", "", 0.0)]
STATE = BatchState(SLOTS, 12, 2, 5, 7, open=True, rate=0.5, left_s=90.0)


def ended(folder: Path, number: int, failure: Failure | None = None) -> tuple[Finished, JobFolder]:
    place = JobFolder(str(folder / f"job_{number}"))
    job = Job(COMMAND, command=f"echo {number}", folder=place.path, number=number)
    return Finished(number, job, JobEnd(None, failure, 2.5), "0", None), place  # type: ignore[arg-type]


def test_the_headline_has_every_count_and_the_time_left() -> None:
    assert headline(STATE) == (
        "12 done, 2 failed, 1 running, 7+ waiting, 5 done before, 30.0/min, 1 min 30 s left"
    )


def test_the_live_table_shows_slots_and_cannot_be_steered() -> None:
    # What a job may write into its folder, and what rich would take for markup.
    hostile = SlotState("2", "GPU [/x]\x1b[2J", "[red]job\x1b]0;x\x07", "[/b]", 1.0)
    shown = Console(file=io.StringIO(), width=200, no_color=True)
    with shown.capture() as captured:
        shown.print(draw(replace(STATE, slots=[*SLOTS, hostile])))
    text = captured.get()
    assert "job_3" in text and "1 min 5 s" in text and "idle" in text
    assert "GPU [/x]" in text and "[red]job" in text and "[/b]" in text
    assert "\x1b" not in text and "\x07" not in text


def test_a_line_for_each_job_says_how_it_ended(tmp_path: Path) -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.finished(*ended(tmp_path, 1))
    view.finished(*ended(tmp_path, 2, Failure(Outcome.FAILED, "failed", "exit code 3")))
    first, second = stream.getvalue().splitlines()
    assert first == "job_1  ok  2.5 s  slot 0  echo 1"
    assert second == "job_2  FAILED: exit code 3  2.5 s  slot 0  echo 2"


def test_lines_are_kept_back_until_those_before_them_have_ended(tmp_path: Path) -> None:
    stream = io.StringIO()
    view = PlainView(stream, keep_order=True)
    view.finished(*ended(tmp_path, 2))
    batch: Any = SimpleNamespace(ended_until=0)
    view.update(batch)
    assert stream.getvalue() == ""
    view.finished(*ended(tmp_path, 1))
    batch.ended_until = 2
    view.update(batch)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["job_1", "job_2"]


def test_the_summary_shows_stderr_of_failures_and_how_to_run_them_again(tmp_path: Path) -> None:
    failed, folder = ended(tmp_path, 1, Failure(Outcome.FAILED, "failed", "exit code 3"))
    folder.begin()
    Path(folder.err).write_text("one\ntwo\nthree\nno such data\n")
    counts = BatchCounts(asked=3, skipped=1, done=2, failed=1, failures=[(failed, folder)])
    batch: Any = SimpleNamespace(counts=counts, started=0.0, stopped=False, output=str(tmp_path))
    stream = io.StringIO()
    summary(batch, ["postroom", "run", "my jobs.txt"], stream)
    text = stream.getvalue()
    assert "    no such data\n" in text and "    one\n" not in text
    assert "1 ok, 1 failed, 1 done before, in " in text
    assert "run failed jobs again: postroom run 'my jobs.txt' --rerun failed" in text


def test_results_are_written_as_csv_and_json(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path / "job_1"))
    folder.begin()
    folder.tell({"name": "job_1", "command": "x"})
    write_results(str(tmp_path))
    for name in ("results.csv", "results.json"):
        assert "job_1" in (tmp_path / name).read_text()
