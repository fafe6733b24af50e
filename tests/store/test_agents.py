"""What sessions and the acting Master say about themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from postroom.master import Master
from postroom.store.agents import (
    PROTOCOL,
    AgentInfo,
    MasterInfo,
    list_agents,
    read_agent_info,
    read_master_info,
)
from postroom.store.mailbox import put_up
from tests.by_hand import PostRoom


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    return PostRoom(tmp_path)


def test_agents_are_listed_by_their_mailboxes_in_the_order_of_their_numbers(room: PostRoom) -> None:
    for agent_id in ("10", "2", "s1"):
        put_up(room.files, room.base, agent_id)
    Path(room.base.agent_info("7")).write_text("{}")
    Path(room.base.agent_pool, "a b.POOL").write_text("")
    assert list_agents(room.files, room.base) == ["2", "10", "s1"]


def test_a_session_comes_back_as_it_described_itself(room: PostRoom) -> None:
    info = AgentInfo("0", "GPU-1", "A100", "host", "boot", 12, 34, 5.0, gpus=2, memory_mib=4096)
    Path(room.base.agent_info("0")).write_bytes(info.encode())
    assert read_agent_info(room.files, room.base, "0") == info


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version":1,"pid":0}'])
def test_a_bad_file_is_as_good_as_none(room: PostRoom, data: bytes) -> None:
    Path(room.base.agent_info("0")).write_bytes(data)
    Path(room.base.master_info).write_bytes(data)
    assert read_agent_info(room.files, room.base, "0") is None
    assert read_agent_info(room.files, room.base, "1") is None
    assert read_master_info(room.files, room.base) is None


def test_an_agent_of_another_version_is_one_that_gets_no_letters(room: PostRoom) -> None:
    info = AgentInfo("0", "GPU-1", "A100", "host", "boot", 12, 34, 5.0)
    content = {**json.loads(info.encode()), "shape": "round"}
    Path(room.base.agent_info("0")).write_text(json.dumps(content))
    found = read_agent_info(room.files, room.base, "0")
    assert found is not None and found.protocol != PROTOCOL
    room.run(1)
    room.inbox()
    room.step(room.dispatcher())
    assert room.letter() is None


def test_where_a_later_version_acted_nobody_else_does(room: PostRoom) -> None:
    """The epoch of its letters is not known, so that of ours might be too low."""
    content = {"version": 2, "epoch": {"major": 7}}
    Path(room.base.master_info).write_text(json.dumps(content))
    with Master(room.base.root) as master:
        master.step(0.0)
        assert not master.acting
        assert "it is a Master's info of version 2" in master._blocked, "and says why"
        lock = room.files.try_lock(room.base.master_lock)
        assert lock is not None, "it does not keep others from acting"
        lock.release()


def test_the_master_comes_back_as_it_described_itself(room: PostRoom) -> None:
    assert read_master_info(room.files, room.base) is None
    Path(room.base.master_info).write_bytes(MasterInfo(7, 12, "host").encode())
    assert read_master_info(room.files, room.base) == MasterInfo(7, 12, "host")
