"""What a letter needs on the far side: the files of the base that its jobs read, each sent once.

The far end has a base of its own, with nothing in it but what was sent. A record of the append log
is put at the same byte as here, so a letter means the same there. What was sent is remembered, and
when it becomes too much, the far end is told to drop what was used the longest time ago.

A letter with large arguments goes in parts: the first jobs begin while the arguments of the others
are on their way, so that neither the latency nor the width of the network shows.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from ..commands.spec import COMMAND, CommandSpec
from ..errors import BadFileError, OtherVersionError
from ..parcel.container import PARCEL_LIMIT
from ..parcel.sheets import JobSheet
from ..store.append_log import Record, RecordReader
from ..store.base import SUFFIX, Base
from ..store.edited_jobs import LIMIT, read_edited
from ..store.files import Files
from ..store.mailbox import Letter
from ..store.runs import INFO_LIMIT, RunInfo, read_run_info
from .wire import Wire

# The far end keeps at most this much of what was sent and may be needed again.
KEEP_BYTES = 1 << 30
# A part of a letter is sent once this many bytes have been sent for it.
PART_BYTES = 1 << 20


@dataclass
class Shipment:
    """What is to be known of a letter that was sent."""

    info: RunInfo
    stop: int  # one behind the last job that was sent
    folders: dict[int, str] = field(default_factory=dict)  # by job: the folder of a command
    timeout_s: float | None = None  # the time limit of the first job that was not sent


class LetterFiles:
    """Sends what the letters of one pilot need."""

    def __init__(self, files: Files, base: Base, wire: Wire) -> None:
        self._files = files
        self._base = base
        self._wire = wire
        self._info: RunInfo | None = None
        self._reader: RecordReader | None = None
        self._sent: dict[tuple[str, ...], int] = {}  # kind and names: bytes; the newest last
        self._used: set[tuple[str, ...]] = set()  # by the current letter
        self._sheet: tuple[Record, JobSheet] | None = None
        self.parts = 0  # of the current letter, that were sent
        self._unsent = 0  # how much was sent for jobs that no part has named yet

    def ship(self, letter: Letter, *, left_s: float | None = None) -> Shipment:
        """Send a letter, and all that its jobs read.

        Jobs that may take longer than `left_s` are not sent, nor those behind them: `stop` says so.

        FileNotFoundError, BadFileError: the run is gone. A job that is not there is not sent: the
        far end finds that out as any session does, and says so as the job's outcome. Another
        OSError is trouble of this host, and says nothing about the job.
        """
        self._used.clear()
        self.parts = 0
        info = self._begin_run(letter.run)
        shipment = Shipment(info, letter.stop)
        if info.shared is not None:
            self._send_file("data", (info.shared,), self._base.data(info.shared))
        if letter.attempt > 1:
            self._send_note(letter)
        job = part = letter.first
        place: int | None = letter.offset
        start = letter  # of the part
        while job < letter.stop:
            try:
                record, sheet = self._send_record(info, letter, job, place)
            except OtherVersionError:
                raise
            except (BadFileError, FileNotFoundError):
                break
            stop = min(record.stop, letter.stop)
            if info.queue:  # one job in each letter
                sheet = self._send_edited(info.run, job) or sheet
            limit_s = sheet.options.timeout_s
            if left_s is not None and limit_s is not None and limit_s > left_s:
                shipment.stop, shipment.timeout_s = job, limit_s
                break
            if job == part:
                start = letter._replace(parcel=record.number, first=job, offset=record.at)
            if sheet.task == COMMAND:
                for number in range(job, stop):
                    shipment.folders[number] = self._send_command(info.run, sheet, number)
            job, place = stop, None
            if self._unsent >= PART_BYTES and job < letter.stop:
                self._send_part(start._replace(stop=job), shipment, more=True)
                part = job
        if part < shipment.stop:
            self._send_part(start._replace(stop=shipment.stop), shipment, more=False)
        elif part > letter.first:
            self._wire.send("no more", letter=letter.letter_id)
        self._drop_oldest()
        return shipment

    def _send_part(self, part: Letter, shipment: Shipment, *, more: bool) -> None:
        commands = [job for job in shipment.folders if part.first <= job < part.stop]
        line = part.encode().decode()
        self._wire.send("letter", line=line, commands=commands, more=more)
        self.parts += 1
        self._unsent = 0

    def close(self) -> None:
        """Close what is open."""
        self._sheet = None
        if self._reader is not None:
            self._reader.close()

    def _begin_run(self, run: str) -> RunInfo:
        if self._info is None or self._info.run != run:
            self._info = None
            info = read_run_info(self._files, self._base, run)
            if self._reader is not None:
                self._reader.close()
            self._reader = RecordReader(self._files, self._base, run, recycled=info.recycled)
            self._sheet = None
            self._info = info
        self._send_file("run", (run,), self._base.run_info(run))
        return self._info

    def _send_record(
        self, info: RunInfo, letter: Letter, job: int, place: int | None
    ) -> tuple[Record, JobSheet]:
        if self._sheet is not None and self._sheet[0].number <= job < self._sheet[0].stop:
            record, sheet = self._sheet
        else:
            assert self._reader is not None
            self._sheet = None
            record = self._reader.find(job, place, ahead=letter.stop - job)
            sheet = self._reader.open_record(record)
            self._sheet = record, sheet
        key = ("record", info.run, str(record.at))
        if not self._knows(key):
            log = self._files.open_append_file(self._base.append_log(info.run))
            if log is None:
                raise FileNotFoundError(self._base.append_log(info.run))
            with contextlib.closing(log):
                data = log.read(record.at, record.end - record.at)
            self._wire.send("record", data, run=info.run, at=record.at)
            self._sent[key] = len(data)
        path = sheet.parcel.path
        if path != self._base.append_log(info.run):
            name = os.path.basename(path).removesuffix(SUFFIX)
            self._send_file("parcel", (info.run, name), path, recycled=info.recycled)
        return record, sheet

    def _send_edited(self, run: str, job: int) -> JobSheet | None:
        with contextlib.suppress(BadFileError):  # its session says so
            sheet = read_edited(self._files, self._base, run, job)
            if sheet is not None:
                load = self._files.read(self._base.edited(run, job), LIMIT)
                self._wire.send("edited", load, run=run, job=job)
            return sheet
        return None

    def _send_command(self, run: str, sheet: JobSheet, job: int) -> str:
        """Send the environment, the code and the checkpoint of a command; return its folder."""
        folder = self._base.job_folder(run, job)
        with contextlib.suppress(BadFileError, TypeError):  # its session says so
            spec = CommandSpec.of_job(sheet, job)
            folder = spec.folder or folder
            for kind, name, path in (
                ("environment", spec.environment, self._base.environment(run, spec.environment)),
                ("snapshot", spec.snapshot, self._base.code_snapshot(run, spec.snapshot)),
            ):
                if name:
                    with contextlib.suppress(FileNotFoundError):
                        self._send_file(kind, (run, name), path)
            if spec.checkpoint:
                self._send_folder(run, job, f"{folder}/checkpoint")
        return folder

    def _send_folder(self, run: str, job: int, folder: str) -> None:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = f"{parent}/{name}"
                with contextlib.suppress(OSError, BadFileError):
                    load = self._files.view(path, PARCEL_LIMIT)
                    inside = os.path.relpath(path, folder)
                    self._wire.send("checkpoint", load, run=run, job=job, name=inside)

    def _send_note(self, letter: Letter) -> None:
        """Why the last attempt ended: one that ran out of memory is given the card alone."""
        path = self._base.attempt(letter.run, letter.first, letter.attempt - 1)
        with contextlib.suppress(OSError, BadFileError):
            load = self._files.read(path, INFO_LIMIT)
            number = letter.attempt - 1
            self._wire.send("note", load, run=letter.run, job=letter.first, attempt=number)

    def _knows(self, key: tuple[str, ...]) -> bool:
        self._used.add(key)
        if key not in self._sent:
            return False
        self._sent[key] = self._sent.pop(key)  # now it is the newest
        return True

    def _send_file(
        self, kind: str, names: tuple[str, ...], path: str, *, recycled: bool = False
    ) -> None:
        if self._knows((kind, *names)):
            return
        load = self._files.view(path, PARCEL_LIMIT, recycled=recycled)
        self._wire.send(kind, load, names=names)
        self._unsent += len(load)
        self._sent[kind, *names] = len(load)

    def _drop_oldest(self) -> None:
        total = sum(self._sent.values())
        for key in list(self._sent):
            if total <= KEEP_BYTES:
                return
            if key not in self._used and key[0] != "run":
                total -= self._sent.pop(key)
                self._wire.send("drop", what=key)
