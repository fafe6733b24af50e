"""The accounts of `postroom gpu report` as a picture: who held GPUs, over time and in all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..gpus.ledger.usage_report import LedgerPast, UsageLine, usage_lines
from .format import WIDTH, hours

CHART_HEIGHT = 150.0
# Columns of the picture for each time range: how many, which fit its length.
COLUMNS = {"1d": 24, "7d": 28, "30d": 30}
PARTS = ("busy", "idle", "unknown")


@dataclass(frozen=True)
class UsagePart:
    """One part of a column or a bar."""

    kind: str  # "busy", "idle", "unknown"
    at: float
    size: float


@dataclass(frozen=True)
class UsageColumn:
    """A part of the time, with what was held in it."""

    x: float
    width: float
    parts: list[UsagePart]
    title: str
    label: str  # below it; "": none


@dataclass(frozen=True)
class UsageRow:
    """One user, project or GPU."""

    name: str
    line: UsageLine
    parts: list[UsagePart]  # of the longest row
    unknown_s: float


@dataclass(frozen=True)
class UsageChart:
    """What a template draws."""

    columns: list[UsageColumn]
    rows: list[UsageRow]
    most_hours: float  # at the top of the picture
    held_s: float
    unknown_s: float


def usage_chart(
    past: LedgerPast, length_s: float, count: int, by: str, name: Callable[[str], str]
) -> UsageChart:
    """Lay out what was held in the time before now; `name` turns a UUID into a GPU's name."""
    since, step = past.now - length_s, length_s / count
    lines = usage_lines(past, since, past.now, by=by)
    longest = max((_held(line) for line in lines), default=0.0) or 1.0
    rows = [
        UsageRow(
            name(line.who) if by == "card" else line.who,
            line,
            _parts(_split(line), WIDTH / longest),
            _split(line)[2],
        )
        for line in lines
    ]
    # Columns begin at full hours and at midnight, so that their labels are short.
    offset = time.localtime(since).tm_gmtoff or 0
    first, last = (since + offset) // step, math.ceil((past.now + offset) / step)
    starts = [place * step - offset for place in range(int(first), last)]
    sums = []
    for start in starts:
        lines_of = usage_lines(past, max(start, since), min(start + step, past.now), by=by)
        found = [_split(line) for line in lines_of]
        sums.append([sum(one[part] for one in found) for part in range(3)])
    highest = max((sum(one) for one in sums), default=0.0) or 1.0
    columns = [
        UsageColumn(
            WIDTH / len(starts) * place + 1,
            WIDTH / len(starts) - 2,
            _parts(one, CHART_HEIGHT / highest),
            f"{_title(start, step)}: {hours(sum(one))} GPU hours",
            _label(start, step),
        )
        for place, (start, one) in enumerate(zip(starts, sums, strict=True))
    ]
    held_s = sum(_held(line) for line in lines)
    unknown_s = sum(row.unknown_s for row in rows)
    return UsageChart(columns, rows, highest / 3600, held_s, unknown_s)


def _held(line: UsageLine) -> float:
    return line.busy_s if line.held_s is None else line.held_s


def _split(line: UsageLine) -> list[float]:
    idle_s = line.idle_s or 0.0
    return [line.busy_s, idle_s, max(0.0, _held(line) - line.busy_s - idle_s)]


def _parts(seconds: list[float], scale: float) -> list[UsagePart]:
    found, at = [], 0.0
    for kind, size in zip(PARTS, seconds, strict=True):
        if size > 0:
            found.append(UsagePart(kind, at * scale, size * scale))
        at += size
    return found


def _title(at: float, step: float) -> str:
    form = "%d %b" if step >= 86400 else "%d %b %H:%M" if step > 3600 else "%H:%M"
    return time.strftime(form, time.localtime(at))


def _label(at: float, step: float) -> str:
    """Below each fourth hour, midnight or fourth day: as many as fit on a phone."""
    then = time.localtime(at)
    if (then.tm_yday if step >= 86400 else then.tm_hour) % 4 or (step > 3600 and then.tm_hour):
        return ""
    return time.strftime("%d %b" if step > 3600 else "%H:%M", then)
