"""Scheduling options as they are stored among a job's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import PostroomError
from postroom.store.job_ids import JobId
from postroom.store.scheduling import (
    MOST_PRIORITY,
    SchedulingOptions,
    check_priority,
    check_require,
    will_do,
)


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


@pytest.mark.parametrize(
    ("require", "fits"),
    [
        ("", True),
        ("a100", True),
        ("H100", False),
        ("H100|A100", True),
        ("H100|40G", True),
        ("80G", False),
        ("A100 80G|H100", False),
        ("nvidia 40GiB", True),
    ],
)
def test_kinds_of_cards_are_names_or_sizes(require: str, fits: bool) -> None:
    assert will_do(require, "NVIDIA A100-SXM4-40GB", 39_900) == fits


@pytest.mark.parametrize("require", ["|", "A100|", " "])
def test_a_kind_without_words_is_refused(require: str) -> None:
    with pytest.raises(PostroomError, match="names no kind of GPU"):
        check_require(require)
