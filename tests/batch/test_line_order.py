"""Which lines of a batch start when slots have whole GPUs: by priority."""

from __future__ import annotations

import pytest

from postroom.batch.line_order import InOrder
from postroom.commands.command_source import CommandSourceError
from postroom.commands.spec import CommandSpec
from postroom.store.scheduling import SchedulingOptions

from .test_memory_packer import job, names


def test_with_whole_cards_the_urgent_come_first_and_equals_in_their_order() -> None:
    waiting = InOrder()
    for number, priority in enumerate((0, 0, 5, 1, 5), start=1):
        waiting.add(job(number), CommandSpec("x", scheduling=SchedulingOptions(priority=priority)))
    assert names(waiting.begin(0.0, 2)) == ["job_3", "job_5"]
    assert waiting.begin(0.0, 0) == []
    assert names(waiting.begin(0.0, 9)) == ["job_4", "job_1", "job_2"]
    with pytest.raises(CommandSourceError, match="run the batch with --memory auto"):
        waiting.check(CommandSpec("x", memory="1G"))
