"""The rows of one job: a line of a list, and all details."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from postroom.cli.output import job_rows
from postroom.jobs import Job
from postroom.master import Master
from postroom.parcel import sheets
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.runs import Note, write_note
from postroom.text.table import table_lines
from tests.queue.kit import FAILURE, FILES, end, queue


def test_every_attempt_is_shown_with_its_reason(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    write_note(FILES, base, Note(job.run, job.number, 1, "lost", "0", "lost: its agent died", 7.0))
    detail = view.job(job)
    assert [(one.number, one.outcome, one.reason) for one in detail.attempts] == [
        (1, "lost", "its agent died")
    ]
    end(base, job)
    assert [one.outcome for one in view.job(job).attempts] == ["lost", "ok"]


def test_the_details_say_where_the_output_is_and_what_it_waits_for(
    base: Base, view: QueueView
) -> None:
    (first,) = queue(base, "a")
    (second,) = queue(base, "b", after=(first,), priority=3)
    detail = view.job(second)
    assert detail.out_path == f"{base.job_folder(second.run, second.number)}/{second.number}.OUT"
    assert (detail.job.state, detail.job.priority) == ("waiting", 3)
    assert [(link.id, link.state, link.any_end) for link in detail.after] == [
        (str(first), "queued", False)
    ]


ODD = ["half a pair \ud800", "two\nlines", "\x1b[31mred", "x" * 10_000]


def test_no_name_breaks_a_listing(base: Base, view: QueueView) -> None:
    with Master(base.root, import_folder=str(Path(__file__).parents[2])) as master:
        jobs = [Job("expensive_task:expensive_task", x=1).options(name=name) for name in ODD]
        pool = master.submit_all(jobs, keep=True)
    end(base, JobId(pool.run, 0), replace(FAILURE, message="\udcff", traceback="\udcff"))
    shown = json.dumps([asdict(row) for row in view.jobs().jobs], ensure_ascii=False)
    assert "half a pair \\\\ud800" in shown.encode().decode()
    assert view.job(JobId(pool.run, 0)).traceback == "\\udcff"
    assert max(map(len, table_lines(job_rows(view.jobs().jobs)))) < 300
    assert [row.name for row in view.jobs(text="red").jobs] == [ODD[2]]


@pytest.mark.parametrize("names", [[5], "x", [None], ["a", "b"], {"a": 1}])
def test_names_in_a_file_that_are_no_texts_make_it_a_bad_file(
    base: Base, view: QueueView, names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sheets._job_head
    monkeypatch.setattr(
        sheets, "_job_head", lambda *head: real(*head).replace('"names":null', _names(names))
    )
    with Master(base.root, import_folder=str(Path(__file__).parents[2])) as master:
        master.submit_all([Job("expensive_task:expensive_task", x=1)], keep=True)
    assert [(row.name, row.command, row.state) for row in view.jobs().jobs] == [("", "?", "queued")]


def _names(names: Any) -> str:
    return f'"names":{json.dumps(names)}'


def test_a_parcel_of_results_that_cannot_be_read_is_no_result(base: Base, view: QueueView) -> None:
    good, bad = queue(base, "a", "b")
    end(base, good, FAILURE)
    end(base, bad)
    Path(base.result(bad.run, bad.number)).write_bytes(b"garbage")
    assert view.job(good).job.exit == 3
    assert view.job(bad).job.state == "queued"
