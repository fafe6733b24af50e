"""Who ran what on which card, and when: from the results themselves."""

from __future__ import annotations

import contextlib

from ..errors import BadFileError
from .rows import ENDED, Interval
from .scene import Scene
from .shelf import Shelf

# A chart of more than this shows nothing more.
MOST = 5000


def intervals(scene: Scene, since: float, until: float) -> list[Interval]:
    """What ran between two times, newest first: a parcel of many small jobs is one interval."""
    found = [
        _running(scene, shelf, number)
        for shelf, number, _ in scene.spots(("running", "stopping"), list(scene.shelves.values()))
    ]
    recent = [shelf for shelf in scene.shelves.values() if shelf.changed_at >= since]
    seen: set[tuple[str, int]] = set()
    for shelf, number, _ in scene.spots(ENDED, recent):
        first = shelf.result_of(number)
        if first is None or (shelf.run, first) in seen:
            continue
        seen.add((shelf.run, first))
        if shelf.ended_at(first) < since or len(found) >= MOST:
            break
        ended = _ended(shelf, first)
        if ended is not None and ended.started_at <= until:
            found.append(ended)
    return found


def _running(scene: Scene, shelf: Shelf, number: int) -> Interval:
    job = shelf.job_id(number)
    agent = scene.running[job]
    return Interval(
        job=str(job),
        short=job.short,
        name=_name(shelf, number),
        project=shelf.project,
        agent=agent.agent,
        gpu=agent.gpu_name,
        attempt=agent.attempt,
        started_at=agent.job_since or scene.at,
        ended_at=None,
        outcome="stopping" if job in scene.stopping else "running",
    )


def _ended(shelf: Shelf, first: int) -> Interval | None:
    try:
        sheet = shelf.read_outcomes(first)
    except (BadFileError, OSError):
        return None
    if not sheet.maker.agent:
        return None  # cancelled before it ran
    job = shelf.job_id(first)
    failures = shelf.failures.get(first, {})
    name = _name(shelf, first)
    return Interval(
        job=str(job),
        short=job.short if sheet.count == 1 else f"{job.short}-{first + sheet.count - 1}",
        name=name if sheet.count == 1 else f"{sheet.count} jobs",
        project=shelf.project,
        agent=sheet.maker.agent,
        gpu=sheet.maker.gpu,
        attempt=sheet.maker.attempt,
        started_at=sheet.maker.started_at,
        ended_at=sheet.maker.started_at + sum(sheet.seconds),
        outcome=next(iter(failures.values()), "ok"),
    )


def _name(shelf: Shelf, number: int) -> str:
    with contextlib.suppress(BadFileError, OSError, IndexError):
        sheet = shelf.read_jobs(number)
        return sheet.name(number) if sheet.names else ""
    return ""
