"""What is handed in becomes files: a list of jobs, one job more, data that many jobs share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from .base import Base
from .contents import pack_data, pack_jobs, weight
from .files import Buffer, Files
from .jobs import Job
from .runs import RunCard, append

# Small jobs share a parcel up to these bounds.
PARCEL_JOBS = 256
PARCEL_BYTES = 1 << 20
# Shared data is named by pieces of this size.
PIECE_BYTES = 2 << 20
MOST_THREADS = 8
DIGEST_DIGITS = 40

Batch = list[tuple[Job, dict[str, Any]]]


def parcels(jobs: Sequence[Job]) -> Iterator[tuple[int, list[Buffer]]]:
    """Pack a list of jobs, each parcel with the number of its first job."""
    first = 0
    for batch in _batches(jobs):
        yield first, _pack(first, batch)
        first += len(batch)


def append_jobs(
    files: Files, base: Base, card: RunCard, jobs: Sequence[Job], *, guess: int
) -> list[int]:
    """Put jobs behind the last of a run, in as few parcels as they fit; return their numbers."""
    numbers: list[int] = []
    for batch in _batches(jobs):

        def pack(first: int, batch: Batch = batch) -> list[Buffer]:
            return _pack(first, batch)

        first = append(files, base, card, pack, guess=guess)
        guess = first + len(batch)
        numbers += range(first, guess)
    if card.durable:
        files.sync_folder(base.asked(card.run))
    return numbers


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


def put_data(files: Files, base: Base, shared: Any, *, durable: bool) -> str | None:
    """Write shared data once, named by its content; return the name, None if there is none."""
    if shared is None:
        return None
    chunks = pack_data(shared)
    name = _digest(chunks)
    path = base.data(name)
    if not files.exists(path):
        temporary = base.temporary()
        files.write_new(temporary, chunks, sync=durable)
        files.publish(temporary, path)
    if durable:
        files.sync_folder(os.path.dirname(path))
    return name


def _digest(chunks: Sequence[Buffer]) -> str:
    """The digest of the digests of equal pieces, which several threads take at once."""
    pieces = [
        memoryview(chunk)[at : at + PIECE_BYTES]
        for chunk in chunks
        for at in range(0, len(chunk), PIECE_BYTES)
    ]
    threads = min(len(pieces), len(os.sched_getaffinity(0)), MOST_THREADS)
    if sum(map(len, pieces)) <= PIECE_BYTES:
        threads = 1
    digests = _digests(pieces, threads)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:DIGEST_DIGITS]


def _digests(pieces: list[memoryview], threads: int) -> list[bytes]:
    def digest(piece: memoryview) -> bytes:
        return hashlib.sha256(piece).digest()

    if threads > 1:
        # Where a user may start no more threads, one after the other will do.
        with suppress(RuntimeError), ThreadPoolExecutor(threads) as pool:
            return list(pool.map(digest, pieces))
    return list(map(digest, pieces))


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
