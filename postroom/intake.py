"""From jobs to parcels: how a list is cut, and how one more job joins a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .base import Base
from .contents import pack_jobs, weight
from .files import Buffer, Files
from .jobs import Job
from .runs import RunCard, append

# Small jobs share a parcel up to these bounds.
PARCEL_JOBS = 256
PARCEL_BYTES = 1 << 20

Batch = list[tuple[Job, dict[str, Any]]]


def parcels(jobs: Sequence[Job]) -> Iterator[tuple[int, list[Buffer]]]:
    """Pack a list of jobs, each parcel with the number of its first job."""
    first = 0
    for batch in _batches(jobs):
        yield first, _pack(first, batch)
        first += len(batch)


def append_job(files: Files, base: Base, card: RunCard, job: Job, *, guess: int) -> int:
    """Put one job behind the last of a run, and return its number: a parcel of its own.

    Its file is there when this returns, so that it survives the death of its submitter; in a
    durable run, a power loss, too.
    """
    batch = [(job, job.deploy())]
    number = append(files, base, card, lambda first: _pack(first, batch), guess=guess)
    if card.durable:
        files.sync_folder(base.asked(card.run))
    return number


def _pack(first: int, batch: Batch) -> list[Buffer]:
    task, options = batch[0][0].task, batch[0][0].options
    named = any(job.name is not None for job, _ in batch)
    names = [job.name or "" for job, _ in batch] if named else None
    return pack_jobs(first, task, options, names, [passed for _, passed in batch])


def _batches(jobs: Sequence[Job]) -> Iterator[Batch]:
    """Cut a list into parcels: neighbours with the same task and options, small enough together."""
    batch: Batch = []
    size = 0
    for job in jobs:
        passed = job.deploy()
        job_size = weight(passed)
        if batch:
            alike = (job.task, job.options) == (batch[0][0].task, batch[0][0].options)
            fits = len(batch) < PARCEL_JOBS and size + job_size <= PARCEL_BYTES
            if not (alike and fits):
                yield batch
                batch, size = [], 0
        batch.append((job, passed))
        size += job_size
    if batch:
        yield batch
