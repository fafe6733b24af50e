"""Projects of one queue share its GPUs: who has used less lately goes first."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.queue.queue_view import QueueView
from postroom.session.inbox import Inbox, Step
from postroom.store.project_shares import (
    ProjectShares,
    half_life_s,
    levels,
    read_use,
    write_use,
)
from tests.dispatch.test_request_executor import QueueRoom, run_command

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


@pytest.fixture
def room(tmp_path: Path) -> QueueRoom:
    return QueueRoom(tmp_path)


class Agents:
    """Four agents whose jobs take as many minutes as their names say."""

    def __init__(self, room: QueueRoom) -> None:
        self.room = room
        self.inboxes: dict[str, Inbox] = {
            agent: room.inbox(agent, run_job=run_command) for agent in "0123"
        }
        self.ends: dict[str, float] = {}
        self.used_s: dict[str, float] = {}
        self.dispatcher = room.dispatcher()

    def run(self, seconds: float) -> None:
        until = self.room.clock.now + seconds
        while self.room.clock.now < until:
            self.dispatcher.step(self.room.clock.now)
            for agent, inbox in self.inboxes.items():
                name = self.room.sent(agent)
                if name is None:
                    continue
                if agent not in self.ends:
                    self.ends[agent] = self.room.clock.now + int(name.split()[1]) * MINUTE
                project = name.split()[0]
                self.used_s[project] = self.used_s.get(project, 0.0) + MINUTE
                if self.ends[agent] <= self.room.clock.now + MINUTE:
                    del self.ends[agent]
                    while inbox.step() is Step.WORKED:
                        pass
            self.room.clock.now += MINUTE


def test_two_projects_use_the_same_however_many_jobs_they_queue_and_however_long(
    room: QueueRoom,
) -> None:
    room.queue(*["many 2"] * 100, project="many")
    room.queue(*["few 24"] * 5, project="few")
    agents = Agents(room)
    agents.run(HOUR)
    assert sum(agents.used_s.values()) == 4 * HOUR  # no agent was idle
    assert agents.used_s["few"] == pytest.approx(2 * HOUR, rel=0.1)


def test_long_jobs_count_before_they_end(room: QueueRoom) -> None:
    room.queue(*["long 60"] * 8, project="long")
    room.queue(*["short 2"] * 100, project="short")
    agents = Agents(room)
    agents.run(HOUR)
    assert agents.used_s["short"] >= 50 * MINUTE  # it is not shut out until the first has ended


def test_the_next_master_knows_what_was_used_and_the_listing_shows_whose_turn_it_is(
    room: QueueRoom,
) -> None:
    used = ProjectShares()
    used.add("p", HOUR, time.time())
    write_use(room.files, room.base, used)
    room.queue("p 1", "p 2", project="p")
    room.queue("q 1", "q 2", project="q")
    room.queue("p 3", project="p", priority=1)
    with QueueView(room.base) as view:
        listed = [row.name for row in view.jobs(state="queued").jobs]
    assert listed == ["p 3", "q 1", "q 2", "p 1", "p 2"]
    assert room.order(room.dispatcher(), room.inbox(run_job=run_command)) == listed


def test_what_agents_did_counts_whatever_came_of_it(room: QueueRoom) -> None:
    room.queue("p 1", project="p")
    dispatcher = room.dispatcher()
    inbox = room.inbox(run_job=run_command)
    room.look(dispatcher)
    room.clock.now += 100.0
    while inbox.step() is Step.WORKED:
        pass
    room.look(dispatcher)
    room.clock.now += 20.0
    room.look(dispatcher)
    assert read_use(room.files, room.base).used_s(room.clock.wall())["p"] > 100.0


def test_use_fades_and_programs_take_turns_with_who_is_next() -> None:
    use = ProjectShares()
    use.add("a", 1000.0, 0.0)
    assert use.used_s(3 * DAY)["a"] == pytest.approx(500.0)
    use.half_life_s = DAY
    assert use.used_s(3 * DAY)["a"] == pytest.approx(125.0)
    use.forget_faded(60 * DAY)
    assert use.accounts == {}
    assert levels({"a": 130.0, "b": 59.0}, {"a", "b", "c", ""}) == {"": 0, "a": 2, "b": 0, "c": 0}


def test_the_scheduler_sets_the_half_life_and_listings_know_it(
    room: QueueRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_HALF_LIFE", "12h")
    assert half_life_s() == 12 * HOUR
    write_use(room.files, room.base, ProjectShares(half_life_s=half_life_s()))
    assert read_use(room.files, room.base).half_life_s == 12 * HOUR
    for wrong in ("soon", "0", "5s"):
        monkeypatch.setenv("POSTROOM_HALF_LIFE", wrong)
        with pytest.raises(PostroomError, match="write a time"):
            half_life_s()
