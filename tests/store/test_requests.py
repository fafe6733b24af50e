"""Requests, orders and stop orders as files; who carries them out is tested in tests/dispatch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroom.errors import BadFileError, PostroomError
from postroom.store import requests
from postroom.store.job_ids import JobId, JobIds
from postroom.store.requests import (
    Orders,
    Request,
    RequestVerb,
    StopOrder,
    ask,
    is_settled,
    list_stops,
    order_stop,
    pending,
    read_orders,
    read_request,
    read_stop,
    write_orders,
)
from tests.by_hand import PostRoom

JOB = JobId("r", 3)


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    return PostRoom(tmp_path)


def test_a_request_comes_back_as_it_was_asked_and_waits_in_order(room: PostRoom) -> None:
    hold = Request(RequestVerb.HOLD, jobs=(JOB,), by="ada", at=1.5)
    pause = Request(RequestVerb.PAUSE, projects=("my project",), preempt=True)
    names = [ask(room.files, room.base, request) for request in (hold, pause)]
    assert pending(room.files, room.base) == names
    assert [read_request(room.files, room.base, name) for name in names] == [hold, pause]
    assert not is_settled(room.files, room.base, names[0])


@pytest.mark.parametrize(
    ("verb", "fields", "says"),
    [
        (RequestVerb.KILL, {}, "kill applies to jobs"),
        (RequestVerb.KILL, {"agents": ("0",)}, "kill applies to jobs"),
        (RequestVerb.PRIORITY, {"runs": ("r",), "value": "5"}, "whole number"),
        (RequestVerb.PRIORITY, {"runs": ("r",), "value": 10**9}, "must be between"),
        (RequestVerb.PAUSE, {"runs": ("../x",)}, "only letters, digits"),
        (RequestVerb.PAUSE, {"projects": ("",)}, "1 to 1000 characters"),
        (RequestVerb.ADD, {"value": "; rm"}, "write GPUs as"),
        (RequestVerb.MOVE, {"jobs": (JOB,), "value": "up"}, "is not a job's id"),
    ],
)
def test_what_could_not_be_carried_out_is_refused(
    room: PostRoom, verb: RequestVerb, fields: dict[str, Any], says: str
) -> None:
    request = Request(verb, **fields)
    with pytest.raises((PostroomError, ValueError), match=says):
        ask(room.files, room.base, request)
    with pytest.raises(BadFileError, match=says):
        Request.decode("r.json", request.encode())
    assert pending(room.files, room.base) == []


def test_many_jobs_are_written_as_ranges(room: PostRoom) -> None:
    jobs = JobIds([*(JobId("r", n) for n in range(70_000)), JobId("q", 1), JobId("r", 70_003)])
    kill = Request(RequestVerb.KILL, jobs=jobs)
    assert len(kill.encode()) < 500
    name = ask(room.files, room.base, kill)
    assert read_request(room.files, room.base, name) == kill


def test_a_request_that_nobody_would_read_is_not_written(
    room: PostRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "REQUEST_LIMIT", 1000)
    monkeypatch.setattr(requests, "MOST_JOBS", 2000)
    many = JobIds(JobId("r", 2 * n) for n in range(1000))
    with pytest.raises(PostroomError, match="name ranges, or fewer jobs"):
        ask(room.files, room.base, Request(RequestVerb.KILL, jobs=many))
    more = JobIds(JobId("r", n) for n in range(2001))
    with pytest.raises(PostroomError, match="2001 jobs are too many at once"):
        ask(room.files, room.base, Request(RequestVerb.KILL, jobs=more))
    assert pending(room.files, room.base) == []


def test_who_asked_is_told_that_the_request_was_refused(room: PostRoom) -> None:
    name = ask(room.files, room.base, Request(RequestVerb.HOLD, jobs=(JOB,)))
    path = Path(room.base.control, name)
    path.chmod(0o600)
    path.write_text("{")  # by an editor, say
    room.step(room.dispatcher())
    with pytest.raises(PostroomError, match="nothing was done: is not a request: it is not JSON"):
        is_settled(room.files, room.base, name)


def test_orders_come_back_as_they_were_written(room: PostRoom) -> None:
    assert read_orders(room.files, room.base) == Orders()
    orders = Orders(
        paused_all=True,
        paused_projects={"b", "a"},
        drained={"0"},
        run_priorities={"r": 5},
        priorities={JOB: -1},
        held={JOB: False},
        positions={JOB: 2.5},
        killed={JOB: "ada"},
    )
    write_orders(room.files, room.base, orders)
    assert read_orders(room.files, room.base) == orders


def test_orders_about_what_has_ended_are_forgotten() -> None:
    orders = Orders(held={JOB: True, JobId("r", 4): True}, run_priorities={"r": 1})
    assert orders.forget(JOB)
    assert not orders.forget(JOB)
    assert orders.forget_run("r")
    assert orders == Orders()


def test_a_stop_order_is_for_one_attempt_and_the_last_one_counts(room: PostRoom) -> None:
    order_stop(room.files, room.base, JOB, StopOrder(2, final=False, reason="paused"))
    order_stop(room.files, room.base, JOB, StopOrder(2, final=True, reason="killed"))
    assert read_stop(room.files, room.base, "r", 3, 2) == StopOrder(2, True, "killed")
    assert read_stop(room.files, room.base, "r", 3, 3) is None
    assert read_stop(room.files, room.base, "r", 4, 2) is None
    assert list_stops(room.files, room.base) == [JOB]


def test_requests_keep_their_order_when_the_clock_is_set_back(
    room: PostRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, files = room.base, room.files
    hours = iter([20, 19, 21, 18])
    monkeypatch.setattr("time.time_ns", lambda: next(hours) * 3_600_000_000_000)
    verbs = [RequestVerb.HOLD, RequestVerb.RELEASE, RequestVerb.HOLD, RequestVerb.RELEASE]
    names = [ask(files, base, Request(verb, jobs=(JOB,))) for verb in verbs]
    assert pending(files, base) == names
    assert [read_request(files, base, name).verb for name in names] == verbs
