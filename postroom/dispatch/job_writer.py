"""Writes what users submit: a list of jobs, more jobs for a run, data that many jobs share."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import BadFileError, PostroomError
from ..jobs import Job, check_name
from ..parcel.container import Buffer
from ..parcel.jsonable import weight
from ..parcel.sheets import pack_data, pack_jobs
from ..store.append_log import AppendLogWriter, Record
from ..store.base import Base
from ..store.files import Files
from ..store.runs import PATIENCE_S, read_parcel_bytes, share_lock

# Small jobs share a parcel up to these limits.
PARCEL_JOBS = 256
PARCEL_BYTES = 1 << 20
# Shared data is compared by pieces of this size, which stay in a core's cache.
PIECE_BYTES = 256 << 10
DIGEST_DIGITS = 40

# Jobs that share a parcel, each with what it passes.
Batch = list[tuple[Job, dict[str, Any]]]


def log_jobs(
    append_log: AppendLogWriter,
    jobs: Sequence[Job],
    *,
    guess: int = 0,
    apart: bool = False,
    records: list[Record] | None = None,
) -> list[Record]:
    """Append jobs to the log of a run, in as few records as possible.

    When this returns, they survive the death of this process; in a durable run, also a power loss.
    An error calls the first of them by the number `guess`; `records` tells which of them are in.
    With `apart`, parcels are files.
    """
    records = [] if records is None else records
    # A single job skips the generator, which would cost more than the rest.
    for batch in _batches(jobs) if len(jobs) != 1 else [[(job, job.deploy()) for job in jobs]]:
        chunks = pack_batch(batch, called=guess)
        records.append(append_log.write(len(batch), chunks, apart=apart, task=batch[0][0].task))
        guess += len(batch)
    append_log.settle()
    return records


@contextlib.contextmanager
def referring_to_data(files: Files, base: Base) -> Iterator[None]:
    """No shared data is removed meanwhile: put it there, and begin the run that refers to it."""
    lock = share_lock(files, base.data_lock)  # a cleaner has it while it reads what is in use
    if lock is None:
        raise PostroomError(
            f"another process has held {base.data_lock} for {PATIENCE_S:g} s; look for a "
            "stopped `postroom clean`, and try again"
        )
    try:
        yield
    finally:
        lock.release()


def put_data(files: Files, base: Base, shared: Any, *, durable: bool) -> str | None:
    """Write shared data once; return its name, None if there is none. See `referring_to_data`.

    The name comes from the checksums, which different contents may share. So a file that already
    has the name is compared byte by byte; if it differs, another name is taken.
    """
    if shared is None:
        return None
    chunks = pack_data(shared)
    stem = hashlib.sha256(chunks[-1]).hexdigest()[:DIGEST_DIGITS]  # the directory of the parcel
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if _put(files, base, name, chunks, durable=durable))


def _put(files: Files, base: Base, name: str, chunks: Sequence[Buffer], *, durable: bool) -> bool:
    """Store data under a name; False: the name belongs to other data."""
    path, won = base.data(name), False
    if not files.exists(path):
        temporary = base.temporary()
        files.write_new(temporary, chunks, sync=durable, reserve=True)
        won = files.publish(temporary, path)
    if not won and not _holds(files, path, chunks):
        return False
    if not won:
        files.touch(path)  # it is needed again: its time says when it was last asked for
    if durable:
        if not won:
            files.sync_file(path)  # its writer may not have needed to
        files.sync_folder(os.path.dirname(path))
    return True


def _holds(files: Files, path: str, chunks: Sequence[Buffer]) -> bool:
    """Whether a file consists of these chunks."""
    try:
        view = memoryview(read_parcel_bytes(files, path))
    except BadFileError:
        return False
    at = 0
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE_BYTES):
            piece = bytes(chunk[start : start + PIECE_BYTES])
            if view[at : at + len(piece)].tobytes() != piece:
                return False
            at += len(piece)
    return at == len(view)


def pack_batch(batch: Batch, *, called: int) -> list[Buffer]:
    """The parcel of a batch; an error calls its first job by a number."""
    model = batch[0][0]
    given = [job.name for job, _ in batch]
    names = None
    if given != [None] * len(given):
        names = ["" if name is None else check_name(name) for name in given]
    passed = [passed for _, passed in batch]
    return pack_jobs(0, model.task, model.settings, names, passed, called=called)


class BatchFiller:
    """Fills one parcel: neighbours with the same task and options, up to the limits."""

    def __init__(self, most_jobs: int = PARCEL_JOBS) -> None:
        self.batch: Batch = []
        self.nbytes = 0
        self._most_jobs = most_jobs

    @property
    def is_full(self) -> bool:
        """Whether no other job goes in."""
        return len(self.batch) >= self._most_jobs

    def fill(self, jobs: Sequence[Job]) -> bool:
        """Add these jobs at once, if all of them go into one parcel; False: add one by one."""
        kinds = set(map(type, jobs))
        if not kinds or any(getattr(kind, "deploy", None) is not Job.deploy for kind in kinds):
            return False  # they make what they pass
        task, settings = jobs[0].task, jobs[0].settings
        # Counted, since that compares hundreds without a step of Python for each.
        alike = [job.task for job in jobs].count(task) == len(jobs)
        if not alike or [job.settings for job in jobs].count(settings) < len(jobs):
            return False
        passed = [job.arguments for job in jobs]
        nbytes = _weight_of_all(passed)
        if nbytes > PARCEL_BYTES:
            return False
        self.batch, self.nbytes = list(zip(jobs, passed, strict=True)), nbytes
        return True

    def add(self, job: Job, passed: dict[str, Any]) -> bool:
        """Add a job that is deployed; False: it does not go into this parcel."""
        batch, nbytes = self.batch, self.nbytes + weight(passed)
        if batch:
            model = batch[0][0]
            if len(batch) >= self._most_jobs or nbytes > PARCEL_BYTES or job.task != model.task:
                return False
            if job.settings is not model.settings and job.settings != model.settings:
                return False
        batch.append((job, passed))
        self.nbytes = nbytes
        return True


def _weight_of_all(passed: Sequence[dict[str, Any]]) -> int:
    """What `weight` says of all together; for arrays, in a tenth of its time."""
    try:
        return sum([sum([one[name].nbytes for one in passed]) for name in passed[0]])
    except (AttributeError, KeyError, TypeError):  # they pass other things, or different ones
        return sum(map(weight, passed))


def _batches(jobs: Sequence[Job]) -> Iterator[Batch]:
    """Split a list into parcels."""
    filler = BatchFiller()
    for job in jobs:
        passed = job.deploy()
        if not filler.add(job, passed):
            yield filler.batch
            filler = BatchFiller()
            filler.add(job, passed)
    if filler.batch:
        yield filler.batch
