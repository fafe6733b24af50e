"""Scheduling options as they are stored among a job's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import PostroomError
from postroom.store.job_ids import JobId
from postroom.store.scheduling import MOST_PRIORITY, SchedulingOptions, check_priority


@pytest.mark.parametrize(
    "options",
    [
        SchedulingOptions(),
        SchedulingOptions(5, True, (JobId("r", 1),), (JobId("s", 2),), gpus=2, memory_mib=9),
    ],
)
def test_options_come_back_as_they_were(options: SchedulingOptions) -> None:
    assert SchedulingOptions.decode(options.encode()) == options


def test_defaults_are_not_stored() -> None:
    assert SchedulingOptions().encode() == {}
    assert SchedulingOptions(priority=3).encode() == {"priority": 3}


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {"priority": "high"},
        {"priority": -MOST_PRIORITY - 1},
        {"held": 1},
        {"after": ["../x"]},
        {"after": "r/1"},
        {"gpus": -1},
        {"memory_mib": 1 << 41},
        {"colour": "red"},
    ],
)
def test_anything_else_is_a_value_error(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        SchedulingOptions.decode(fields)


def test_a_priority_has_limits() -> None:
    assert check_priority(-MOST_PRIORITY) == -MOST_PRIORITY
    with pytest.raises(PostroomError, match="must be between"):
        check_priority(MOST_PRIORITY + 1)
