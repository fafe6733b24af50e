"""One table of verbs: the page, the API and the command line have the same names."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from postroom.cli.agents import command as agents_command
from postroom.cli.verbs import postroom
from postroom.errors import PostroomError
from postroom.jobs import Job
from postroom.queue.actions import (
    ACTIONS,
    ActionInput,
    QueueScope,
    find_action,
    set_priority,
    verbs_for,
)
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.requests import RequestVerb, pending, read_request
from tests.in_one_process import in_one_process
from tests.queue.kit import FAILURE, FILES, end, queue


def test_every_request_has_its_verb_and_only_rerun_needs_no_request() -> None:
    assert {verb.value for verb in RequestVerb} == set(ACTIONS) - {"rerun"}


def test_the_command_line_has_a_command_for_every_verb() -> None:
    context = click.Context(postroom)
    commands = {*postroom.list_commands(context), *agents_command.list_commands(context)}
    assert set(ACTIONS) <= commands


def test_each_verb_writes_the_request_of_its_name(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    values = {"priority": 5, "move": "first", "add": "0,1"}
    for verb, action in ACTIONS.items():
        if action.target != "agents" and verb != "rerun":
            what = ActionInput(jobs=[job], value=values.get(verb))
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
        pool = running.master.submit([Job("kernels:double", x=1)])
        with (
            QueueView(running.base) as view,
            pytest.raises(PostroomError, match="a Python program submitted it"),
        ):
            set_priority(view, [JobId(pool.run, 0)], 5)


def test_a_scope_says_what_it_means() -> None:
    assert str(QueueScope()) == "the queue"
    assert str(QueueScope(("vae",), ("r1",))) == "project vae and run r1"
