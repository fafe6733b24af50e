"""Which agents are started, and when again: on a real folder, with a clock by hand."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from postroom.dispatch.agent_starter import AgentStarter
from postroom.store.agents import AgentInfo
from postroom.store.base import create_base
from postroom.store.files import LocalFiles, LocalLock
from postroom.store.journal import NullJournal
from postroom.store.requests import Request, RequestVerb
from postroom.store.wanted_agents import WantedAgents, read_wanted, write_wanted


class Starter:
    """Starts nothing, and remembers what it was asked to."""

    def __init__(self) -> None:
        self.started: list[tuple[str, str]] = []
        self.removed: list[str] = []
        self.running: set[str] = set()
        self.pilots_kept = 0

    def start_kept(self, agent_id: str, gpus: str, *, among: int, share: bool = False) -> None:
        self.started.append((agent_id, gpus))
        self.running.add(agent_id)

    def is_starting(self, agent_id: str) -> bool:
        return agent_id in self.running

    def last_words(self, agent_id: str) -> str:
        return "it fell"

    def remove(self, agents: Collection[str], *, now: bool) -> None:
        self.removed += agents

    def keep_pilots(self) -> None:
        self.pilots_kept += 1


class Room:
    """A base, its AgentStarter, and sessions that live or die as the test says."""

    def __init__(self, folder: Path) -> None:
        self.files = LocalFiles()
        self.base = create_base(folder / "base")
        self.starter = Starter()
        self.locks: dict[str, LocalLock] = {}
        self.now = 100.0
        self.agent_starter = self.new_starter()

    def new_starter(self) -> AgentStarter:
        return AgentStarter(self.files, self.base, NullJournal(), self.starter)

    def ask(self, verb: RequestVerb, **fields: object) -> bool:
        return self.agent_starter.carry_out(Request(verb, **fields))  # type: ignore[arg-type]

    def after(self, seconds: float) -> list[tuple[str, str]]:
        """What was started since."""
        self.starter.started.clear()
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            self.agent_starter.step(self.now)
        return self.starter.started

    def live(self, agent_id: str) -> None:
        lock = self.files.try_lock(self.base.agent_lock(agent_id))
        assert lock is not None
        self.locks[agent_id] = lock

    def die(self, agent_id: str) -> None:
        self.locks.pop(agent_id).release()
        self.starter.running.discard(agent_id)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_what_is_wanted_and_missing_is_started_once(room: Room) -> None:
    assert room.after(1) == []
    room.live("1")
    assert room.ask(RequestVerb.ADD, value="0;1;2,3;")
    assert room.after(1) == [("0", "0"), ("2-3", "2,3")]
    assert room.after(5) == []  # they are starting
    assert read_wanted(room.files, room.base) == WantedAgents({"0": "0", "1": "1", "2-3": "2,3"})


def test_a_session_that_dies_is_back_within_a_second_and_later_the_more_it_dies(room: Room) -> None:
    room.ask(RequestVerb.ADD, value="0;")
    room.after(1)
    pauses = []
    for _ in range(9):
        room.live("0")
        room.after(1)
        room.die("0")
        pauses.append(0.0)
        while not room.after(0.5):
            pauses[-1] += 0.5
    assert pauses[0] < 1.0
    assert pauses == sorted(pauses) and 20 < pauses[-1] <= 61


def test_a_session_that_was_well_for_a_minute_begins_anew(room: Room) -> None:
    room.ask(RequestVerb.ADD, value="0;")
    room.after(1)
    for _ in range(6):
        room.live("0")
        room.after(1)
        room.die("0")
        while not room.after(0.5):
            pass
    room.live("0")
    room.after(61)
    room.die("0")
    assert room.after(1.5) == [("0", "0")]


def test_one_that_never_takes_its_lock_is_started_again_with_a_pause(room: Room) -> None:
    room.ask(RequestVerb.ADD, value="0;")
    room.after(1)
    room.starter.running.clear()  # it could not start
    assert len(room.after(10)) < 5


def test_what_is_not_wanted_or_down_is_not_started(room: Room) -> None:
    room.ask(RequestVerb.ADD, value="0;1;")
    room.ask(RequestVerb.REMOVE, agents=("1",))
    room.ask(RequestVerb.DOWN, everything=True)
    assert room.after(2) == []
    room.ask(RequestVerb.UP, everything=True)
    assert room.after(1) == [("0", "0")]
    room.ask(RequestVerb.REMOVE, everything=True)
    assert read_wanted(room.files, room.base) == WantedAgents({})


def test_the_next_master_keeps_the_same_agents(room: Room) -> None:
    room.ask(RequestVerb.ADD, value="0;")
    room.agent_starter = room.new_starter()
    assert room.after(1) == [("0", "0")]


def test_a_list_that_cannot_be_read_starts_nothing_and_is_not_replaced(room: Room) -> None:
    write_wanted(room.files, room.base, WantedAgents({"0": "0"}))
    Path(room.base.wanted_agents).write_text("{")
    room.agent_starter = room.new_starter()
    assert not room.ask(RequestVerb.ADD, value="1;")  # the request waits
    assert room.after(2) == [] and Path(room.base.wanted_agents).read_text() == "{"
    write_wanted(room.files, room.base, WantedAgents({"0": "0"}))
    assert room.after(2) == [("0", "0")]


def test_only_sessions_that_nobody_keeps_are_stopped_by_hand(room: Room) -> None:
    for agent_id, kept in (("0", True), ("1", False)):
        info = AgentInfo(agent_id, "GPU-1", "A100", "host", "boot", 12, 34, 5.0, kept=kept)
        Path(room.base.agent_info(agent_id)).write_bytes(info.encode())
    room.agent_starter.stop_others(["0", "1", "7"], now=False)
    assert room.starter.removed == ["1"]
