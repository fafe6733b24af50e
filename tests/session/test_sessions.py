"""The sessions of a base, started and stopped from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.gpus.cards.gpu_list import SlotSpec
from postroom.session.sessions import COMMANDS_ONLY, Sessions, SlotsFailed
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.store.snapshot import living_agent
from postroom.store.wanted_agents import WantedAgents, write_wanted
from postroom.testing import wait_until

FILES = LocalFiles()


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def sessions(base: Base, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    # A fork of pytest has its captured stderr, and cannot print.
    monkeypatch.setattr(Sessions, "_start", Sessions._spawn)
    made = Sessions(base, say=said.append, options=COMMANDS_ONLY)
    yield made
    made.stop_now()


def lives(base: Base, agent: str) -> bool:
    return living_agent(FILES, base, agent) is not None


def test_a_block_has_the_sessions_that_it_asks_for(base: Base, said: list[str]) -> None:
    with Sessions(base, 2, say=said.append, options={"preload": ""}):
        assert FILES.exists(base.mailbox("0")) and FILES.exists(base.mailbox("1"))
    assert not lives(base, "0") and not lives(base, "1")
    assert said[0].startswith("starting agents 0, 1")
    assert "stop: postroom agents stop" in said[1]
    assert said[-1] == "agent 1 stopped"


def test_a_block_leaves_a_session_alone_that_was_there_before(
    base: Base, sessions: Sessions, said: list[str]
) -> None:
    sessions.start([SlotSpec("0", "cpu")])
    with Sessions(base, 2, say=said.append, options={"preload": ""}):
        assert lives(base, "1")
    assert lives(base, "0") and not lives(base, "1")
    assert any(line.startswith("agent 0 is running already") for line in said)


def test_a_session_that_cannot_start_is_an_error_with_its_last_line(base: Base) -> None:
    with pytest.raises(PostroomError, match=r"agent 9 could not start: .*9"):
        Sessions(base, say=print).start([SlotSpec("0", "cpu"), SlotSpec("9", "9")])
    assert not lives(base, "0")


def test_a_kept_session_that_dies_is_started_again(base: Base, sessions: Sessions) -> None:
    sessions.keep([SlotSpec("0", "cpu")])
    first = wait_until(lambda: living_agent(FILES, base, "0"))
    wait_until(lambda: FILES.exists(base.mailbox("0")))
    sessions._processes["0"].kill()
    sessions._processes["0"].wait()

    def restarted() -> bool:
        sessions.step(time.monotonic())
        now = living_agent(FILES, base, "0")
        return now is not None and now.pid != first.pid

    wait_until(restarted, folder=base.root)


def test_a_slot_that_is_not_kept_any_more_ends(base: Base, sessions: Sessions) -> None:
    sessions.keep([SlotSpec("0", "cpu"), SlotSpec("1", "cpu")])
    wait_until(lambda: lives(base, "0") and lives(base, "1"))
    sessions.keep([SlotSpec("1", "cpu")])
    wait_until(lambda: not lives(base, "0"), folder=base.root)
    assert lives(base, "1")


def test_a_slot_is_given_up_and_the_last_one_with_an_error(
    base: Base, sessions: Sessions, said: list[str]
) -> None:
    sessions.keep([SlotSpec("8", "8"), SlotSpec("9", "9")])

    def all_given_up() -> bool:
        try:
            sessions.step(time.monotonic())
        except SlotsFailed as error:
            return "no session can start" in str(error)
        return False

    wait_until(all_given_up, folder=base.root)
    assert len([line for line in said if "is given up" in line]) == 1


def test_to_stop_an_agent_that_does_not_live_is_said(base: Base, said: list[str]) -> None:
    Sessions(base, say=said.append).stop(["7"])
    assert said == ["agent 7 is not running"]


def test_a_master_starts_and_stops_sessions_without_waiting(base: Base) -> None:
    master = Sessions(base)
    master.start_kept("cpu", "cpu", among=1)
    assert master.is_starting("cpu") and not master.is_starting("0")
    wait_until(lambda: FILES.exists(base.mailbox("cpu")), folder=base.root)
    info = living_agent(FILES, base, "cpu")
    assert info is not None and info.kept
    write_wanted(FILES, base, WantedAgents({"0": "0"}))  # and not this one
    wait_until(lambda: not lives(base, "cpu"), folder=base.root)
    wait_until(lambda: not master.is_starting("cpu"), folder=base.root)
