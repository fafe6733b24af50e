"""Moments as people write them: `22:00`, `fri 20:00`, `now+2h`, `2026-11-20 08:00`."""

from __future__ import annotations

import re
import time

from ..errors import PostroomError
from .durations import parse_duration

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"(?:(\w+) +)?(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2}))?)?", re.ASCII)


def parse_moment(text: str, now: float) -> float:
    """Return a moment as wall-clock time: the next one that fits, never one before `now`."""
    said = text.strip().lower()
    if said == "now":
        return now
    if said.startswith(("now+", "now +", "+")):
        return now + parse_duration(said.partition("+")[2])
    try:
        if match := _DATE.fullmatch(said.upper()):
            numbers = [int(one or 0) for one in match.groups()]
            return _not_past(_at(*numbers), now, text)
        if match := _CLOCK.fullmatch(said):
            return _next(match, now)
    except (ValueError, OverflowError):
        pass
    raise PostroomError(
        f"{text!r} is not a time: write 22:00, 'fri 20:00', 'tomorrow 8:00', now+2h or "
        "'2026-11-20 08:00'"
    )


def moment_words(at: float) -> str:
    """A moment as `parse_moment` reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _next(match: re.Match[str], now: float) -> float:
    word, clock = match[1], [int(one or 0) for one in match.groups()[1:]]
    today = time.localtime(now)
    days = 0
    if word == "tomorrow":
        days = 1
    elif word and word != "today":
        days = (_DAYS.index(word[:3]) - today.tm_wday) % 7
    found = _at(today.tm_year, today.tm_mon, today.tm_mday + days, *clock)
    if found < now:
        if word == "today":
            raise PostroomError(f"{match[0]} is over")
        days += 7 if word else 1
        found = _at(today.tm_year, today.tm_mon, today.tm_mday + days, *clock)
    return found


def _at(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float:
    if not (hour < 24 and minute < 60 and second < 60 and 1 <= month <= 12):
        raise ValueError
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))


def _not_past(at: float, now: float, text: str) -> float:
    if at < now:
        raise PostroomError(f"{text} is over")
    return at
