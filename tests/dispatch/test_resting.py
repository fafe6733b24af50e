"""Agents without their GPU: whom the acting Master calls, and when it stops calling."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.dispatch.dispatcher import Dispatcher
from postroom.session.rest import RestFile
from postroom.store.agents import AgentInfo
from postroom.store.requests import Request, RequestVerb, ask
from tests.by_hand import PostRoom


class RestingRoom(PostRoom):
    """A base with agents that rest."""

    def rest(self, agent_id: str, **changes: int) -> RestFile:
        lock = self.files.try_lock(self.base.agent_lock(agent_id))
        assert lock is not None
        self.locks[agent_id] = lock
        info = AgentInfo(agent_id, "GPU-1", "A100", "host", "boot", 12, 34, 5.0, **changes)
        Path(self.base.agent_info(agent_id)).write_bytes(info.encode())
        rest_file = RestFile(self.files, self.base, agent_id)
        rest_file.put_up()
        return rest_file

    def look(self, dispatcher: Dispatcher, after: float = 0.1) -> None:
        dispatcher.hint()
        self.step(dispatcher, after=after)


@pytest.fixture
def room(tmp_path: Path) -> RestingRoom:
    return RestingRoom(tmp_path)


def test_nobody_is_called_without_work_and_one_agent_for_one_job(room: RestingRoom) -> None:
    rest_files = [room.rest(agent_id) for agent_id in "012"]
    dispatcher = room.dispatcher()
    room.look(dispatcher)
    assert not any(rest_file.is_called() for rest_file in rest_files)
    room.run(1)
    room.look(dispatcher)
    assert [rest_file.is_called() for rest_file in rest_files] == [True, False, False]
    room.look(dispatcher, after=0.5)
    assert [rest_file.is_called() for rest_file in rest_files] == [True, False, False]


def test_another_is_called_for_the_same_job_when_the_first_does_not_come(room: RestingRoom) -> None:
    rest_files = [room.rest(agent_id) for agent_id in "01"]
    room.run(1)
    dispatcher = room.dispatcher()
    room.look(dispatcher)
    room.look(dispatcher, after=1.1)
    assert [rest_file.is_called() for rest_file in rest_files] == [True, True]


def test_an_agent_that_has_its_gpu_is_expected_and_its_letter_ends_the_calls(
    room: RestingRoom,
) -> None:
    rest_files = [room.rest(agent_id) for agent_id in "01"]
    room.run(1)
    dispatcher = room.dispatcher()
    room.look(dispatcher)
    rest_files[0].take_down()  # it has its GPU, and its worker is being started
    for _ in range(3):
        room.look(dispatcher, after=1.1)
        assert not rest_files[1].is_called()
    room.locks.pop("0").release()
    room.inbox("0")
    room.look(dispatcher)
    assert room.letter("0") is not None and not rest_files[1].is_called()


def test_a_call_is_taken_back_when_others_have_taken_the_jobs(room: RestingRoom) -> None:
    rest_file = room.rest("1")
    room.run(1)
    dispatcher = room.dispatcher()
    room.look(dispatcher)
    assert rest_file.is_called()
    room.inbox("0")
    room.look(dispatcher)
    assert room.letter("0") is not None and not rest_file.is_called()


def test_a_drained_agent_and_one_of_another_version_are_not_called(room: RestingRoom) -> None:
    drained, old = room.rest("0"), room.rest("1", protocol=1)
    room.run(2)
    ask(room.files, room.base, Request(RequestVerb.DRAIN, agents=("0",)))
    dispatcher = room.dispatcher()
    room.look(dispatcher)
    assert not drained.is_called() and not old.is_called()


def test_a_master_takes_over_the_calls_of_the_one_before_it(room: RestingRoom) -> None:
    rest_file = room.rest("0")
    room.run(1)
    room.look(room.dispatcher())
    assert rest_file.is_called()
    room.inbox("1")
    dispatcher = room.dispatcher()
    room.look(dispatcher)
    assert room.letter("1") is not None and not rest_file.is_called()


def test_the_bell_of_a_dead_agent_is_removed(room: RestingRoom) -> None:
    room.rest("0")
    dispatcher = room.dispatcher()
    room.look(dispatcher)
    room.die("0")
    room.look(dispatcher, after=1.1)
    assert not room.files.exists(room.base.rest("0"))
    assert not room.files.exists(room.base.agent_info("0"))
