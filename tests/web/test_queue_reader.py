"""The page's reader: one thread, shared overviews, and actions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.errors import PostroomError
from postroom.queue.actions import ActionInput
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.requests import pending
from postroom.web.queue_reader import QueueReader
from postroom.web.submit_plan import SubmitForm


def test_an_action_is_a_request_and_the_next_overview_is_new(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")

    async def use() -> None:
        reader = QueueReader(base)
        first = await reader.overview()
        assert await reader.overview() is first
        jobs = await reader.submit([CommandSpec("true", cwd="/")], SubmitForm(project="p"))
        assert (await reader.overview()).counts == {"queued": 1}
        result, done = await reader.act("jobs", "hold", ActionInput(jobs=jobs))
        assert not done, "no scheduler is there to carry it out"
        assert pending(LocalFiles(), base) == [result.request]
        with pytest.raises(PostroomError, match="not a verb for jobs"):
            await reader.act("jobs", "pause", ActionInput(jobs=jobs))
        reader.close()

    asyncio.run(use())
