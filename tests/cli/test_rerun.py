"""`postroom rerun`: the same jobs again."""

from __future__ import annotations

import json

from postroom.parcel.sheets import Failure, Outcome
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from tests.queue.kit import FAILURE, end, queue

from .kit import call


def test_a_rerun_is_the_same_job_again(base: Base, view: QueueView) -> None:
    short = call(base, "submit", "-n", "x", "-t", "60", "--retries", "2", "-p", "3", "a b").stdout
    (row,) = view.jobs().jobs
    end(base, JobId(row.run, row.number), FAILURE)
    again = call(base, "rerun", short.strip()).stdout.strip()
    detail = json.loads(call(base, "show", again, "--json").stdout)
    assert detail["job"]["rerun_of"] == row.id
    assert (detail["job"]["command"], detail["job"]["name"], detail["job"]["priority"]) == (
        "a b",
        "x",
        3,
    )
    assert (detail["timeout_s"], detail["retries"]) == (60, 2)
    call(base, "submit", "--hold", "-n", "alone", "true")
    for word in ("alone", "@", "2"):
        again = call(base, "rerun", word).stdout.strip()
        assert json.loads(call(base, "show", again, "--json").stdout)["job"]["name"] == "alone"


def test_what_failed_is_rerun_once_with_all_that_waited_for_it(base: Base, view: QueueView) -> None:
    good, bad = queue(base, "good", "bad")
    (then,) = queue(base, "then", after=(bad,))
    (last,) = queue(base, "last", after=(then,))
    (other,) = queue(base, "other", project="q")
    end(base, good)
    end(base, bad, FAILURE)
    cancelled = Failure(Outcome.CANCELLED, "cancelled", "")
    end(base, then, cancelled)
    end(base, last, cancelled)
    end(base, other, cancelled)  # somebody has killed it: that is no failure
    assert call(base, "rerun", "--failed", "--dry-run").stdout.split() == [
        job.short for job in (bad, then, last)
    ]
    new = call(base, "rerun", "--failed").stdout.split()
    states = {row.short: row.state for row in view.jobs(state="queued,waiting").jobs}
    assert states == {new[0]: "queued", new[1]: "waiting", new[2]: "waiting"}
    links = view.job(JobId(bad.run, int(new[2].split("/")[1]))).after
    assert [one.short for one in links] == [new[1]]
    assert call(base, "rerun", "--failed").stdout == ""
