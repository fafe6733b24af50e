"""The history as a chart: a row for each agent and GPU, a bar for each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..queue.rows import Interval, JobDetail
from .format import WIDTH, clock, duration, kind

ROW = 26
# Narrower bars are joined, so that a day of small jobs can still be drawn.
NARROWEST = 1.5
MOST_BARS = 4000
_STEPS_S = (10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400)


@dataclass
class GanttBar:
    """One job, or several short ones drawn as one."""

    x: float
    width: float
    kind: str
    title: str
    job: str  # full id; "" for several


@dataclass
class GanttRow:
    """One agent on its GPU."""

    label: str
    y: int
    bars: list[GanttBar] = field(default_factory=list)
    busy: float = 0.0  # per cent of the chart's time


@dataclass
class Chart:
    """A chart that a template can draw."""

    rows: list[GanttRow]
    ticks: list[tuple[float, str]]
    height: int
    left_out: int


def chart(
    intervals: Sequence[Interval], since: float, until: float, name: Callable[[str], str]
) -> Chart:
    """Lay out what ran between two times; `name` turns a UUID into a GPU's name."""
    now = time.time()
    scale = WIDTH / max(until - since, 1e-9)
    by_slot: dict[tuple[str, str], list[Interval]] = {}
    for interval in intervals:
        by_slot.setdefault((name(interval.gpu), interval.agent), []).append(interval)
    rows: list[GanttRow] = []
    left_out = drawn = 0
    for place, slot in enumerate(sorted(by_slot, key=_natural)):
        row = GanttRow(_label(*slot), y=place * ROW)
        for one in sorted(by_slot[slot], key=lambda item: item.started_at):
            begin = max(one.started_at, since)
            end = min(one.ended_at if one.ended_at is not None else now, until)
            if end < begin:
                continue
            row.busy += end - begin
            x, width = (begin - since) * scale, (end - begin) * scale
            last = row.bars[-1] if row.bars else None
            if (
                last is not None
                and width < NARROWEST
                and last.width < 4 * NARROWEST
                and x - (last.x + last.width) < NARROWEST / 2
                and last.kind == kind(one.outcome)
            ):
                last.width = max(last.width, x + width - last.x)
                last.title, last.job = "several short jobs", ""
            elif drawn < MOST_BARS:
                drawn += 1
                row.bars.append(
                    GanttBar(
                        x,
                        max(width, NARROWEST),
                        kind(one.outcome),
                        _title(one, begin, end),
                        one.job,
                    )
                )
            else:
                left_out += 1
        row.busy = 100 * row.busy / max(until - since, 1e-9)
        rows.append(row)
    return Chart(rows, _ticks(since, until, scale), max(len(rows), 1) * ROW, left_out)


def _label(gpu: str, agent: str) -> str:
    return f"agent {agent} · {gpu}" if gpu else f"agent {agent}"


def _title(one: Interval, begin: float, end: float) -> str:
    name = f"{one.short} {one.name}".strip()
    return f"{name}: {one.outcome}, {duration(end - begin)} from {clock(begin)}"


def _ticks(since: float, until: float, scale: float) -> list[tuple[float, str]]:
    span = until - since
    step = next((step for step in _STEPS_S if span / step <= 8), _STEPS_S[-1])
    offset = time.localtime(since).tm_gmtoff or 0
    at = since + step - (since + offset) % step
    found: list[tuple[float, str]] = []
    while at < until and len(found) < 20:
        form = "%d %b" if step >= 86400 else "%H:%M" if step >= 60 else "%H:%M:%S"
        found.append(((at - since) * scale, time.strftime(form, time.localtime(at))))
        at += step
    return found


def _natural(slot: tuple[str, str]) -> tuple[int, str, int, str]:
    gpu, agent = slot
    return len(gpu), gpu, len(agent), agent


def timeline(detail: JobDetail) -> list[GanttBar]:
    """The timeline of one job: when it waited, and when each attempt ran."""
    job = detail.job
    begin = job.submitted_at
    tries = [one for one in detail.attempts if one.started_at is not None]
    end = job.ended_at or time.time()
    if not begin or end <= begin:
        return []
    scale = WIDTH / (end - begin)
    found: list[GanttBar] = []
    at = begin
    for one in sorted(tries, key=lambda one: one.started_at or 0.0):
        start = min(max(one.started_at or at, at), end)
        stop = min(one.ended_at if one.ended_at is not None else end, end)
        _add(found, begin, scale, at, start, "waits", "waiting")
        title = f"attempt {one.number}: {one.outcome}"
        _add(found, begin, scale, start, stop, kind(one.outcome), title)
        at = max(stop, start)
    if not job.ended_at and not (tries and tries[-1].ended_at is None):
        _add(found, begin, scale, at, end, "waits", "waiting")
    return found


def _add(
    bars: list[GanttBar],
    begin: float,
    scale: float,
    start: float,
    stop: float,
    kind: str,
    title: str,
) -> None:
    if stop > start:
        width = max((stop - start) * scale, NARROWEST)
        what = f"{title}, {duration(stop - start)}"
        bars.append(GanttBar((start - begin) * scale, width, kind, what, ""))
