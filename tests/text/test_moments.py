"""Moments as people write them."""

from __future__ import annotations

import time

import pytest

from postroom.errors import PostroomError
from postroom.text.moments import parse_moment

# A Wednesday, at ten.
NOW = time.mktime((2026, 11, 18, 10, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("now", "Wed 18 10:00"),
        ("now+2h", "Wed 18 12:00"),
        ("+30m", "Wed 18 10:30"),
        ("22:00", "Wed 18 22:00"),
        ("8:30", "Thu 19 08:30"),  # today it is over
        ("fri 20:00", "Fri 20 20:00"),
        ("Friday 20:00", "Fri 20 20:00"),
        ("wed 9:00", "Wed 25 09:00"),
        ("wed 11:00", "Wed 18 11:00"),
        ("tomorrow 8:00", "Thu 19 08:00"),
        ("today 11:00", "Wed 18 11:00"),
        ("2026-11-30 08:00", "Mon 30 08:00"),
        ("2026-11-30T08:00:30", "Mon 30 08:00"),
    ],
)
def test_a_moment_is_the_next_one_that_fits(text: str, shown: str) -> None:
    assert time.strftime("%a %d %H:%M", time.localtime(parse_moment(text, NOW))) == shown


@pytest.mark.parametrize("text", ["", "noon", "25:00", "12:61", "someday 8:00", "2026-13-01 8:00"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(PostroomError, match="is not a time: write 22:00"):
        parse_moment(text, NOW)


@pytest.mark.parametrize("text", ["2020-01-01", "today 9:00"])
def test_what_is_over_is_refused(text: str) -> None:
    with pytest.raises(PostroomError, match="is over"):
        parse_moment(text, NOW)
