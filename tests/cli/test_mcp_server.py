"""`postroom mcp`, asked by the client of the protocol's own library, as an assistant does."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import pytest

from postroom.errors import PostroomError
from postroom.store.base import Base
from tests.queue.kit import FAILURE, end, queue

mcp = pytest.importorskip("mcp")


def ask(base: Base, *calls: tuple[str, dict[str, Any]], options: tuple[str, ...] = ()) -> Any:
    """Start the server, list its tools, call some; return their names, and what came."""
    command = ["-m", "postroom", "mcp", "-b", base.root, *options]

    async def talk() -> tuple[set[str], list[str]]:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=command, env=dict(os.environ)
        )
        async with (
            mcp.stdio_client(server) as (reads, writes),
            mcp.ClientSession(reads, writes) as session,
        ):
            await session.initialize()
            names = {tool.name for tool in (await session.list_tools()).tools}
            said = []
            for name, arguments in calls:
                answer = await session.call_tool(name, arguments)
                said.append("".join(getattr(part, "text", "") for part in answer.content))
            return names, said

    return asyncio.run(talk())


def test_an_assistant_reads_the_queue_and_changes_nothing(base: Base) -> None:
    failed, _ = queue(base, "train", "later")
    end(base, failed, FAILURE)
    calls = [
        ("show_job", {"job": "train"}),
        ("show_job", {}),
        ("list_jobs", {"state": "failed"}),
        ("read_log", {"job": "@"}),
        ("show_job", {"job": "nothing"}),
    ]
    names, said = ask(base, *calls)
    assert names == {"list_gpus", "list_jobs", "show_job", "read_log"}
    assert json.loads(said[0])["job"]["error"] == "exit code 3: no such data"
    assert "no scheduler is running" in json.loads(said[1])["job"]["reason"]
    assert "train" in said[2] and "later" not in said[2]
    assert "no job has the name 'nothing'" in said[4]


def test_an_assistant_that_may_submits_and_kills(base: Base) -> None:
    calls = [
        ("submit_job", {"command": "echo hello", "name": "hi", "cwd": "/"}),
        ("list_jobs", {"text": "hello"}),
        ("submit_job", {"command": "true", "cwd": "/nowhere"}),
    ]
    names, said = ask(base, *calls, options=("--allow-submit",))
    assert {"submit_job", "edit_job", "kill_jobs", "rerun_jobs"} <= names
    assert said[0] in said[1]
    assert "does not exist" in said[2]


def test_a_missing_library_is_named(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    from postroom.cli.mcp_server import make_server

    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(PostroomError, match=r"pip install 'postroom\[mcp\]'"):
        make_server(base, allow_submit=False)
