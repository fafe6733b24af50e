"""Durations and times: how people write them (90s, 30m, 2h, 1:30:00), and how they are shown."""

from __future__ import annotations

import re
import time

from ..errors import PostroomError

_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_WITH_UNIT = re.compile(r"(\d+(?:\.\d*)?)\s*(s|min|m|h|d|)", re.ASCII)
_COLONS = re.compile(r"(?:(\d+):)?(\d+):(\d+)", re.ASCII)


def parse_duration(text: str) -> float:
    """Return `90`, `90s`, `1.5m`, `2h`, `7d`, `30:00` or `1:30:00` in seconds."""
    if match := _WITH_UNIT.fullmatch(text.strip()):
        return float(match[1]) * _UNITS[match[2]]
    if match := _COLONS.fullmatch(text.strip()):
        return int(match[1] or 0) * 3600.0 + int(match[2]) * 60 + int(match[3])
    raise PostroomError(f"{text!r} is not a duration: write 90s, 30m, 2h, 7d or 1:30:00")


def format_duration(seconds: float | None, *, unknown: str = "-") -> str:
    """Show a duration in its two largest units: 4.2 s, 3 min 20 s, 5 h 7 min, 2 d 4 h."""
    if seconds is None:
        return unknown
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def write_duration(seconds: float) -> str:
    """A duration as people write it, for `parse_duration`: 90s, 30m, 4h, 2d."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def format_time(at: float | None, *, unknown: str = "-") -> str:
    """Show a moment: only the time if it is today, else the date and the time."""
    if not at:
        return unknown
    then = time.localtime(at)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)
