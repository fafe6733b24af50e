"""What sessions and the acting Master say about themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.store.agents import (
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


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version":1,"agent":"0"}'])
def test_a_bad_file_is_as_good_as_none(room: PostRoom, data: bytes) -> None:
    Path(room.base.agent_info("0")).write_bytes(data)
    Path(room.base.master_info).write_bytes(data)
    assert read_agent_info(room.files, room.base, "0") is None
    assert read_agent_info(room.files, room.base, "1") is None
    assert read_master_info(room.files, room.base) is None


def test_the_master_comes_back_as_it_described_itself(room: PostRoom) -> None:
    assert read_master_info(room.files, room.base) is None
    Path(room.base.master_info).write_bytes(MasterInfo(7, 12, "host").encode())
    assert read_master_info(room.files, room.base) == MasterInfo(7, 12, "host")
