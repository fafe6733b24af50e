"""The state of every job, from folders and orders."""

from __future__ import annotations

import time

from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.requests import Orders, write_orders
from postroom.store.scheduling import SchedulingOptions
from tests.queue.kit import FAILURE, FILES, end, queue


def test_a_job_waits_until_the_others_have_ended_as_it_needs(base: Base, view: QueueView) -> None:
    good, bad, left = queue(base, "a", "b", "c")
    end(base, good)
    end(base, bad, FAILURE)
    base_state = view.read_state()
    gone = JobId("removed-run", 0)
    both = (good, bad, left, gone)
    assert base_state.missing(SchedulingOptions(after=both)) == [bad, left, gone]
    assert base_state.missing(SchedulingOptions(after_any=both)) == [left]


def test_ended_jobs_of_all_runs_are_listed_newest_first(base: Base, view: QueueView) -> None:
    one, two = queue(base, "a", "b", project="p")
    other, fourth = queue(base, "c", "d", project="q")
    for job, age, failure in ((one, 40, None), (other, 30, FAILURE), (two, 20, FAILURE)):
        end(base, job, failure, at=time.time() - age)
    base_state = view.read_state()
    readers = list(base_state.readers.values())

    def listed(*states: str) -> list[JobId]:
        return [reader.job_id(job) for reader, job, _ in base_state.jobs_in(states, readers)]

    assert listed("ok", "failed") == [two, other, one]
    assert listed("failed") == [two, other]
    assert listed("queued") == [fourth]
    assert base_state.counts(base_state.readers[other.run]) == {"queued": 1, "failed": 1}


def test_orders_count_before_the_options_of_a_job(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a", held=True, priority=1)
    reader = view.read_state().readers[job.run]
    assert view.read_state().state(reader, 0) == "held"
    write_orders(FILES, base, Orders(held={job: False}, priorities={job: 7}))
    base_state = view.read_state()
    assert base_state.state(reader, 0) == "queued"
    assert base_state.priority(reader, 0) == 7
