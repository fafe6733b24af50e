"""The worker's side of the mailbox: takes letters, runs their jobs, publishes the results.

    IDLE --a whole letter--> AT WORK --range done, or given back--> IDLE
                                | ^
            publishing fails    v | it works again
                              BLOCKED (results stay in memory)

Only the worker changes these states. `step` runs at most one job, so that the caller can look for
signals between jobs, and so that the same code runs in the simulator.
"""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..commands.spec import COMMAND
from ..errors import BadFileError, OtherVersionError, PayloadError
from ..parcel.container import Buffer
from ..parcel.sheets import Failure, JobEnd, JobOptions, JobSheet, Outcome, RanBy, pack_outcomes
from ..store.append_log import RecordReader
from ..store.base import Base
from ..store.files import MAP_FROM_BYTES, Box, Clock, Files
from ..store.journal import Journal
from ..store.mailbox import MOST_PATCHED, InHand, Letter, put_up
from ..store.runs import (
    Note,
    RunInfo,
    first_missing,
    has_failure,
    publish_results,
    read_note,
    read_run_info,
    write_note,
)
from ..system.absence import may_pass
from ..system.page_cache import LARGE
from .background_publisher import BackgroundPublisher
from .overtime import Overtime
from .prefetch import Prefetcher

# Results wait this long for more, so that short jobs share a parcel.
PUBLISH_S = 0.03
# A result this large is published at once: waiting would cost a copy, since the kernel may return
# the same buffer again for its next job. Smaller ones are copied.
PUBLISH_BYTES = 64 << 10
# After this long, a worker leaves the rest of its letter to others: its jobs take longer than those
# from which the letter's length was calculated.
HOLD_S = 0.15


class Step(enum.Enum):
    """The result of one step."""

    IDLE = "no letter"
    WORKED = "something was done"
    BLOCKED = "results wait in memory until they can be written"


class TryAgain(Exception):
    """A job ended with no result and is requeued; raised with all that its note says."""

    def __init__(self, kind: str, reason: str, traceback: str = "") -> None:
        super().__init__(reason)
        self.kind, self.reason, self.traceback = kind, reason, traceback


class RunJob(Protocol):
    """Runs one job and returns how it ended; never raises for the job's own faults.

    What it returns must not change later, unless it is as large as PUBLISH_BYTES. None: a minder
    ran the job, and its result or note is on disk, unless the minder died.
    """

    def __call__(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd | None: ...


@dataclass(frozen=True)
class Alike:
    """Neighbours of a parcel: each runs when its end is asked for, or with those before it."""

    ends: Iterator[JobEnd]  # of some of them, from the first on
    together: int = 1  # how many are begun at once


class RunAlike(Protocol):
    """Runs neighbours of a parcel; None: run the first of them for itself."""

    def __call__(
        self, info: RunInfo, sheet: JobSheet, jobs: range, attempt: int
    ) -> Alike | None: ...


class Inbox:
    """One worker's mailbox, and the letter that it works on."""

    def __init__(
        self,
        files: Files,
        base: Base,
        agent_id: str,
        run_job: RunJob,
        *,
        clock: Clock,
        journal: Journal,
        gpu: str = "",
        pid: int = 0,
        prefetcher: Prefetcher | None = None,
        publisher: BackgroundPublisher | None = None,
        run_alike: RunAlike | None = None,
    ) -> None:
        self._files = files
        self._base = base
        self._agent_id = agent_id
        self._run_job = run_job
        self._ask_alike = run_alike
        self._clock = clock
        self._journal = journal
        self._gpu = gpu
        self._pid = pid
        self._prefetcher = prefetcher
        self.overtime: Overtime | None = None  # notices tasks that take long
        self._publisher = publisher
        self._epoch = 0
        self._letter: Letter | None = None
        self._running = b""  # how the line in `in_hand` begins while jobs of this letter run
        self._info: RunInfo | None = None
        self._sheet: JobSheet | None = None
        self._record_reader: RecordReader | None = None
        self._prepared: str | None = None  # where the next results will be written
        self._large: list[str] = []  # files of this letter that need not stay in the page cache
        self._task, self._options = "", JobOptions()  # of the jobs in `_done`
        self._done: list[JobEnd] = []
        self._done_from = 0  # the job number of the first of them
        self._done_at = 0.0  # when it was begun, wall clock
        self._begun_at = 0.0  # when the current job was
        self._behind: list[JobEnd] = []  # what is being published, before those in `_done`
        self._together = 1  # how many jobs are begun at once
        self._publish_at = 0.0
        self._leave_at = 0.0
        self._retry: Note | None = None
        self._finished = 0
        self._blocked = ""
        self._refuses = False  # its letter is about jobs of another version of Postroom
        self._outbox = base.new_outbox(agent_id)
        files.make_folder(self._outbox)
        files.remove(base.in_hand(agent_id))
        self._hand: Box = files.create_box(base.in_hand(agent_id))
        self._say("idle")
        self._box: Box = put_up(files, base, agent_id)

    @property
    def box(self) -> Box:
        """The mailbox, for code that waits until it is filled."""
        return self._box

    @property
    def hand(self) -> Box:
        """The file that says what the worker does."""
        return self._hand

    @property
    def at_work(self) -> bool:
        """Whether it has a letter."""
        return self._letter is not None

    @property
    def failed(self) -> int:
        """How many earlier attempts of the current job were its own failures."""
        return self._letter.failed if self._letter is not None else 0

    def linger(self) -> None:
        """The running job takes long: publish what is done, and leave the rest of the letter.

        Called while the job runs.
        """
        letter = self._letter
        if letter is None:
            return
        # What cannot be written now is written when the job ends.
        with contextlib.suppress(OSError):
            self._commit()
            self._done_at = self._begun_at
        begun = self._done_from + len(self._done) + self._together
        if begun < letter.stop:
            # From here on we begin none of it, even if the line could not be written.
            self._letter, line = letter.shortened(begun)
            with contextlib.suppress(OSError):
                self._box.append(line)

    def step(self) -> Step:
        """Take a letter, or run one job of it, or try again to publish.

        Jobs of another version of Postroom are not begun, and no result is made up for them: the
        letter stays with this session until somebody stops it.
        """
        if self._refuses:
            return Step.BLOCKED
        try:
            return self._go_on()
        except OtherVersionError as error:
            self._refuses = True
            with contextlib.suppress(OSError):
                self._commit()
            self._journal.log(
                "error", f"agent {self._agent_id} must be stopped and started again: {error}"
            )
            self._say("blocked", self._letter, self._done_from)
            return Step.BLOCKED

    def _go_on(self) -> Step:
        if self._blocked:
            return self._settle()
        letter = self._letter
        if letter is None:
            return Step.WORKED if self._take() else Step.IDLE
        job = self._done_from + len(self._done)
        if letter.first < job < letter.stop and self._clock.monotonic() >= self._leave_at:
            self._letter = letter = letter.shortened(job)[0]
        if (self._done or self._behind) and job < letter.stop and self._apart(letter, job):
            return self._settle()
        if job < letter.stop:
            alike = self._alike(letter, job)
            if not (self._run_alike(letter, job, alike) if alike else self._run(letter, job)):
                return self._settle()
        if self._due():
            # A large result goes out while the next job runs, which `_apart` has a say in.
            large = bool(self._done) and self._done[-1].nbytes >= MAP_FROM_BYTES
            left = self._done_from + len(self._done) < letter.stop
            return self._settle(behind=large and left)
        return Step.WORKED

    def take_down(self) -> None:
        """Publish what is done, give back the rest and take the mailbox down: no more letters."""
        if self._letter is not None:
            try:
                self._commit()
            except FileNotFoundError:
                pass  # the run was removed
            except OSError as error:
                if not may_pass(error):
                    raise  # to give the letter back without a note would repeat this for ever
        # By way of our outbox: if that was removed, we were taken for dead, and the mailbox is our
        # successor's. If this fails, the next process that finds the lock free does it.
        with contextlib.suppress(OSError):
            self._files.move(self._base.mailbox(self._agent_id), f"{self._outbox}/mailbox")
            self._files.remove(f"{self._outbox}/mailbox")
        self._box.close()
        self._files.prepare(None)
        if self._prefetcher is not None:
            self._prefetcher.close()
        if self._publisher is not None:
            self._publisher.close()
        self._say("idle")

    def _take(self) -> bool:
        if not self._box.size():
            return False
        letter = Letter.decode(self._box.read())
        if letter is None or letter.epoch < self._epoch:
            return False
        self._epoch = letter.epoch
        try:
            if self._info is None or self._info.run != letter.run:
                self._info = read_run_info(self._files, self._base, letter.run)
                self._begin_run(self._info)
        except OtherVersionError:
            raise
        except (FileNotFoundError, BadFileError) as error:
            # The run is being removed: nobody waits for its results.
            self._journal.log("warning", f"letter of an unknown run dropped: {error}")
            self._box.clear()
            return True
        self._letter = letter
        self._running = InHand.template("running", letter.letter_id)
        self._done_from = letter.first
        now = self._clock.monotonic()
        self._publish_at, self._leave_at = now + PUBLISH_S, now + HOLD_S
        return True

    def _begin_run(self, info: RunInfo) -> None:
        self._sheet = None
        if self._record_reader is not None:
            self._record_reader.close()
        self._record_reader = RecordReader(
            self._files, self._base, info.run, recycled=info.recycled
        )

    def _alike(self, letter: Letter, job: int) -> Alike | None:
        """A job and its neighbours in a parcel; None: it runs for itself."""
        sheet = self._sheet
        if self._ask_alike is None or sheet is None or self._info is None:
            return None
        stop = min(letter.stop, sheet.first + sheet.count)
        if not sheet.first <= job < stop - 1 or stop > MOST_PATCHED:
            return None
        self._task, self._options = sheet.task, sheet.options
        return self._ask_alike(self._info, sheet, range(job, stop), letter.attempt)

    def _run_alike(self, letter: Letter, job: int, alike: Alike) -> bool:
        """Run neighbours until something is due; False when the letter must end here.

        The line in `in_hand` names each of them, with the time at which the first was begun.
        """
        self._begin(job)
        self._together = alike.together
        clock, overtime = self._clock.monotonic, self.overtime
        since = self._begun_at - clock()
        until = min(self._publish_at, self._leave_at)
        if overtime is not None:
            overtime.begin()
        done = None
        try:
            for done in alike.ends:
                self._finished += 1
                if done.failure is not None:
                    break
                if overtime is None:
                    self._done.append(done)
                else:
                    overtime.next(self._add, done)
                job += 1
                now = clock()
                if alike.together > 1:
                    continue  # they have all run
                if job >= self._letter_stop or now >= until or done.nbytes >= PUBLISH_BYTES:
                    break
                self._begun_at = since + now
                self._hand.patch(*InHand.only_job(job))
        finally:
            if overtime is not None:
                overtime.end()
            self._together = 1
        retries = self._options.retries
        return done is None or done.failure is None or self._take_in(letter, job, done, retries)

    def _add(self, done: JobEnd) -> None:
        self._done.append(done)

    @property
    def _letter_stop(self) -> int:
        """Where the letter ends, which `linger` may have shortened."""
        return self._letter.stop if self._letter is not None else 0

    def _begin(self, job: int) -> None:
        """Say that a job is begun."""
        self._begun_at = started_at = self._clock.wall()
        if not self._done:
            self._done_at = started_at
        # What `_say` does, in a third of its time: it is done for every job.
        line = self._running % (job, started_at, self._finished)
        with contextlib.suppress(OSError):
            self._hand.write(line)

    def _run(self, letter: Letter, job: int) -> bool:
        """Run one job; False when the letter must end here because the job is requeued."""
        self._begin(job)
        try:
            done, retries = self._attempt(letter, job)
        except TryAgain as end:
            self._finished += 1
            self._retry = self._note(letter, job, end.kind, end.reason, end.traceback)
            return False
        except OSError as error:
            # Not the job's fault, so not its result.
            self._retry = self._note(letter, job, "lost", f"its parcel could not be read: {error}")
            return False
        self._finished += 1
        if done is None:
            return self._look_behind(letter, job)
        return self._take_in(letter, job, done, retries)

    def _take_in(self, letter: Letter, job: int, done: JobEnd, retries: int) -> bool:
        """Keep how a job ended, to publish it; False when it is requeued."""
        failure = done.failure
        cancelled = failure is not None and failure.outcome is Outcome.CANCELLED
        if failure is not None and not cancelled and letter.failed < retries:
            reason = f"{failure.kind}: {failure.message}"
            self._retry = self._note(letter, job, "failed", reason, failure.traceback)
            return False
        self._done.append(done)
        if failure is not None:
            self._ask_again(job + 1)
        return True

    def _ask_again(self, job: int) -> None:
        """A job of the queue has failed: whether those from here on begin is decided again."""
        assert self._info is not None and self._letter is not None
        if self._info.queue and job < self._letter.stop:
            self._letter = self._letter.shortened(job)[0]

    def _look_behind(self, letter: Letter, job: int) -> bool:
        """See how a minder's command ended; False when the letter must end here."""
        if first_missing(self._files, self._base, letter.run, job, job + 1) > job:
            self._done_from = job + 1
            if has_failure(self._files, self._base.result(letter.run, job)):
                self._ask_again(job + 1)
            return True
        note = read_note(self._files, self._base, letter.run, job, letter.attempt)
        self._retry = note or self._note(letter, job, "lost", "the minder of its command died")
        return False

    def _note(self, letter: Letter, job: int, kind: str, reason: str, traceback: str = "") -> Note:
        return Note(
            letter.run,
            job,
            letter.attempt,
            kind,
            self._agent_id,
            reason=reason,
            at=self._clock.wall(),
            traceback=traceback,
        )

    def _apart(self, letter: Letter, job: int) -> bool:
        """Whether what is done must be published before this job is begun."""
        if self._options.timeout_s is not None:
            # If the guardian ends the job, its outcome must come right after these.
            return True
        if self._done and self._done[-1].failure is not None:
            return True  # a failure is worth knowing at once
        try:
            sheet = self._open(letter, job)
            # A minder publishes its command right after what came before it.
            return (sheet.task, sheet.options) != (self._task, self._options)
        except (BadFileError, OSError):
            return True

    def _open(self, letter: Letter, job: int) -> JobSheet:
        """The parcel that holds a job of a letter; a letter may cover several parcels."""
        sheet = self._sheet
        if sheet is None or not sheet.first <= job < sheet.first + sheet.count:
            assert self._record_reader is not None
            self._sheet = None  # first, so that its memory can be used again
            place = letter.offset if job == letter.first else None
            record = self._record_reader.find(job, place, ahead=letter.stop - job)
            sheet = self._prefetcher.take(record.number) if self._prefetcher is not None else None
            self._sheet = sheet = sheet or self._record_reader.open_record(record)
            if sheet.nbytes >= MAP_FROM_BYTES:
                self._open_ahead(letter, record.stop)
                if sheet.nbytes >= LARGE and not self._record_reader.recycled:
                    self._large.append(sheet.parcel.path)
        return sheet

    def _open_ahead(self, letter: Letter, job: int) -> None:
        """Have the parcel after a large one opened while its jobs run, if it is a file, too."""
        if self._prefetcher is None or job >= letter.stop:
            return
        assert self._record_reader is not None
        with contextlib.suppress(BadFileError, OSError):  # met again when it is opened
            record = self._record_reader.peek(job)
            if self._record_reader.is_apart(record):
                self._prefetcher.begin(record.number, self._record_reader.prepare(record))

    def _attempt(self, letter: Letter, job: int) -> tuple[JobEnd | None, int]:
        assert self._info is not None
        try:
            sheet = self._open(letter, job)
            self._task, self._options = sheet.task, sheet.options
        except OtherVersionError:
            raise
        except (BadFileError, FileNotFoundError) as error:
            failure = Failure(Outcome.FAILED, type(error).__name__, f"unreadable parcel: {error}")
            return JobEnd(failure=failure), 0
        # A minder knows whether a retry is of any use, and raises TryAgain.
        retries = 0 if sheet.task == COMMAND else sheet.options.retries
        if self.overtime is None or job + 1 >= letter.stop:
            return self._run_job(self._info, sheet, job, letter.attempt), retries
        self.overtime.begin()
        try:
            return self._run_job(self._info, sheet, job, letter.attempt), retries
        finally:
            self.overtime.end()

    def _due(self) -> bool:
        letter = self._letter
        assert letter is not None
        if self._done_from + len(self._done) >= letter.stop:
            return True
        if not self._done:
            return False
        if self._done[-1].nbytes >= PUBLISH_BYTES:
            return True
        return self._clock.monotonic() >= self._publish_at

    def _settle(self, *, behind: bool = False) -> Step:
        """Publish; then end the letter if all of it is done. What fails is tried again."""
        letter = self._letter
        assert letter is not None
        try:
            self._commit(behind=behind)
            if self._retry is not None:
                write_note(self._files, self._base, self._retry, outbox=self._outbox)
        except FileNotFoundError:
            if not self._files.exists(self._outbox):
                raise  # we were taken for dead, and somebody else has the range: start anew
            self._journal.log("warning", f"run {letter.run} was removed: its results are dropped")
            self._end_letter()
            return Step.WORKED
        except OSError as error:
            if not may_pass(error):
                raise
            if not self._blocked:
                self._journal.log("error", f"results wait in memory: {error.strerror}")
            self._blocked = str(error)
            self._say("blocked", letter, self._done_from)
            return Step.BLOCKED
        if self._blocked:
            self._blocked = ""
            self._journal.log("info", "results could be written again")
        if self._retry is not None or self._done_from >= letter.stop:
            self._end_letter()
        return Step.WORKED

    def _commit(self, *, behind: bool = False) -> None:
        """Publish what is done; if it may be `behind`, while the next job runs."""
        self._wait_for_publisher()
        if not self._done:
            return
        assert self._info is not None and self._letter is not None
        first, nbytes = self._done_from, self._done[-1].nbytes
        publisher = self._publisher if behind else None
        owned = publisher.owned(self._done) if publisher is not None else None
        if publisher is not None and owned is not None:
            self._behind = self._done = owned
            publisher.begin(self._publication(self._letter))
        else:
            prepared, self._prepared = self._prepared, None
            if not self._publication(self._letter)(prepared):
                raise _in_the_way()
        if nbytes >= LARGE:
            self._large.append(self._base.result(self._info.run, first))
        self._done_from += len(self._done)
        self._done = []
        self._publish_at = self._clock.monotonic() + PUBLISH_S

    def _wait_for_publisher(self) -> None:
        """Wait for the results that are published behind; if that failed, they are done again."""
        if self._behind:
            assert self._publisher is not None
            behind, self._behind = self._behind, []
            try:
                if not self._publisher.wait():
                    raise _in_the_way()
            except BaseException:
                self._done = behind + self._done
                self._done_from -= len(behind)
                raise

    def _publication(self, letter: Letter) -> Callable[..., bool]:
        """What publishes the results in `_done`, in any thread; False: a bad file has the name."""
        info, done, pickle = self._info, self._done, self._options.pickle
        assert info is not None
        first, stop = self._done_from, self._done_from + len(done)
        ran_by = RanBy(self._agent_id, self._gpu, self._pid, self._done_at, attempt=letter.attempt)

        def pack(start: int) -> list[Buffer]:
            try:
                return pack_outcomes(start, done[start - first :], ran_by, pickle=pickle)
            except PayloadError:
                for number, one in enumerate(done):
                    done[number] = self._saveable(info, first + number, one, ran_by, pickle=pickle)
                return pack_outcomes(start, done[start - first :], ran_by, pickle=pickle)

        def publish(prepared: str | None = None) -> bool:
            return publish_results(
                self._files,
                self._base,
                info,
                first,
                stop,
                pack,
                outbox=self._outbox,
                prepared=prepared,
            )

        return publish

    def _saveable(
        self, info: RunInfo, job: int, done: JobEnd, ran_by: RanBy, *, pickle: bool
    ) -> JobEnd:
        """Turn a result that cannot travel into a failure that says where it is kept."""
        from .kept_result import keep_result

        try:
            pack_outcomes(job, [done], ran_by, pickle=pickle)
        except PayloadError as error:
            kept = keep_result(
                self._files,
                self._base,
                info.run,
                job,
                done.value,
                outbox=self._outbox,
                sync=info.durable,
            )
            failure = Failure(Outcome.FAILED, "PayloadError", f"{error}. {kept}")
            return JobEnd(failure=failure, seconds=done.seconds)
        return done

    def _end_letter(self) -> None:
        self._letter = None
        self._done = []
        self._retry = None
        self._blocked = ""
        self._box.clear()
        if self._sheet is not None and self._done_from >= self._sheet.first + self._sheet.count:
            self._sheet = None
        while self._large:
            save = partial(self._files.save_soon, self._large.pop())
            if self._publisher is not None:
                self._publisher.later(save)
            else:
                save()
        # Behind the turn, which somebody waits for; a new letter has another id.
        self._say("idle")
        if self._prepared is None:
            self._prepared = self._base.temporary(self._outbox)
            self._files.prepare(self._prepared)

    def _say(
        self, state: str, letter: Letter | None = None, job: int = -1, since: float | None = None
    ) -> None:
        line = InHand(
            state,
            letter.letter_id if letter else "-",
            job,
            self._clock.wall() if since is None else since,
            self._finished,
        )
        # On a full disk the line may stay old: it is a hint for people and for blame.
        with contextlib.suppress(OSError):
            self._hand.write(line.encode())


def _in_the_way() -> OSError:
    return OSError(errno.EAGAIN, "a bad file is in the way until the Master puts it aside")
