"""A run on disk: its jobs and its results, in write-once parcels.

The state of a job is which names exist: submitted and in no letter = queued; in a letter's range =
sent; covered by a result = done. Nothing here changes after other processes can see it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import BadFileError, OtherVersionError, PostroomError, RunRemovedError
from ..parcel.container import PARCEL_LIMIT, Buffer
from ..parcel.sheets import FAILED_FLAG
from ..parcel.trailer import TRAILER_SIZE, read_trailer
from .append_log import AppendLogWriter, logged_until
from .base import APPEND_LOG, Base, attempt_of, number_of
from .files import Files, Lock
from .mailbox import Letter, is_plain_name, read_in_hand, read_letter
from .records import JsonRecord, UnknownError
from .taken import Ranges, read_taken

INFO_LIMIT = 1 << 20
MOST_PROJECT = 80
# How often, and for how long, to try to take the lock of a run that somebody looks at.
TRY_S = 0.001
PATIENCE_S = 10.0


@dataclass(frozen=True)
class RunInfo(JsonRecord):
    """What all jobs of a run have in common, and who submitted it."""

    CALLED: ClassVar[str] = "a run's info"

    run: str
    project: str  # the name that the user gave to the work it belongs to
    import_folder: str  # the folder that kernels are imported from
    shared: str | None  # name of the shared data
    embedded: bool  # True: served only while its submitter, or a process that resumed it, waits
    durable: bool  # True: survives a power loss, not only the death of processes
    created_at: float
    host: str
    user: str
    kernels: dict[str, str] = field(default_factory=dict)  # task: version of its source at submit
    one_job_per_letter: bool = False  # True: no job waits behind another in the same mailbox
    queue: bool = False  # True: part of a project's queue; its jobs have scheduling options
    recycled: bool = False  # True: the parcels of done jobs are written over: map them under a lock
    program: str = ""  # while it holds `programs/<program>.lock`, it may still read results
    planned: int = 0  # how many jobs a list has, if it is written while its first jobs run
    calls: bool = False  # True: small calls of a program, each with its kernel as it is then

    @property
    def hands_on(self) -> bool:
        """Whether results that were handed out are written over; those of a list never are."""
        return self.recycled and not self.planned

    def check(self) -> None:
        """A run's name becomes part of paths."""
        if not is_plain_name(self.run):
            raise ValueError(f"{self.run!r} cannot be the name of a run")


def check_project(name: Any) -> str:
    """Return the name of a project, or refuse what would spoil a listing."""
    if not isinstance(name, str) or len(name) > MOST_PROJECT or not name.isprintable():
        raise PostroomError(
            f"a project's name is one line of at most {MOST_PROJECT} characters, not {name!r:.40}"
        )
    return name


@dataclass(frozen=True)
class Note(JsonRecord):
    """Why one attempt of a job ended with no result."""

    CALLED: ClassVar[str] = "a note about an attempt"

    run: str
    job: int
    attempt: int
    # "lost": not the job's fault, retried for free; "failed": its own fault, with retries left;
    # "stopped": it was told to stop, and goes on later
    kind: str
    agent: str
    reason: str
    at: float
    traceback: str = ""

    def check(self) -> None:
        """The kind decides about retries."""
        if self.kind not in ("lost", "failed", "stopped"):
            raise UnknownError(f"{self.kind!r:.60} is an unknown kind")


def create_run(
    files: Files,
    base: Base,
    info: RunInfo,
    fill: Callable[[AppendLogWriter], int] | None = None,
) -> None:
    """Make a run visible in one step, with the folders for its results, and filled with jobs.

    `fill` writes them to its log, and returns how many they are. All or nothing: if this fails, no
    part of the run may be served.
    """
    made = 0
    folder = base.run_folder(info.run)
    files.make_folder(base.result_folder(info.run))
    files.make_folder(base.attempts(info.run))
    place = base.temporary()
    files.make_folder(place)
    try:
        files.write_new(f"{place}/run.json", [info.encode()], sync=info.durable)
        # Made here, not by the first append: its name is safe before any of its records.
        files.write_new(f"{place}/{APPEND_LOG}", [b""], sync=info.durable)
        if fill is not None:
            log = AppendLogWriter(files, base, info.run, durable=info.durable, folder=place)
            with contextlib.closing(log):
                made = fill(log)
        if info.durable:
            files.sync_folder(place)
        files.move(place, folder)
        place = folder
        if info.durable:
            files.sync_folder(base.result_pool)
            files.sync_folder(f"{base.root}/attempts")
            files.sync_folder(base.job_pool)
    except BaseException:
        with contextlib.suppress(OSError):
            if place != folder:
                files.move(place, base.trashed(info.run))
            else:
                _withdraw(files, base, info.run, made)
        raise


def _withdraw(files: Files, base: Base, run: str, made: int) -> None:
    """Take a run away whose making failed, unless others have appended to it."""
    lock = files.try_lock(base.wanted(run))
    if lock is None:
        return
    try:
        if logged_until(files, base.append_log(run)) == made:
            files.move(base.run_folder(run), base.trashed(run))
    finally:
        lock.release()


def share_lock(files: Files, path: str, *, wait: bool = True) -> Lock | None:
    """Take a lock that a cleaner holds alone for a moment; None: it is held for too long."""
    until = time.monotonic() + PATIENCE_S if wait else 0.0
    while (lock := files.try_lock(path, shared=True)) is None and time.monotonic() < until:
        time.sleep(TRY_S)
    return lock


def want(files: Files, base: Base, run: str, *, wait: bool = True) -> Lock:
    """Keep a run from being removed for as long as the lock is held.

    Raises RunRemovedError if it is too late. Somebody may just look whether the run can be removed,
    or is wanted: that takes a moment; without `wait` it counts as removed.
    """
    lock = None
    with contextlib.suppress(FileNotFoundError):
        lock = share_lock(files, base.wanted(run), wait=wait)
        if lock is None:
            raise RunRemovedError(
                f"run {run} may be about to be removed: another process has held its lock for "
                f"{PATIENCE_S:g} s; look for a stopped `postroom clean`, and try again"
            )
    if lock is not None:
        try:
            # In this order: between the two, a closed run may be moved away. None ever comes back.
            if not files.exists(base.closed(run)) and files.exists(base.run_folder(run)):
                return lock
        except BaseException:
            lock.release()
            raise
        lock.release()
    raise RunRemovedError(
        f"run {run} was removed, by `postroom clean` or because it was old (see `postroom "
        "retention`): it takes no more jobs; submit a new run"
    )


@contextlib.contextmanager
def appending(files: Files, base: Base, run: str, *, wait: bool = True) -> Iterator[None]:
    """Append to a run, or refer to its jobs: meanwhile it is not removed; see `want`."""
    lock = want(files, base, run, wait=wait)
    try:
        yield
    finally:
        lock.release()


def read_run_info(files: Files, base: Base, run: str) -> RunInfo:
    """Read what all jobs of a run have in common."""
    path = base.run_info(run)
    return RunInfo.decode(path, files.read(path, INFO_LIMIT))


def list_runs(files: Files, base: Base) -> list[str]:
    """Every run of the base, oldest first."""
    return sorted(name for name in files.names(base.job_pool) if is_plain_name(name))


def count_covered(spans: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """How many jobs some ranges cover, and how many of them more than once."""
    covered = twice = reached = 0
    for first, stop in sorted(spans):
        covered += max(stop - max(first, reached), 0)
        twice += max(min(stop, reached) - first, 0)
        reached = max(reached, stop)
    return covered, twice


def gaps(end: int, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of 0..end that no span covers."""
    found = []
    reached = 0
    for first, stop in sorted(spans):
        if first > reached:
            found.append((reached, min(first, end)))
        reached = max(reached, stop)
    if reached < end:
        found.append((reached, end))
    return [(first, stop) for first, stop in found if first < stop]


def list_firsts(files: Files, folder: str) -> list[int]:
    """The first job numbers of the parcels in a folder, in order."""
    return sorted(n for name in files.names(folder) if (n := number_of(name)) is not None)


def count_jobs(files: Files, path: str) -> int:
    """How many jobs a parcel of results covers, read from its trailer; 0 when there is no file.

    Raises BadFileError when the file is there but is no such parcel.
    """
    try:
        tail = files.tail(path, TRAILER_SIZE)
    except FileNotFoundError:
        return 0
    trailer = read_trailer(path, tail)
    stated = number_of(path.rsplit("/", 1)[1])
    if trailer.kind != "results" or trailer.jobs < 1 or trailer.first != stated:
        raise BadFileError(path, f"holds {trailer.kind} from {trailer.first} on: its name is wrong")
    return trailer.jobs


def has_failure(files: Files, path: str) -> bool:
    """Whether a parcel of results says that a job failed; also if nobody can tell."""
    try:
        return FAILED_FLAG in read_trailer(path, files.tail(path, TRAILER_SIZE)).flags
    except (OSError, BadFileError):
        return True


def publish_results(
    files: Files,
    base: Base,
    info: RunInfo,
    first: int,
    stop: int,
    pack: Callable[[int], list[Buffer]],
    *,
    outbox: str | None = None,
    prepared: str | None = None,
) -> bool:
    """Publish the outcomes of jobs first..stop, without those that are published already.

    `pack(n)` makes the parcel of jobs n..stop; it is written in `outbox`, or at the path that was
    `prepared`. False: a bad file has the name, and only the acting Master can put it aside.
    """
    while first < stop:
        temporary, prepared = prepared or base.temporary(outbox), None
        spares = (base.tmp, base.spare_prefix(info.run)) if info.hands_on else None
        files.write_new(temporary, pack(first), sync=info.durable, spares=spares)
        if files.publish(temporary, base.result(info.run, first)):
            if info.durable:
                files.sync_folder(base.result_folder(info.run))
            return True
        try:
            first += count_jobs(files, base.result(info.run, first))
        except BadFileError:
            return False
    return True


def first_missing(files: Files, base: Base, run: str, first: int, stop: int) -> int:
    """Follow the chain of results from `first`; return the first job of the range that has none."""
    while first < stop:
        try:
            covered = count_jobs(files, base.result(run, first))
        except BadFileError:
            break
        if not covered:
            with contextlib.suppress(OtherVersionError):
                covered = Ranges(read_taken(files, base, run).ranges).end_of(first) - first
        if not covered:
            break
        first += covered
    return first


def write_note(files: Files, base: Base, note: Note, *, outbox: str | None = None) -> None:
    """Write why an attempt ended with no result; the first note wins."""
    temporary = base.temporary(outbox)
    files.write_new(temporary, [note.encode()])
    files.publish(temporary, base.attempt(note.run, note.job, note.attempt))


def read_note(files: Files, base: Base, run: str, job: int, attempt: int) -> Note | None:
    """Why an attempt ended with no result; None when there is no note.

    A note that cannot be read still says by its name that the attempt was made. If it were skipped,
    the same attempt would be repeated for ever, because the name of its note is taken. One of
    another version raises OtherVersionError: nobody knows whether the job is to blame.
    """
    path = base.attempt(run, job, attempt)
    try:
        return Note.decode(path, files.read(path, INFO_LIMIT))
    except FileNotFoundError:
        return None
    except OtherVersionError:
        raise
    except BadFileError as error:
        return Note(run, job, attempt, "lost", "", reason=f"unknown: its note {error.reason}", at=0)


def read_notes(files: Files, base: Base, run: str) -> list[Note]:
    """Every note of a run, in the order of jobs and attempts; other files are skipped."""
    named = sorted(filter(None, map(attempt_of, files.names(base.attempts(run)))))
    notes = (read_note(files, base, run, job, attempt) for job, attempt in named)
    return [note for note in notes if note is not None]


def take_back_letter(
    files: Files, base: Base, agent_id: str, *, reason: str, at: float, blame: bool = True
) -> tuple[Letter, Note | None] | None:
    """Take back the letter of a dead worker; the caller must hold the agent's lock.

    The job that was running, if it has no result, gets a note (unless the job is not to `blame`,
    because the worker was told to stop). Then the mailbox is removed, and the range is free. If
    this is killed in between, the next call finds the same state and writes the same note.
    """
    close_outboxes(files, base, agent_id)
    letter = read_letter(files, base, agent_id)
    note = None
    if letter is not None and blame:
        hand = read_in_hand(files, base, agent_id)
        begun = hand is not None and hand.letter_id == letter.letter_id
        if hand is not None and begun and letter.first <= hand.job < letter.stop:
            missing = first_missing(files, base, letter.run, letter.first, letter.stop)
            if missing <= hand.job:
                note = Note(
                    letter.run, hand.job, letter.attempt, "lost", agent_id, reason=reason, at=at
                )
                write_note(files, base, note)
    files.remove(base.mailbox(agent_id))
    return (letter, note) if letter is not None else None


def close_outboxes(files: Files, base: Base, agent_id: str) -> None:
    """Make sure that a worker can publish nothing more.

    It may be alive after all (another host lost a lock, a heartbeat came late). The files that it
    is about to link then have no name any more, and `link` fails: even a range that is split among
    other agents is covered once.
    """
    for folder in (base.tmp, base.trash):
        for name in files.names(folder):
            if name.startswith(base.outbox_prefix(agent_id)):
                if folder == base.tmp:
                    files.move(f"{base.tmp}/{name}", f"{base.trash}/{name}")
                for file in files.names(f"{base.trash}/{name}"):
                    files.remove(f"{base.trash}/{name}/{file}")


def reject(files: Files, base: Base, path: str, reason: str) -> None:
    """Move a bad file to `rejected/`, with the reason beside it."""
    target = base.put_aside(path)
    with contextlib.suppress(OSError):
        files.move(path, target)
    with contextlib.suppress(OSError):
        files.remove(f"{target}.reason")
        files.write_new(f"{target}.reason", [(reason + "\n").encode()])


def read_parcel_bytes(files: Files, path: str, *, recycled: bool = False) -> Buffer:
    """Read a parcel, memory-mapped when it is large; one that may be `recycled`, under a lock."""
    return files.view(path, PARCEL_LIMIT, recycled=recycled)


def user_name() -> str:
    """The name of this user, or the uid if it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, a uid may have no name
        return str(os.getuid())
