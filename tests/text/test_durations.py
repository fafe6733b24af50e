"""Durations and times: read and shown."""

from __future__ import annotations

import time

import pytest

from postroom.errors import PostroomError
from postroom.text.durations import (
    format_duration,
    format_time,
    parse_duration,
    write_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5 m", 90),
        ("15m", 900),
        ("15min", 900),
        ("2h", 7200),
        ("1.5d", 129600),
        ("30:00", 1800),
        ("1:30:00", 5400),
        ("0", 0),
    ],
)
def test_durations_are_read_with_their_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_duration_is_written_as_people_write_it() -> None:
    assert [*map(write_duration, (1.5, 90, 5400, 14400, 172800))] == [
        "1.5s",
        "90s",
        "90m",
        "4h",
        "2d",
    ]


@pytest.mark.parametrize("text", ["", "soon", "-1", "1w", "1h30m", "inf", "nan", "1:2:3:4", "²s"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(PostroomError, match="write 90s, 30m, 2h"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1.0, "0.0 s"),
        (4.23, "4.2 s"),
        (59.4, "59 s"),
        (200, "3 min 20 s"),
        (5 * 3600 + 420, "5 h 7 min"),
        (2 * 86_400 + 4 * 3600, "2 d 4 h"),
    ],
)
def test_durations_are_shown_in_their_two_largest_units(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


def test_times_of_today_are_shown_without_their_date() -> None:
    now = time.time()
    assert format_time(now) == time.strftime("%H:%M:%S", time.localtime(now))
    assert format_time(now - 10 * 86_400).startswith("20")
    assert format_time(None, unknown="?") == "?"
