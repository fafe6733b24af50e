"""Which job ran on which GPU, and when; read from the results."""

from __future__ import annotations

import contextlib

from ..errors import BadFileError
from .base_state import BaseState
from .rows import ENDED, Interval, summary_of
from .run_reader import RunReader, command_text, name_of

# A chart cannot show more.
MOST = 5000


def intervals(base_state: BaseState, since: float, until: float) -> list[Interval]:
    """What ran between two times, newest first; a parcel of many small jobs is one interval."""
    found = [
        _running(base_state, reader, number)
        for reader, number, _ in base_state.jobs_in(
            ("running", "stopping"), list(base_state.readers.values())
        )
    ]
    recent = [reader for reader in base_state.readers.values() if reader.changed_at >= since]
    seen: set[tuple[str, int]] = set()
    for reader, number, _ in base_state.jobs_in(ENDED, recent):
        first = reader.result_of(number)
        if first is None or (reader.run, first) in seen:
            continue
        seen.add((reader.run, first))
        if reader.ended_at(first) < since or len(found) >= MOST:
            break
        ended = _ended(reader, first)
        if ended is not None and ended.started_at <= until:
            found.append(ended)
    return found


def _running(base_state: BaseState, reader: RunReader, number: int) -> Interval:
    job = reader.job_id(number)
    agent = base_state.running[job]
    return Interval(
        job=str(job),
        short=job.short,
        name=_name(reader, number),
        project=reader.project,
        agent=agent.agent,
        gpu=agent.gpu_name,
        attempt=agent.attempt,
        started_at=agent.job_since or base_state.at,
        ended_at=None,
        outcome="stopping" if job in base_state.stopping else "running",
    )


def _ended(reader: RunReader, first: int) -> Interval | None:
    try:
        sheet = reader.read_outcomes(first)
    except (BadFileError, OSError):
        return None
    if not sheet.ran_by.agent:
        return None  # cancelled before it ran
    job = reader.job_id(first)
    failures = reader.failures.get(first, {})
    name = _name(reader, first)
    return Interval(
        job=str(job),
        short=job.short if sheet.count == 1 else f"{job.short}-{first + sheet.count - 1}",
        name=f"{name} and {sheet.count - 1} more".strip() if sheet.count > 1 else name,
        project=reader.project,
        agent=sheet.ran_by.agent,
        gpu=sheet.ran_by.gpu,
        attempt=sheet.ran_by.attempt,
        started_at=sheet.ran_by.started_at,
        ended_at=sheet.ran_by.started_at + sum(sheet.seconds),
        outcome=next(iter(failures.values()), "ok"),
    )


def _name(reader: RunReader, number: int) -> str:
    """The name of a job; its command, where it has none."""
    with contextlib.suppress(BadFileError, OSError, IndexError):
        sheet = reader.read_jobs(number)
        return name_of(sheet, number) or summary_of(command_text(sheet, number))
    return ""
