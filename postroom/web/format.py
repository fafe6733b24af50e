"""Numbers and times in the form that people read."""

from __future__ import annotations

import re
import time
from datetime import datetime

from ..store.job_ids import JobId

NONE = "\u2013"
_COMMAND_AT_END = re.compile(r": postroom [^;]+$")


def duration(seconds: float | None) -> str:
    """A duration in its two largest units."""
    if seconds is None:
        return NONE
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def clock(at: float | None) -> str:
    """A time of today; with the day, or the year, when it is not today."""
    if not at:
        return NONE
    then, now = datetime.fromtimestamp(at), datetime.now()
    if then.date() == now.date():
        return f"{then:%H:%M:%S}"
    return f"{then:%d %b %H:%M}" if then.year == now.year else f"{then:%d %b %Y}"


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
    "kind": kind,
    "sentence": sentence,
    "short": short,
}
