"""Requests to the scheduler; none is running here, so they wait."""

from __future__ import annotations

import pytest

from postroom.cli.output import settle
from postroom.errors import PostroomError
from postroom.queue import actions
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.requests import RequestVerb, pending, read_request
from postroom.store.runs import reject
from tests.queue.kit import FILES, end, queue

from .kit import asked, call


def test_requests_are_written_for_the_master(base: Base) -> None:
    first, second, third = queue(base, "a", "b", "c")
    done = call(base, "kill", first.short)
    assert "no scheduler is running, so this waits until you start it" in done.stderr
    call(base, "hold", f"{second.run[-6:]}/1-2")
    call(base, "release", second.short)
    call(base, "priority", third.short, "-5")
    call(base, "move", third.short, "before", first.short)
    call(base, "move", third.short, "first")
    call(base, "pause", "--preempt")
    call(base, "resume", "-P", "p")
    call(base, "kill", first.run)
    assert asked(base) == [
        (RequestVerb.KILL, (first,), None),
        (RequestVerb.HOLD, (second, third), None),
        (RequestVerb.RELEASE, (second,), None),
        (RequestVerb.PRIORITY, (third,), -5),
        (RequestVerb.MOVE, (third,), str(first)),
        (RequestVerb.MOVE, (third,), "first"),
        (RequestVerb.PAUSE, (), None),
        (RequestVerb.RESUME, (), None),
        (RequestVerb.KILL, (first, second, third), None),
    ]
    pause = read_request(FILES, base, pending(FILES, base)[6])
    assert pause.everything and pause.preempt


def test_nothing_is_asked_about_what_is_over(base: Base) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    assert "nothing to kill" in call(base, "kill", job.short).stderr
    with pytest.raises(PostroomError, match="nothing to hold"):
        call(base, "hold", job.short)
    assert asked(base) == []


def test_a_run_of_any_length_is_named_by_its_id(base: Base) -> None:
    jobs = queue(base, *["true"] * 12_000)
    call(base, "kill", jobs[0].run[-6:])
    (request,) = asked(base)
    assert request == (RequestVerb.KILL, tuple(jobs), None)
    for job in jobs[:10]:
        end(base, job)
    call(base, "kill", f"{jobs[0].run[-6:]}/0-11998")
    assert asked(base)[1] == (RequestVerb.KILL, tuple(jobs[10:11_999]), None)


def test_a_request_that_the_scheduler_refuses_is_an_error(base: Base) -> None:
    (job,) = queue(base, "true")
    with QueueView(base) as view:
        answer = actions.hold(view, [job])
        assert answer.request is not None
        reject(FILES, base, f"{base.control}/{answer.request}", "is not a request: no")
        with pytest.raises(PostroomError, match="nothing was done: is not a request: no"):
            settle(view, answer)
