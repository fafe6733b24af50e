"""Notices: who gets a message about which jobs, and when it is due.

    control/notice.<token>.json      send TARGET a message when the first job fails, and at the end
    control/notice.<token>.failed    marker: the message about the first failure was sent
    control/notice.<token>.done      marker: the message about the end was sent
    control/notice.<token>.lock      held by the process that sends

The token is any word. `postroom master --notify` makes a notice for every run; their tokens end
with the run's id.

Every `postroom master` process handles notices, acting or not: lock and markers make sure that a
message is sent once. A notice is removed when its last message was sent, or when its run was
removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
from dataclasses import dataclass
from typing import ClassVar

from ..errors import BadFileError, OtherVersionError
from ..store.base import Base
from ..store.files import Files, new_token
from ..store.job_ids import JobId
from ..store.journal import Journal
from ..store.mailbox import is_plain_name
from ..store.records import JsonRecord
from ..store.runs import list_runs
from .notify import Envelope, Span, check_target, compose, failures_in, start
from .rows import FAILED
from .run_reader import RunReader, RunReaders

NOTICE_LIMIT = 1 << 20
PREFIX = "notice."
POLL_S = 1.0
# Retry a failed message after these times, then give up.
RETRY_S = (5.0, 30.0, 300.0, 1800.0)
# How many messages are sent at once; an address that hangs blocks one of them.
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


def save_notice(files: Files, base: Base, notice: Notice, *, token: str | None = None) -> str:
    """Write a notice, synced to disk; return its token."""
    check_target(notice.target)
    token = token or new_token(12)
    files.make_folder(base.control)
    temporary = base.temporary()
    files.write_new(temporary, [notice.encode()], sync=True)
    files.publish(temporary, f"{base.control}/{PREFIX}{token}.json")
    files.sync_folder(base.control)
    return token


def notify_of(files: Files, base: Base, jobs: list[JobId], target: str) -> None:
    """Ask for messages about jobs that were submitted together: a notice for each of their runs."""
    by_run: dict[str, list[int]] = {}
    for job in jobs:
        by_run.setdefault(job.run, []).append(job.number)
    for run, numbers in by_run.items():
        save_notice(files, base, Notice(target, run, tuple(_spans(sorted(numbers)))))


def noticed_runs(files: Files, base: Base) -> set[str]:
    """The runs about which a message is still due."""
    names = set(files.names(base.control))
    found = set()
    for name in names:
        stem = name.removesuffix(".json")
        if name.startswith(PREFIX) and stem != name and f"{stem}.done" not in names:
            path = f"{base.control}/{name}"
            try:
                found.add(Notice.decode(path, files.read(path, NOTICE_LIMIT)).run)
            except OtherVersionError:
                raise
            except (FileNotFoundError, BadFileError):
                pass
    return found


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
    """Handles the notices of a base; targets of its own get messages about every run."""

    def __init__(self, files: Files, base: Base, journal: Journal, *targets: str) -> None:
        self._files = files
        self._base = base
        self._journal = journal
        self._targets = [check_target(target) for target in targets]
        self._readers = RunReaders(files, base)
        self._sending: dict[tuple[str, str], _Sending] = {}
        # Failed messages: how many tries, and when to try again.
        self._tries: dict[tuple[str, str], tuple[int, float]] = {}
        self._next_at = 0.0
        self._ignored: set[str] = set()  # notices that cannot be read, and were named in the log

    def step(self, now: float) -> None:
        """At most once a second: send what is due, and remove what is done."""
        if now < self._next_at:
            return
        self._next_at = now + POLL_S
        self._reap(now)
        names = self._files.names(self._base.control)
        for target in self._targets:
            self._add_for_all_runs(target, names)
        for name in sorted(names):
            if name.startswith(PREFIX) and name.endswith(".json"):
                token = name.removeprefix(PREFIX).removesuffix(".json")
                try:
                    self._check(token, names, now)
                except (OSError, BadFileError) as error:
                    if name not in self._ignored:
                        self._ignored.add(name)
                        self._journal.log("warning", f"a notice is ignored: {error}")
        self._sweep(names)

    @property
    def sending(self) -> int:
        """How many messages are being sent."""
        return len(self._sending)

    def _add_for_all_runs(self, target: str, names: list[str]) -> None:
        """Every unfinished run gets a notice, once."""
        runs = list_runs(self._files, self._base)
        for run in runs:
            token = f"{hashlib.sha256(target.encode()).hexdigest()[:8]}.{run}"
            if f"{PREFIX}{token}.json" in names or f"{PREFIX}{token}.done" in names:
                continue
            reader = self._readers.get(run)
            if reader is not None and reader.pending:
                save_notice(self._files, self._base, Notice(target, run), token=token)

    def _check(self, token: str, names: list[str], now: float) -> None:
        path = f"{self._base.control}/{PREFIX}{token}.json"
        notice = Notice.decode(path, self._files.read(path, NOTICE_LIMIT))
        if f"{PREFIX}{token}.done" in names:
            self._remove(token, keep=not notice.spans)
            return
        reader = self._readers.get(notice.run)
        if reader is None:
            if not self._files.exists(self._base.run_folder(notice.run)):
                self._remove(token, keep=False)
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
        if tries > len(RETRY_S):
            self._journal.log(
                "error",
                f"a message about run {notice.run} could not be sent in {tries} tries, for the "
                "reasons logged before: giving up; check what --notify names",
            )
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
                stderr = pipe.read().decode(errors="replace").strip()
            if code:
                wait_s = RETRY_S[min(sending.tries, len(RETRY_S) - 1)]
                self._tries[key] = sending.tries + 1, now + wait_s
                why = stderr[-500:] or f"the process that sends it ended with code {code}"
                last = sending.tries + 1 > len(RETRY_S)
                then = "" if last else f"; trying again in {wait_s:g} s"
                self._journal.log("warning", f"a message was not sent: {why}{then}")
            else:
                self._tries.pop(key, None)

    def _remove(self, token: str, *, keep: bool) -> None:
        """Remove a notice; with `keep`, its marker stays, so that it is not made again."""
        stem = f"{self._base.control}/{PREFIX}{token}"
        for end in ("json", "failed", "lock", *(() if keep else ("done",))):
            self._files.remove(f"{stem}.{end}")

    def _sweep(self, names: list[str]) -> None:
        """Remove leftover files of removed notices; a marker stays as long as its run."""
        for name in names:
            stem, _, end = name.rpartition(".")
            if name.startswith(PREFIX) and end != "json" and f"{stem}.json" not in names:
                run = stem.rpartition(".")[2]
                if end != "done" or not self._files.exists(self._base.run_folder(run)):
                    self._files.remove(f"{self._base.control}/{name}")
