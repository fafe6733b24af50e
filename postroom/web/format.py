"""Numbers and times in the form that people read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from datetime import datetime

from ..store.job_ids import JobId
from ..text.durations import format_duration, format_time

NONE = "\u2013"
WIDTH = 1000.0  # of a chart, in its own units
_COMMAND_AT_END = re.compile(r": postroom [^;]+$")


def duration(seconds: float | None) -> str:
    """A duration in its two largest units."""
    return format_duration(seconds, unknown=NONE)


def clock(at: float | None) -> str:
    """A moment: the time if it is today, else with its date."""
    return format_time(at, unknown=NONE)


def iso(at: float | None) -> str:
    """A time for machines."""
    return datetime.fromtimestamp(at).astimezone().isoformat("T", "seconds") if at else ""


def since(at: float | None) -> str:
    """The duration from a time to now."""
    return duration(time.time() - at) if at else NONE


def memory(mib: float | None) -> str:
    """An amount of memory."""
    if mib is None:
        return NONE
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def count(number: int | None) -> str:
    """A number with a space between thousands."""
    return NONE if number is None else f"{number:,}".replace(",", "\u202f")


def hours(seconds: float) -> str:
    """GPU seconds as hours."""
    return f"{seconds / 3600:.{1 if seconds >= 3600 else 2}f}" if seconds else "0"


def percent(units: float) -> str:
    """A place in a chart, as a part of its width: so its texts keep their size in every window."""
    return f"{units / WIDTH:.2%}"


def among(counts: Mapping[str, int], states: Iterable[str]) -> int:
    """How many of the counted jobs are in one of some states."""
    return sum(counts.get(state, 0) for state in states)


def kind(state: str) -> str:
    """The CSS class of a state."""
    return "state-" + state.replace(" ", "-")


def sentence(message: object) -> str:
    """A message with a capital letter and a full stop; none after a command, which people copy."""
    text = str(message).strip()
    text = text[:1].upper() + text[1:]
    if not text or text.endswith((".", "!", "?", ":")) or _COMMAND_AT_END.search(text):
        return text
    return f"{text}."


def short(job: str) -> str:
    """The short form of a full job id."""
    return JobId.parse(job).short


FILTERS = {
    "duration": duration,
    "clock": clock,
    "iso": iso,
    "since": since,
    "memory": memory,
    "count": count,
    "among": among,
    "hours": hours,
    "percent": percent,
    "kind": kind,
    "sentence": sentence,
    "short": short,
}
