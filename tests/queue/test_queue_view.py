"""What listings show of a base, without any process."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from postroom.jobs import Job
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId, UnknownJobError
from postroom.store.requests import Orders, write_orders
from tests.in_one_process import in_one_process
from tests.queue.kit import FAILURE, FILES, end, queue


def shown(view: QueueView, **filters: object) -> list[tuple[str, str]]:
    page = view.jobs(**filters)  # type: ignore[arg-type]
    return [(row.name, row.state) for row in page.jobs]


def test_behind_the_last_job_is_nothing_however_far(base: Base, view: QueueView) -> None:
    queue(base, "a")
    assert view.jobs(first=10**30).jobs == []


def test_an_empty_base_shows_nothing(view: QueueView) -> None:
    seen = view.overview()
    assert (seen.counts, seen.running, seen.queued, seen.master_pid) == ({}, [], [], None)
    assert view.jobs().jobs == []
    assert view.projects() == []


def test_jobs_are_queued_then_ended_and_counted(base: Base, view: QueueView) -> None:
    first, second, _ = queue(base, "a", "b", "c")
    assert shown(view) == [("a", "queued"), ("b", "queued"), ("c", "queued")]
    end(base, first)
    end(base, second, FAILURE)
    seen = view.overview()
    assert seen.counts == {"queued": 1, "failed": 1, "ok": 1}
    assert (seen.done_today, seen.failed_today, seen.rate_per_hour) == (2, 1, 2.0)
    assert [row.name for row in seen.failed] == ["b"]
    row = view.jobs(state="failed").jobs[0]
    assert (row.exit, row.error) == (3, "exit code 3: no such data")
    assert view.job(second).traceback == "Traceback: ..."
    assert view.job(first).job.exit == 0


def test_what_ended_last_is_listed_first_whatever_its_run(base: Base, view: QueueView) -> None:
    one, two = queue(base, "a", "b", project="p")
    (other,) = queue(base, "c", project="q")
    for job, age in ((one, 30), (other, 20), (two, 10)):
        end(base, job, at=time.time() - age)
    assert [name for name, _ in shown(view)] == ["b", "c", "a"]
    assert [name for name, _ in shown(view, first=1, count=1)] == ["c"]


def test_the_queue_is_in_the_order_in_which_it_will_run(base: Base, view: QueueView) -> None:
    low = queue(base, "a", "b", "c", "d", project="p")
    queue(base, "x", "y", project="q")
    queue(base, "urgent", project="q", priority=5)
    assert [name for name, _ in shown(view)] == ["urgent", "a", "x", "b", "y", "c", "d"]
    orders = Orders(positions={low[3]: -1.0}, priorities={low[2]: 7})
    write_orders(FILES, base, orders)
    assert [name for name, _ in shown(view)] == ["c", "urgent", "d", "x", "a", "y", "b"]
    assert view.jobs().jobs[0].priority == 7


def test_held_waiting_and_paused_jobs_are_told_apart(base: Base, view: QueueView) -> None:
    (first,) = queue(base, "first")
    queue(base, "held", held=True)
    queue(base, "later", after=(first,))
    queue(base, "other", project="q")
    write_orders(FILES, base, Orders(paused_projects={"q"}))
    assert shown(view) == [
        ("first", "queued"),
        ("other", "paused"),
        ("later", "waiting"),
        ("held", "held"),
    ]
    assert view.overview().counts == {"queued": 1, "waiting": 1, "paused": 1, "held": 1}
    end(base, first)
    assert ("later", "queued") in shown(view)
    assert [one.state for one in view.job(JobId(first.run, 2)).after] == ["ok"]
    assert {one.name: one.paused for one in view.projects()} == {"p": False, "q": True}


def test_filters_choose_and_pages_follow_one_another(base: Base, view: QueueView) -> None:
    queue(base, *[f"p{n}" for n in range(7)], project="p")
    queue(base, *[f"q{n}" for n in range(7)], project="q")
    page = view.jobs(project="p", count=3)
    assert ([row.name for row in page.jobs], page.total, page.more) == (["p0", "p1", "p2"], 7, True)
    rest = view.jobs(project="p", first=3, count=4)
    assert ([row.name for row in rest.jobs], rest.more) == (["p3", "p4", "p5", "p6"], False)
    found = view.jobs(text="Q5")
    assert ([row.name for row in found.jobs], found.total) == (["q5"], None)
    run = page.jobs[0].run
    assert view.jobs(run=run[-6:]).total == 7
    assert view.jobs(user="nobody else").total == 0
    with pytest.raises(Exception, match="there is no state 'broken'"):
        view.jobs(state="broken")


def test_a_view_that_is_kept_shows_what_is_new(base: Base, view: QueueView) -> None:
    jobs = queue(base, *map(str, range(20)))
    for number, job in enumerate(jobs):
        assert view.overview().counts.get("ok", 0) == number
        end(base, job)
    assert view.overview().counts == {"ok": 20}
    queue(base, "more")
    assert view.overview().counts == {"queued": 1, "ok": 20}


def test_runs_from_python_are_listed_with_their_tasks(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def double(x, y=0):\n    return x * 2\n") as running:
        pool = running.run([Job("kernels:double", x=n) for n in range(5)])
        with QueueView(running.base) as view:
            rows = view.jobs().jobs
            assert {row.command for row in rows} == {"kernels:double(x)"}
            assert {row.state for row in rows} == {"ok"}
            assert view.jobs().total == 5
            assert view.job(JobId(pool.run, 4)).job.state == "ok"
            names = [one.name for one in view.history(since=0, until=1e12)]
            assert names and all(name.startswith("kernels:double(x)") for name in names)


def test_an_unknown_job_is_an_error(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    for unknown in (JobId(job.run, 1), JobId("nothing", 0)):
        with pytest.raises(UnknownJobError, match="there is no job"):
            view.job(unknown)


def test_everything_shown_can_be_written_as_json(base: Base, view: QueueView) -> None:
    first, _ = queue(base, "a", "b")
    end(base, first, FAILURE)
    for shown_ in (view.overview(), view.jobs(), view.job(first), *view.projects()):
        assert json.loads(json.dumps(dataclasses.asdict(shown_)))


def test_a_damaged_run_hides_only_itself(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a", project="p")
    queue(base, "b", project="q")
    Path(base.run_info(job.run)).write_text("garbage")
    assert shown(view) == [("b", "queued")]
