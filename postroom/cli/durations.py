"""Lengths of time as people write them: 90, 90s, 30m, 2h, 1.5d, 1:30:00."""

from __future__ import annotations

import re

import click

_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_WITH_UNIT = re.compile(r"(\d+(?:\.\d*)?)\s*(s|min|m|h|d|)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)", re.ASCII)


def duration(text: str) -> float:
    """Return it in seconds, or say how it is written: for click's `type=`."""
    if match := _WITH_UNIT.fullmatch(text.strip()):
        return float(match[1]) * _UNITS[match[2]]
    if match := _CLOCK.fullmatch(text.strip()):
        return int(match[1] or 0) * 3600.0 + int(match[2]) * 60 + int(match[3])
    raise click.BadParameter(f"{text!r} is no time: write it as 90s, 30m, 2h, 7d or 1:30:00")
