"""Figures and times as people read them."""

from __future__ import annotations

import time
from datetime import datetime

from ..store.job_ids import JobId
from ..text.durations import format_duration, format_time

NONE = "\u2013"


def duration(seconds: float | None) -> str:
    """A duration in its two largest units."""
    return format_duration(seconds, unknown=NONE)


def clock(at: float | None) -> str:
    """A moment: the time if it is today, else with its date."""
    return format_time(at, unknown=NONE)


def iso(at: float | None) -> str:
    """When, for machines."""
    return datetime.fromtimestamp(at).astimezone().isoformat("T", "seconds") if at else ""


def since(at: float | None) -> str:
    """How long it has been."""
    return duration(time.time() - at) if at else NONE


def memory(mib: float | None) -> str:
    """An amount of memory."""
    if mib is None:
        return NONE
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def count(number: int | None) -> str:
    """A number with its thousands apart."""
    return NONE if number is None else f"{number:,}".replace(",", "\u202f")


def kind(state: str) -> str:
    """The class that gives a state its colour."""
    return "state-" + state.replace(" ", "-")


def sentence(said: object) -> str:
    """What somebody said, as a sentence."""
    text = str(said).strip()
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?", ":")) else f"{text}."


def short(job: str) -> str:
    """What people type of a whole id."""
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
