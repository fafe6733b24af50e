"""The rows of one job: a line of a list, and all details."""

from __future__ import annotations

from pathlib import Path

from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.runs import Note, write_note
from tests.queue.kit import FAILURE, FILES, end, queue


def test_every_attempt_is_shown_with_its_reason(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    write_note(FILES, base, Note(job.run, job.number, 1, "lost", "0", "its agent died", 7.0))
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


def test_a_parcel_of_results_that_cannot_be_read_is_no_result(base: Base, view: QueueView) -> None:
    good, bad = queue(base, "a", "b")
    end(base, good, FAILURE)
    end(base, bad)
    Path(base.result(bad.run, bad.number)).write_bytes(b"garbage")
    assert view.job(good).job.exit == 3
    assert view.job(bad).job.state == "queued"
