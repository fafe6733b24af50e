"""Who wants to be told of what: notices, and when they are due.

    control/notice.<token>.json      tell TARGET when these jobs are done, or one has failed
    control/notice.<token>.failed    that the first has failed was sent
    control/notice.<token>.done      that all have ended was sent
    control/notice.<token>.lock      held by whoever sends

The token is any word; of a Master that tells of every run, it ends with the run.

Every standing Master's process looks after them, acting or not: the lock and the marks make it one
message. A notice leaves when it is done, or when its run has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
from dataclasses import dataclass
from typing import ClassVar

from ..errors import BadFileError
from ..parcel.sheets import JobSheet, OutcomeSheet
from ..store.base import Base
from ..store.files import Files, new_token
from ..store.job_ids import JobId
from ..store.journal import Journal
from ..store.mailbox import is_plain_name
from ..store.records import JsonRecord
from ..store.runs import list_runs
from .notify import Envelope, Span, check_target, compose, failures_in, start
from .rows import FAILED
from .run_reader import Recent, RunReader

NOTICE_LIMIT = 1 << 20
PREFIX = "notice."
LOOK_S = 1.0
# What did not work is tried again: soon, then later, then no more.
TRY_AGAIN_S = (5.0, 30.0, 300.0, 1800.0)
# So many messages are on their way at once; an address that hangs takes up one of these places.
MOST_SENDING = 4


@dataclass(frozen=True)
class Notice(JsonRecord):
    """Tell somebody how some jobs of a run went."""

    CALLED: ClassVar[str] = "a notice"

    target: str
    run: str
    spans: tuple[Span, ...] = ()  # empty: all jobs of the run

    def check(self) -> None:
        """A run's name becomes part of paths, and a target is run or posted to."""
        if not is_plain_name(self.run):
            raise ValueError(f"{self.run!r} cannot be the name of a run")
        check_target(self.target)


def put_up(files: Files, base: Base, notice: Notice, *, token: str | None = None) -> str:
    """Let a notice stand, through a power loss too; return its token."""
    check_target(notice.target)
    token = token or new_token(12)
    files.make_folder(base.control)
    temporary = base.temporary()
    files.write_new(temporary, [notice.encode()], sync=True)
    files.publish(temporary, f"{base.control}/{PREFIX}{token}.json")
    files.sync_folder(base.control)
    return token


def notify_of(files: Files, base: Base, jobs: list[JobId], target: str) -> None:
    """Ask for a message about jobs that were handed in together: one for each run they are in."""
    by_run: dict[str, list[int]] = {}
    for job in jobs:
        by_run.setdefault(job.run, []).append(job.number)
    for run, numbers in by_run.items():
        put_up(files, base, Notice(target, run, tuple(_spans(sorted(numbers)))))


def _spans(numbers: list[int]) -> list[Span]:
    found: list[Span] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found


@dataclass
class _Sending:
    process: subprocess.Popen[bytes]
    tries: int


class Notifier:
    """Looks after the notices of a base; a target of its own is told of every run."""

    def __init__(self, files: Files, base: Base, journal: Journal, target: str = "") -> None:
        self._files = files
        self._base = base
        self._journal = journal
        self._target = check_target(target) if target else ""
        self._readers: dict[str, RunReader] = {}
        self._jobs: Recent[JobSheet] = Recent()
        self._outcomes: Recent[OutcomeSheet] = Recent()
        self._sending: dict[tuple[str, str], _Sending] = {}
        self._tries: dict[tuple[str, str], tuple[int, float]] = {}  # how often, and when again
        self._look_at = 0.0

    def step(self, now: float) -> None:
        """One look, at most once a second: start what is due, and forget what is settled."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        self._reap(now)
        names = self._files.names(self._base.control)
        if self._target:
            self._put_up_for_all(names)
        for name in sorted(names):
            if name.startswith(PREFIX) and name.endswith(".json"):
                token = name.removeprefix(PREFIX).removesuffix(".json")
                try:
                    self._look(token, names, now)
                except (OSError, BadFileError) as error:
                    self._journal.log("warning", f"a notice is left alone: {error}")
        self._sweep(names)

    @property
    def sending(self) -> int:
        """How many messages are on their way."""
        return len(self._sending)

    def _put_up_for_all(self, names: list[str]) -> None:
        """Every run that is seen unfinished gets a notice, once."""
        runs = list_runs(self._files, self._base)
        for run in runs:
            token = f"{hashlib.sha256(self._target.encode()).hexdigest()[:8]}.{run}"
            if f"{PREFIX}{token}.json" in names or f"{PREFIX}{token}.done" in names:
                continue
            reader = self._reader(run)
            if reader is not None and reader.pending:
                put_up(self._files, self._base, Notice(self._target, run), token=token)

    def _look(self, token: str, names: list[str], now: float) -> None:
        path = f"{self._base.control}/{PREFIX}{token}.json"
        notice = Notice.decode(path, self._files.read(path, NOTICE_LIMIT))
        if f"{PREFIX}{token}.done" in names:
            self._take_down(token, keep=not notice.spans)
            return
        reader = self._reader(notice.run)
        if reader is None:
            if not self._files.exists(self._base.run_folder(notice.run)):
                self._take_down(token, keep=False)
            return
        spans = notice.spans or ((0, reader.asked),)
        over = reader.asked > 0 and not any(
            start < stop and first < end for start, end in reader.waiting for first, stop in spans
        )
        failed = any(outcome in FAILED for outcome in failures_in(reader, spans).values())
        if over:
            self._send(token, notice, reader, spans, "done", now)
        elif failed and f"{PREFIX}{token}.failed" not in names:
            self._send(token, notice, reader, spans, "failed", now)

    def _send(
        self,
        token: str,
        notice: Notice,
        reader: RunReader,
        spans: tuple[Span, ...],
        event: str,
        now: float,
    ) -> None:
        key = token, event
        tries, again_at = self._tries.get(key, (0, 0.0))
        if key in self._sending or now < again_at or len(self._sending) >= MOST_SENDING:
            return
        stem = f"{self._base.control}/{PREFIX}{token}"
        if tries > len(TRY_AGAIN_S):
            self._journal.log("error", f"a message about {notice.run} could not be sent: given up")
            with contextlib.suppress(FileExistsError):
                self._files.write_new(f"{stem}.{event}", [b"given up\n"])
            return
        message = compose(self._base, reader, spans, event)
        self._sending[key] = _Sending(start(Envelope(notice.target, message, stem)), tries)

    def _reap(self, now: float) -> None:
        for key, sending in list(self._sending.items()):
            code = sending.process.poll()
            if code is None:
                continue
            del self._sending[key]
            assert sending.process.stderr is not None
            with sending.process.stderr as pipe:
                said = pipe.read().decode(errors="replace").strip()
            if code:
                wait_s = TRY_AGAIN_S[min(sending.tries, len(TRY_AGAIN_S) - 1)]
                self._tries[key] = sending.tries + 1, now + wait_s
                self._journal.log("warning", f"{said[-500:]}; tried again in {wait_s:g} s")
            else:
                self._tries.pop(key, None)

    def _take_down(self, token: str, *, keep: bool) -> None:
        """Remove a notice; of one that would be put up again, the mark stays."""
        stem = f"{self._base.control}/{PREFIX}{token}"
        for end in ("json", "failed", "lock", *(() if keep else ("done",))):
            self._files.remove(f"{stem}.{end}")

    def _sweep(self, names: list[str]) -> None:
        """Remove what is left of notices that have gone; a mark stays as long as its run."""
        for name in names:
            stem, _, end = name.rpartition(".")
            if name.startswith(PREFIX) and end != "json" and f"{stem}.json" not in names:
                run = stem.rpartition(".")[2]
                if end != "done" or not self._files.exists(self._base.run_folder(run)):
                    self._files.remove(f"{self._base.control}/{name}")

    def _reader(self, run: str) -> RunReader | None:
        try:
            reader = self._readers.get(run)
            if reader is None:
                reader = RunReader(self._files, self._base, run, self._jobs, self._outcomes)
            reader.refresh()
        except (OSError, BadFileError):
            self._readers.pop(run, None)
            return None
        self._readers[run] = reader
        return reader
