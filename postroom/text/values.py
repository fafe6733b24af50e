"""Values as people write them: times (90s, 30m, 2h, 1:30:00), arrays (1-100:5), NAME=VALUE."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_WITH_UNIT = re.compile(r"(\d+(?:\.\d*)?)\s*(s|min|m|h|d|)", re.ASCII)
_ARRAY = re.compile(r"(\d{1,9})-(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
MOST_ARRAY = 100_000
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)", re.ASCII)


def duration(text: str) -> float:
    """Return it in seconds, or say how it is written: for click's `type=`."""
    if match := _WITH_UNIT.fullmatch(text.strip()):
        return float(match[1]) * _UNITS[match[2]]
    if match := _CLOCK.fullmatch(text.strip()):
        return int(match[1] or 0) * 3600.0 + int(match[2]) * 60 + int(match[3])
    raise click.BadParameter(f"{text!r} is no time: write it as 90s, 30m, 2h, 7d or 1:30:00")


def array(text: str) -> Sequence[int]:
    """Numbers as grid engine writes them: 1-100 or 1-100:5."""
    match = _ARRAY.fullmatch(text)
    if (
        match is None
        or not int(match[1]) <= int(match[2])
        or (match[3] is not None and not int(match[3]))
    ):
        raise click.BadParameter(f"{text!r} is no array: write it as 1-100 or 1-100:5")
    numbers = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
    if len(numbers) > MOST_ARRAY:
        raise click.BadParameter(f"{text!r} means {len(numbers)} jobs; at most {MOST_ARRAY}")
    return numbers


def environment(pairs: Sequence[str]) -> dict[str, str]:
    """What several --env NAME=VALUE mean."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--env {pair!r}: write NAME=VALUE")
        found[name] = value
    return found
