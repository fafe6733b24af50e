"""Numbers and times in the form that people read."""

from __future__ import annotations

import time

import pytest

from postroom.web.format import NONE, clock, count, duration, iso, memory, sentence, short


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, NONE),
        (-1, "0.0 s"),
        (1.26, "1.3 s"),
        (59.4, "59 s"),
        (75, "1 min 15 s"),
        (3 * 3600 + 130, "3 h 2 min"),
        (2 * 86400 + 3600, "2 d 1 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_time_of_today_needs_no_day() -> None:
    now = time.time()
    assert clock(now) == time.strftime("%H:%M:%S", time.localtime(now))
    assert clock(86400.0 * 200) == time.strftime("%Y-%m-%d %H:%M", time.localtime(86400.0 * 200))
    assert (clock(None), iso(None)) == (NONE, "")


def test_numbers_messages_and_ids() -> None:
    assert (memory(512), memory(24 << 10), memory(None)) == ("512 MiB", "24.0 GiB", NONE)
    assert count(1234567) == "1\u202f234\u202f567"
    assert sentence("no such job") == "No such job."
    assert sentence("Really?") == "Really?"
    assert sentence("it is paused; resume it with: postroom resume").endswith("postroom resume")
    assert short("20261117-164202-969a75/3") == "969a75/3"
