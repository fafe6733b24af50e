"""One table of verbs: the page, the API and the command line have the same names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from postroom.cli.agents import command as agents_command
from postroom.cli.verbs import postroom
from postroom.commands.spec import CommandSpec
from postroom.errors import PostroomError
from postroom.jobs import Job
from postroom.master import Master
from postroom.queue.actions import (
    ACTIONS,
    ActionInput,
    QueueScope,
    add_agents,
    clean,
    failed_jobs,
    find_action,
    kill,
    rerun,
    set_priority,
    verbs_for,
)
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.requests import RequestVerb, pending, read_orders, read_request
from postroom.store.runs import list_runs, user_name
from tests.in_one_process import in_one_process
from tests.queue.kit import FAILURE, FILES, end, make_old, queue


def test_every_request_has_its_verb_and_only_rerun_needs_no_request() -> None:
    # To go up or down is not for a page, which would go down, too; what is edited has a form of
    # its own.
    others = {"up", "down", "failures", "edit"}
    assert {verb.value for verb in RequestVerb} - others == set(ACTIONS) - {"rerun"}


def test_the_command_line_has_a_command_for_every_verb() -> None:
    context = click.Context(postroom)
    commands = {*postroom.list_commands(context), *agents_command.list_commands(context)}
    assert set(ACTIONS) <= commands


def test_each_verb_writes_the_request_of_its_name(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    values = {"priority": 5, "move": "first", "add": "0,1", "limit": 2}
    for verb, action in ACTIONS.items():
        if action.target != "agents" and verb != "rerun":
            scope = QueueScope(projects=("default",)) if verb == "limit" else QueueScope()
            what = ActionInput(jobs=[job], scope=scope, value=values.get(verb))
            assert action.act(view, what).request is not None
    written = [read_request(FILES, base, name) for name in pending(FILES, base)]
    assert [request.verb.value for request in written] == [
        verb for verb, action in ACTIONS.items() if action.target != "agents" and verb != "rerun"
    ]
    assert all(request.jobs == (job,) for request in written[:5])


@pytest.mark.parametrize(
    ("target", "verb"), [("jobs", "explode"), ("jobs", "pause"), ("agents", "add")]
)
def test_a_verb_that_is_not_there_is_refused_with_those_that_are(target: str, verb: str) -> None:
    with pytest.raises(PostroomError, match=", ".join(verbs_for(target))):
        find_action(target, verb)


@pytest.mark.parametrize(
    ("verb", "value"), [("priority", None), ("priority", "5"), ("move", None), ("move", "up")]
)
def test_a_value_that_makes_no_sense_is_refused(
    base: Base, view: QueueView, verb: str, value: str | None
) -> None:
    (job,) = queue(base, "a")
    with pytest.raises(PostroomError):
        ACTIONS[verb].act(view, ActionInput(jobs=[job], value=value))
    assert pending(FILES, base) == []


def test_a_failed_job_is_run_again_with_the_one_that_waited_for_it(
    base: Base, view: QueueView
) -> None:
    (first,) = queue(base, "a")
    (second,) = queue(base, "b", after=(first,))
    end(base, first, FAILURE)
    new = ACTIONS["rerun"].act(view, ActionInput(jobs=[second, first])).jobs
    details = [view.job(job) for job in new]
    assert [detail.job.rerun_of for detail in details] == [str(second), str(first)]
    assert [link.id for link in details[0].after] == [str(new[1])]


def test_the_jobs_of_a_program_have_no_priority_of_their_own(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def double(x):\n    return x * 2\n") as running:
        pool = running.master.submit_all([Job("kernels:double", x=1)])
        with (
            QueueView(running.base) as view,
            pytest.raises(PostroomError, match="a Python program submitted it"),
        ):
            set_priority(view, [JobId(pool.run, 0)], 5)


@pytest.fixture
def abandoned(tmp_path: Path) -> Iterator[tuple[Base, str]]:
    """The run of a program that was killed with -9: no Master, no agent, one job of three done."""
    with in_one_process(tmp_path, "def double(x):\n    return 2 * x\n") as room:
        pool = room.master.submit_all(
            [Job("kernels:double", x=n).options(name=f"job {n}") for n in range(3)]
        )
        for _ in room.master.rounds(pool, until=lambda: pool.n_done == 1):
            room.inboxes[0].step()
        room.inboxes[0].take_down()
    yield room.base, pool.run


def test_the_run_of_a_program_that_is_gone_is_shown_as_abandoned(
    abandoned: tuple[Base, str],
) -> None:
    base, run = abandoned
    with QueueView(base) as view:
        assert view.overview().counts == {"abandoned": 2, "ok": 1}
        rows = view.jobs(state="abandoned").jobs
        assert [row.number for row in rows] == [1, 2]
        assert "its program is gone" in rows[0].reason
        assert f"postroom kill {run[-6:]}" in rows[0].reason
        assert f"Master(base).resume('{run}')" in rows[0].reason
        with Master(base.root) as master:
            master.resume(run)
            assert view.overview().counts == {"queued": 2, "ok": 1}
        assert view.overview().counts == {"abandoned": 2, "ok": 1}


def test_an_abandoned_job_is_killed_without_a_scheduler_and_nothing_else_begins(
    abandoned: tuple[Base, str],
) -> None:
    base, run = abandoned
    (other,) = queue(base, "true")
    with QueueView(base) as view, in_one_process(Path(base.root).parent, "") as room:
        room.master.let_go()
        result = kill(view, [JobId(run, n) for n in range(3)])
        assert result.text == "killed 2 jobs (1 already ended)"
        assert view.job(JobId(run, 2)).job.error == f"killed by {user_name()}"
        assert view.overview().counts == {"queued": 1, "cancelled": 2, "ok": 1}
        assert room.inboxes[0].box.size() == 0, "no letter is sent by who only kills"
        assert view.job(other).job.state == "queued"
        assert not pending(FILES, base) and not read_orders(FILES, base).killed


def test_a_scheduler_kills_abandoned_jobs_too(abandoned: tuple[Base, str]) -> None:
    base, run = abandoned
    with QueueView(base) as view, Master(base.root) as master:
        master.step(time.monotonic())
        assert kill(view, [JobId(run, 1)]).text == "killing job " + JobId(run, 1).short
        master.step(time.monotonic() + 10)
        assert view.overview().counts == {"cancelled": 1, "abandoned": 1, "ok": 1}


def test_abandoned_runs_are_cleaned_when_asked_for(abandoned: tuple[Base, str]) -> None:
    base, run = abandoned
    with QueueView(base) as view:
        assert clean(view, older_than_s=0, abandoned=True).runs == [], "it has just changed"
    make_old(base, run)
    with QueueView(base) as view:
        said = clean(view, older_than_s=3600)
        assert said.runs == []
        assert "1 abandoned run with 2 jobs that have not ended stay" in said.text
        assert clean(view, older_than_s=3600, abandoned=True, dry_run=True).runs == [run]
        assert view.overview().counts == {"abandoned": 2, "ok": 1}
        with Master(base.root) as master:
            master.resume(run)
            assert clean(view, older_than_s=3600, abandoned=True).runs == [], "it is wanted"
        make_old(base, run)
        assert clean(view, older_than_s=3600, abandoned=True).runs == [run]
        assert list_runs(FILES, base) == []


def test_a_failed_task_of_a_program_is_run_again_in_a_run_that_is_always_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_second = iter(["20261117-195325-ffffff", "20261117-195325-000000"])
    monkeypatch.setattr("postroom.master.new_run_id", lambda: next(same_second))
    with in_one_process(tmp_path, "def f(x, shared):\n    return shared['n'] // x\n") as room:
        pool = room.run([Job("kernels:f", x=0).options(name="a"), Job("kernels:f", x=2)], {"n": 8})
        failed = JobId(pool.run, 0)
        room.write_kernels("def f(x, shared):\n    return shared['n']\n")
        with QueueView(room.base) as view:
            assert failed_jobs(view) == [], "a program may know what it does about them"
            assert failed_jobs(view, run=pool.run) == [failed]
            assert clean(view, older_than_s=0).runs == []
            (again,) = rerun(view, [failed]).jobs
            assert failed_jobs(view, run=pool.run) == []
            assert view.job(again).job.rerun_of == str(failed)
            room.finish(room.master.resume(again.run))
            assert view.job(again).job.state == "ok"
        assert room.master.look(again.run).results() == [8]
        assert pool.results(return_exceptions=True)[1:] == [4]


def test_a_line_of_a_batch_is_not_run_again_here(base: Base, view: QueueView) -> None:
    with Master(base.root) as master:
        job = CommandSpec("false", cwd="/").to_job()
        pool = master.submit_all([job], keep=True)
    with pytest.raises(PostroomError, match="is a line of `postroom run`"):
        rerun(view, [JobId(pool.run, 0)])


def test_a_program_that_acts_leaves_requests_for_sessions_to_the_scheduler(
    abandoned: tuple[Base, str],
) -> None:
    base, run = abandoned
    with QueueView(base) as view:
        added = add_agents(view, "cpu").request
        kill(view, [JobId(run, 1)])
        assert pending(FILES, base) == [added]


def test_a_scope_says_what_it_means() -> None:
    assert str(QueueScope()) == "the queue"
    assert str(QueueScope(("vae",), ("r1",))) == "project vae and run r1"
