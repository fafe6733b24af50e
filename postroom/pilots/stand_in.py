"""The stand-in of a pilot: a process on this host that has its locks and its mailbox.

    Master ── mailbox ── stand-in ══ wire ══ far end: a session elsewhere

It takes letters as a session does, sends them over the wire with the files that they need, and does
on this side what the session does on that one: publishes its results, writes its notes, shortens
its letter, empties its mailbox. It imports nobody's code and no torch, so no job can hurt it. Only
what holds the agent's lock publishes: what is far away can not, however long it lives.

How a pilot ends decides what becomes of its job. If the engine says that it took the pilot away
(cancelled, time limit, preempted, node failed), if it does not answer, or if a signal ended what
carries the wire on this host, the job is requeued and nobody is blamed. If the far end died by
itself, the job in hand is noted as lost, as after the death of a worker. Only a stand-in blames a
job: when a stand-in is found dead, its letter is requeued, and nobody is blamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from ..errors import BadFileError, OtherVersionError, PostroomError
from ..store.agents import AgentInfo
from ..store.base import Base, open_base
from ..store.files import Box, Clock, Files, LocalFiles, Lock, SystemClock, replace_file
from ..store.journal import Journal
from ..store.kernel_output import keep_output
from ..store.mailbox import InHand, Letter, is_plain_name, put_up
from ..store.pilot_records import (
    PilotGroup,
    PilotGroups,
    PilotRecord,
    PilotState,
    change_groups,
    write_pilot,
)
from ..store.records import from_fields
from ..store.requests import read_stop
from ..store.runs import (
    Note,
    close_outboxes,
    read_run_info,
    take_back_letter,
    write_note,
)
from ..system.absence import may_pass
from ..system.file_events import Waiter
from ..system.processes import myself
from .engine import TAKEN_CODE, Engine, EngineError, Fate, Sighting, open_engine
from .far_end import GONE, PING_S, SILENT_S, VERSION, inside
from .letter_files import LetterFiles, Shipment
from .wire import Frame, Wire, WireError

# Before its engine ends a pilot, it takes no more letters, and its running job is told to stop.
DRAIN_S = 60.0
# How long to ask the engine what became of a pilot.
ASK_S = 20.0
# How often to look for stop orders.
LOOK_S = 0.2
# What is shipped of a project at most, and what never is.
SOURCE_BYTES = 64 << 20
NO_SOURCE = ("site-packages", "node_modules", "__pycache__")

T = TypeVar("T")


class TakenForDead(PostroomError):
    """Somebody else has taken back what this stand-in had."""


class StandIn:
    """One pilot on this side; `step` is one round."""

    def __init__(
        self,
        base: Base,
        record: PilotRecord,
        group: PilotGroup,
        engine: Engine,
        *,
        idle_s: float | None,
        files: Files | None = None,
        clock: Clock | None = None,
        journal: Journal | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`idle_s`: end it after so long without a letter; None: never."""
        self._files: Files = files or LocalFiles()
        self._clock: Clock = clock or SystemClock()
        self._sleep = sleep
        self._base = base
        self._group = group
        self._engine = engine
        self._idle_s = idle_s
        self._agent_id = record.pilot
        self._journal = journal or Journal(base, f"stand-in {record.pilot}")
        self.record = record
        self._lock = self._take_lock(base.agent_lock(record.pilot))
        self._tree = self._take_lock(base.agent_tree(record.pilot))
        at = self._clock.wall()
        take_back_letter(
            self._files, base, record.pilot, reason="its stand-in died", at=at, blame=False
        )
        self._outbox = base.new_outbox(record.pilot)
        self._files.make_folder(self._outbox)
        self._heard: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: Wire | None = None
        self._reader: threading.Thread | None = None
        self._ships: LetterFiles | None = None
        self._waiter: Waiter | None = None  # while it runs as a process
        self._box: Box | None = None
        self._hand: Box | None = None
        self._letter: Letter | None = None
        self._shipment: Shipment | None = None
        self._epoch = 0
        self._job: InHand | None = None  # what the far session does now
        self._done = 0
        self._stops = 0
        self._told_by_engine = False  # to stop
        self._refuses = False  # a letter names what another version has written
        self._drains = ""  # why it takes no more letters
        self._stopped: set[tuple[int, int]] = set()  # jobs and attempts that were told to stop
        self._look_at = self._ping_at = 0.0
        self._idle_since = self._clock.monotonic()
        self._said = ""  # why the far end left
        self.ended = False

    # Its beginning and its end

    def start(self) -> None:
        """Have the engine start the pilot."""
        self._note(state=PilotState.SUBMITTED)
        command = self._engine.command(self._group, self.record.job_name)
        log = os.open(
            self._base.pilot_log(self._agent_id),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW,
            0o600,
        )
        # If we are in a job of the cluster ourselves, the pilot is not to become a part of that.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_JOB", "SLURM_STEP", "SLURM_TASK", "SLURM_NODE"))
        }
        try:
            # In a session of its own: a Ctrl-C is not for it. It does not die with us: it ends when
            # its far end does, which sees the end of the wire, and so gives back what it has.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._said = f"{command[0]}: {error.strerror}"
            self._heard.put(None)
            return
        finally:
            os.close(log)
        assert self._process.stdout is not None and self._process.stdin is not None
        self.connect(self._process.stdout.fileno(), os.dup(self._process.stdin.fileno()))
        self._process.stdin.close()

    def connect(self, reads: int, writes: int) -> None:
        """Talk to a far end over these descriptors."""
        wire = Wire(reads, writes, spool=lambda: self._base.temporary(self._outbox))

        def read() -> None:
            try:
                for frame in wire.frames():
                    self.hear(frame)
            except Exception as error:
                self._said = self._said or str(error)
            self.hear(None)

        self._reader = threading.Thread(target=read, name="wire reader", daemon=True)
        self._reader.start()
        self.attach(wire)

    def hear(self, frame: Frame | None) -> None:
        """Have the next round hear what has come over the wire; None: its end."""
        self._heard.put(frame)
        if self._waiter is not None:
            self._waiter.wake()

    def attach(self, wire: Wire) -> None:
        """Talk to a far end over a wire that somebody else reads."""
        self._wire = wire
        self._ships = LetterFiles(self._files, self._base, wire)
        wire.send(
            "hello",
            version=VERSION,
            agent=self._agent_id,
            gpus=self._group.gpus,
            preload=self._group.preload,
            share=self._group.shares_cards,
        )

    def run(self) -> int:
        """Serve until the pilot ends; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        waiter = self._waiter = Waiter([self._base.agent_pool, self._base.control], spin=False)
        self.start()
        while not self.ended:
            self.step(self._clock.monotonic())
            if not self.ended:
                busy = self._letter is not None
                if busy:
                    waiter.expect_more(self._clock.monotonic())
                waiter.wait(LOOK_S if busy else 1.0, self._is_due)
        return 0

    def _on_signal(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Have it end after its job; told twice, now."""
        self._stops += 1
        if self._waiter is not None:
            self._waiter.wake()

    def _is_due(self) -> bool:
        if not self._heard.empty():
            return True
        return self._box is not None and self._letter is None and self._box.size() > 0

    def step(self, now: float) -> None:
        """One round: hear the far end, take a letter, look at the clock."""
        try:
            self._step(now)
        except TakenForDead:
            raise
        except OSError as error:
            # A disk that does not answer: the next round tries again. A pilot may have waited for
            # its node for hours.
            if not may_pass(error):
                self._give_up(error, blame=False)
        except Exception as error:
            # A far end that says what nobody understands may do so for the same job again: that
            # counts against the job, or it would be sent for ever. Trouble of this host does not.
            self._give_up(error, blame=True)

    def _give_up(self, error: Exception, *, blame: bool) -> None:
        self._said = f"its stand-in cannot go on: {error!r}"
        self._cancel(blame=blame)

    def _step(self, now: float) -> None:
        while not self.ended and not self._heard.empty():
            frame = self._heard.get()
            if frame is None:
                self._wire_ended()
                return
            self._hear(frame)
        if self.ended:
            return
        self._look_at_clock(now)
        if self._letter is None and self._box is not None and not self.ended:
            self._take(now)

    def close(self) -> None:
        """Let go of everything; its far end sees the end of the wire."""
        if self._wire is not None:
            self._wire.close(wait_s=1.0)
        if self._reader is not None:
            self._reader.join(1.0)
        if self._ships is not None:
            self._ships.close()
        if self._waiter is not None:
            self._waiter.close()
        for box in (self._box, self._hand):
            if box is not None:
                box.close()
        self._tree.release()
        self._lock.release()

    def _take_lock(self, path: str) -> Lock:
        give_up_at = self._clock.monotonic() + 2.0
        while (lock := self._files.try_lock(path)) is None:
            if self._clock.monotonic() > give_up_at:
                raise PostroomError(f"pilot {self._agent_id} of {self._base.root} runs already")
            self._sleep(0.02)
        return lock

    def _note(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)
        with contextlib.suppress(OSError):  # for people, and for the keeper, which asks the engine
            write_pilot(self._files, self._base, self.record)

    # What the far end says

    def _hear(self, frame: Frame) -> None:
        words = frame.words
        letter = self._letter
        if "letter" in words and (letter is None or letter.letter_id != words["letter"]):
            self._forget(frame)
            return  # of a letter that it does not have any more
        match frame.kind:
            case "hello":
                self._greet(words)
            case "ready":
                self._serve(words)
            case "want source":
                self._insist(lambda: self._send_source(str(words["run"])))
            case "hand":
                self._take_in_hand(words)
            case "output" | "log":
                self._take_output(frame)
            case "folder":
                self._insist(lambda: self._put_in_folder(frame))
            case "kept":
                path = self._base.kept_result(self._run_of(words), int(words["job"]))
                self._insist(lambda: self._move_in(frame, path))
            case "result":
                self._insist(lambda: self._publish(frame))
            case "note":
                self._insist(lambda: self._write_note(frame))
            case "cut":
                self._shorten(int(words["stop"]))
            case "empty":
                self._insist(self._end_letter)
            case "draining":
                self._told_by_engine = True
                self._drain(str(words["why"]))
            case "bye":
                self._said = str(words["why"])

    def _greet(self, words: dict[str, Any]) -> None:
        if words["version"] != VERSION:
            self._said = f"the node has another version of Postroom: {words['version']}"
            self._cancel()
            return
        ends_at = float(words["ends_at"])
        if not ends_at:
            with contextlib.suppress(EngineError):
                seen = self._engine.look({self.record.job_name}).get(self.record.job_name)
                ends_at = seen.ends_at if seen is not None else 0.0
        if not ends_at and self._group.time_s is not None:
            ends_at = self._clock.wall() + self._group.time_s
        self._note(
            state=PilotState.STARTING,
            node=str(words["node"]),
            engine_id=str(words["engine_id"]) or self.record.engine_id,
            ends_at=ends_at,
            why="",
        )

    def _serve(self, words: dict[str, Any]) -> None:
        """The far session is ready: put up a mailbox."""
        me = myself()
        info = AgentInfo(
            agent=self._agent_id,
            gpu=str(words["gpu"]),
            gpu_name=str(words["gpu_name"]),
            host=socket.gethostname(),
            boot_id=me.boot_id,
            pid=me.pid,
            started=me.started_ticks,
            since=self._clock.wall(),
            pid_namespace=me.pid_namespace,
            gpus=int(words["gpus"]),
            memory_mib=int(words["memory_mib"]),
            where=self._group.engine,
            node=self.record.node,
            ends_at=self.record.ends_at,
        )

        def put() -> None:
            # Synced: after a power loss, the mailbox alone would look like that of a session, whose
            # job is blamed.
            path = self._base.agent_info(self._agent_id)
            replace_file(self._files, self._base.temporary(), path, info.encode(), sync=True)
            self._files.remove(self._base.in_hand(self._agent_id))
            self._hand = self._files.create_box(self._base.in_hand(self._agent_id))
            self._write_hand(InHand("idle", since=self._clock.wall()))
            if not self._drains:
                self._box = put_up(self._files, self._base, self._agent_id)

        self._insist(put)
        self._tell_group(info)
        self._idle_since = self._clock.monotonic()
        self._note(
            state=PilotState.SERVING, ready_at=self._clock.wall(), idle_since=self._clock.wall()
        )

    def _tell_group(self, info: AgentInfo) -> None:
        """Say which GPU there is: for jobs that do not fit it, no pilots are started."""
        memory_mib = max(info.memory_mib, self._group.memory_mib)
        if (memory_mib, info.gpu_name) == (self._group.memory_mib, self._group.gpu_name):
            return

        def change(groups: PilotGroups) -> None:
            if group := groups.groups.get(self.record.group):
                group.memory_mib = max(memory_mib, group.memory_mib)
                group.gpu_name = info.gpu_name

        with contextlib.suppress(OSError, PostroomError):  # the next one says it
            change_groups(self._files, self._base, change)

    def _take_in_hand(self, words: dict[str, Any]) -> None:
        assert self._letter is not None
        self._job = InHand(
            "running", self._letter.letter_id, int(words["job"]), float(words["since"])
        )
        self._write_hand(self._job)

    def _take_output(self, frame: Frame) -> None:
        if frame.kind == "log":
            with (
                contextlib.suppress(OSError),
                open(self._base.pilot_log(self._agent_id), "ab") as file,
            ):
                file.write(_load(frame))
            return
        keep_output(self._base, self._agent_id, self._run_of(frame.words), _load(frame))

    def _put_in_folder(self, frame: Frame) -> None:
        """Write a part of a file of a command, or a whole one, into the command's folder."""
        words = frame.words
        job = int(words["job"])
        if self._shipment is None or job not in self._shipment.folders:
            self._forget(frame)
            return
        path = inside(self._shipment.folders[job], str(words["name"]))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        at = int(words["at"])
        if at < 0:
            self._move_in(frame, path)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o644)
        try:
            data = _load(frame, keep=True)
            os.pwrite(fd, data, at)
            os.ftruncate(fd, at + len(data))
        finally:
            os.close(fd)
        self._forget(frame)

    def _move_in(self, frame: Frame, path: str) -> None:
        if not frame.path:
            frame.path = self._base.temporary(self._outbox)
            self._files.write_new(frame.path, [frame.data])
        try:
            self._files.move(frame.path, path)
        except OSError:  # another filesystem
            temporary = f"{path}.{os.getpid()}.new"
            with open(frame.path, "rb") as source, open(temporary, "wb") as target:
                while data := source.read(1 << 20):
                    target.write(data)
            os.replace(temporary, path)
            self._forget(frame)

    def _publish(self, frame: Frame) -> None:
        """Publish results as they came; a name that is taken is never replaced."""
        letter, shipment = self._letter, self._shipment
        assert letter is not None and shipment is not None
        first, jobs = int(frame.words["first"]), int(frame.words["jobs"])
        if not letter.first <= first < first + jobs <= letter.stop:
            raise WireError(f"results of jobs {first} to {first + jobs}, not of {letter}")
        sync = shipment.info.durable
        if not frame.path:
            path = self._base.temporary(self._outbox)
            self._files.write_new(path, [frame.data], sync=sync)
            frame.path = path
        elif sync:
            self._files.sync_file(frame.path)
        if self._files.publish(frame.path, self._base.result(letter.run, first)):
            if sync:
                self._files.sync_folder(self._base.result_folder(letter.run))
            self._done += jobs
            self._write_hand(self._job or InHand("running", letter.letter_id, first))

    def _write_note(self, frame: Frame) -> None:
        letter = self._letter
        assert letter is not None
        note = Note.decode("a note", _load(frame, keep=True))
        note = replace(
            note,
            run=letter.run,
            job=int(frame.words["job"]),
            attempt=letter.attempt,
            agent=self._agent_id,
        )
        write_note(self._files, self._base, note, outbox=self._outbox)

    def _shorten(self, stop: int) -> None:
        letter = self._letter
        assert letter is not None and self._box is not None
        if letter.first < stop < letter.stop:
            self._letter, line = letter.shortened(stop)
            with contextlib.suppress(OSError):
                self._box.append(line)

    def _end_letter(self) -> None:
        assert self._box is not None
        self._box.clear()
        self._letter = self._shipment = self._job = None
        self._idle_since = self._clock.monotonic()
        self._write_hand(InHand("idle", since=self._clock.wall(), done=self._done))
        if self._drains:
            self._take_down()

    def _run_of(self, words: dict[str, Any]) -> str:
        run = str(words["run"])
        if not is_plain_name(run):
            raise WireError(f"{run!r} is no run")
        return run

    def _forget(self, frame: Frame) -> None:
        if frame.path:
            self._files.remove(frame.path)

    def _write_hand(self, hand: InHand) -> None:
        if self._hand is not None:
            with contextlib.suppress(OSError):
                self._hand.write(hand._replace(done=self._done).encode())

    # Letters

    def _take(self, now: float) -> None:
        assert self._box is not None and self._wire is not None and self._ships is not None
        if not self._box.size():
            if self._box.gone():
                self._said = "its mailbox was removed by somebody else"
                self._cancel()
            elif self._idle_s is not None and now - self._idle_since >= self._idle_s:
                self._drain("idle")
            return
        letter = Letter.decode(self._box.read())
        if letter is None or letter.epoch < self._epoch:
            return
        self._epoch = letter.epoch
        left_s = self.record.ends_at - self._clock.wall() if self.record.ends_at else None
        try:
            shipment = self._ships.ship(letter, left_s=left_s)
        except OtherVersionError as error:
            # Until somebody updates this host: to leave would only have the next pilot start.
            if not self._refuses:
                self._journal.log("error", f"pilot {self._agent_id} cannot go on: {error}")
                self._write_hand(InHand("blocked", since=self._clock.wall()))
            self._refuses = True
            return
        except (FileNotFoundError, BadFileError) as error:
            self._journal.log("warning", f"letter of an unknown run dropped: {error}")
            self._box.clear()
            return
        except OSError as error:
            # What was sent in part cannot be sent again; else the next round tries again.
            if self._ships.parts or not may_pass(error):
                self._give_up(error, blame=False)
            return
        self._refuses = False
        why = f"a job may take {shipment.timeout_s} s, and {left_s} s are left"
        if shipment.stop == letter.first:
            self._drain(why)
            return
        self._letter, self._shipment = letter, shipment
        self._job = None
        if shipment.stop < letter.stop:
            self._shorten(shipment.stop)
            self._drain(why)
        if self.record.idle_since:
            self._note(idle_since=0.0)

    def _send_source(self, run: str) -> None:
        """Send the Python files of a run's project."""
        assert self._wire is not None
        info = read_run_info(self._files, self._base, run)
        data = pack_source(info.import_folder)
        digest = hashlib.sha256(data).hexdigest()[:16]
        self._wire.send("source", data, run=run, digest=digest)

    # Its clock

    def _look_at_clock(self, now: float) -> None:
        wire = self._wire
        if wire is None:
            return
        if self._stops > 1:
            self._said = self._said or "stopped"
            self._cancel()
            return
        if self._stops:
            self._drain("stopped")
        if now >= self._ping_at:
            self._ping_at = now + PING_S
            wire.send("ping")
            if self.record.state is PilotState.SERVING:
                idle = (
                    self._clock.wall() - (now - self._idle_since) if self._letter is None else 0.0
                )
                if abs(idle - self.record.idle_since) > 1.0 or self._done != self.record.jobs:
                    self._note(idle_since=idle, jobs=self._done)
        talks = self.record.state is not PilotState.SUBMITTED
        if talks and now - wire.heard_at > SILENT_S:
            self._said = f"nothing was heard of it for {SILENT_S:g} s"
            self._cancel()
            return
        left_s = self.record.ends_at - self._clock.wall() if self.record.ends_at else None
        if left_s is not None and talks and left_s < self._margin_s:
            self._drain("its time is nearly over")
        if now >= self._look_at and self._letter is not None:
            self._look_at = now + LOOK_S
            self._pass_stop_orders(left_s)

    @property
    def _margin_s(self) -> float:
        """How long before its end a pilot is told to drain."""
        time_s = self._group.time_s
        return DRAIN_S if time_s is None else min(DRAIN_S, time_s / 5)

    def _pass_stop_orders(self, left_s: float | None) -> None:
        letter, job = self._letter, self._job
        assert letter is not None and self._wire is not None and self._shipment is not None
        if job is None or (job.job, letter.attempt) in self._stopped:
            return
        order = read_stop(self._files, self._base, letter.run, job.job, letter.attempt)
        words: dict[str, Any] = {}
        if order is not None:
            words = {"final": order.final, "reason": order.reason}
        elif left_s is not None:
            # A command gets the time that it needs to save its state; a task can save none.
            least = self._margin_s if job.job in self._shipment.folders else self._margin_s / 4
            if left_s < least:
                words = {"final": False, "reason": "its pilot's time is nearly over"}
        if words:
            self._stopped.add((job.job, letter.attempt))
            self._wire.send("stop", run=letter.run, job=job.job, attempt=letter.attempt, **words)

    def _drain(self, why: str) -> None:
        """Take no more letters; end when the one in hand is done."""
        if self._drains:
            return
        self._drains = why
        self._note(state=PilotState.DRAINING, why=why)
        if self._letter is None:
            self._take_down()

    def _take_down(self) -> None:
        """Remove the mailbox, and tell the far end to leave: nothing is in its hands."""
        assert self._wire is not None
        if self._box is not None:
            with contextlib.suppress(OSError):
                self._files.move(self._base.mailbox(self._agent_id), f"{self._outbox}/mailbox")
                self._files.remove(f"{self._outbox}/mailbox")
            self._box.close()
            self._box = None
        self._wire.send("end")

    # Its end

    def _cancel(self, *, blame: bool = False) -> None:
        """End it now: tell the engine, close the wire, and only then lay down the letter."""
        until = self._clock.monotonic() + ASK_S
        while True:
            try:
                self._engine.cancel(self.record.job_name, self.record.engine_id)
                break
            except EngineError as error:
                self._journal.log("error", f"cannot cancel pilot {self._agent_id}: {error}")
                if self._clock.monotonic() > until:
                    break
                self._sleep(0.5)
        self._finish(self._said or "cancelled", blame=blame)

    def _wire_ended(self) -> None:
        """The far end is gone: ask the engine why."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
        if self._drains and self._letter is None and self._said in ("drained", ""):
            seen = self._ask_engine() if self._told_by_engine else None
            words = f": {seen.why}" if seen is not None and seen.why else ""
            self._finish(f"{self._drains}{words}", blame=False, sighting=seen)
            return
        sighting = self._ask_engine()
        code = self._process.returncode if self._process is not None else None
        if code == TAKEN_CODE:
            sighting = Sighting("", Fate.TAKEN, self._last_words())
        elif sighting is None or sighting.fate is Fate.ENDED:
            if code == 0:  # it left in order: it could not reach us
                sighting = Sighting("", Fate.TAKEN, GONE)
            elif code is not None and code < 0 and self._engine.carries:
                sighting = Sighting("", Fate.TAKEN, f"signal {-code} ended what carries its wire")
        words = self._said if self._said not in ("", "drained") else ""
        if sighting is not None and sighting.fate is Fate.TAKEN:
            self._finish(sighting.why or "taken by its engine", blame=False, sighting=sighting)
            return
        why = words or (sighting.why if sighting is not None else "") or self._last_words()
        # It left because we were stopped, or nobody can be asked: then no new pilot can come that
        # the same job would end.
        innocent = words == GONE or (sighting is not None and sighting.fate is Fate.UNKNOWN)
        self._finish(why or "its far end died", blame=not innocent, sighting=sighting)

    def _ask_engine(self) -> Sighting | None:
        """What the engine says became of the pilot; None: it does not know it any more."""
        said = "its engine does not say that it has ended"
        until = self._clock.monotonic() + ASK_S
        name = self.record.job_name
        while self._clock.monotonic() < until:
            try:
                seen = self._engine.look({name}).get(name)
            except EngineError as error:
                self._journal.log("warning", f"cannot ask about pilot {self._agent_id}: {error}")
                said = str(error)
                self._sleep(0.5)
                continue
            if seen is None or seen.fate in (Fate.ENDED, Fate.TAKEN):
                return seen
            self._sleep(0.2)
        return Sighting("", Fate.UNKNOWN, said)

    def _last_words(self) -> str:
        """The last line that the engine or the far end has printed."""
        with contextlib.suppress(OSError), open(self._base.pilot_log(self._agent_id), "rb") as file:
            lines = file.read()[-4000:].decode(errors="replace").strip().splitlines()
            words = [line for line in lines if not line.startswith("{")]
            return words[-1] if words else ""
        return ""

    def _finish(self, why: str, *, blame: bool, sighting: Sighting | None = None) -> None:
        """Nothing can come over the wire any more: lay down the letter, and leave."""
        fault = not self.record.ready_at and not self._drains
        if self._wire is not None:
            self._wire.close(wait_s=1.0)
        self._end_process()
        letter = self._letter
        reason = f"its pilot ended: {why}"

        def lay_down() -> None:
            take_back_letter(
                self._files,
                self._base,
                self._agent_id,
                reason=reason,
                at=self._clock.wall(),
                blame=blame,
            )

        self._insist(lay_down)
        with contextlib.suppress(OSError):
            close_outboxes(self._files, self._base, self._agent_id)
            self._files.remove(self._base.agent_info(self._agent_id))
        begun = letter is not None and blame
        level = "warning" if fault or begun else "info"
        self._journal.log(level, f"pilot {self._agent_id} ended: {why}")
        self._note(
            state=PilotState.ENDED,
            why=why,
            ended_at=self._clock.wall(),
            jobs=self._done,
            fault=fault,
            engine_id=(sighting.engine_id if sighting else "") or self.record.engine_id,
        )
        self.ended = True

    def _end_process(self) -> None:
        """End what the engine's command is on this host; by now it has nothing to carry."""
        process = self._process
        if process is None:
            return
        for end in (process.terminate, process.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
                break
            end()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _insist(self, action: Callable[[], T]) -> T | None:
        """Do what must be done before anything else: wait for the disk, unless told to stop twice.

        What belongs to a run that was removed is dropped.
        """
        told = False
        while True:
            try:
                return action()
            except FileNotFoundError:
                if not self._files.exists(self._outbox):
                    raise TakenForDead("it was taken for dead, or its base was removed") from None
                return None
            except OSError as error:
                if not may_pass(error):
                    raise
                if not told:
                    self._journal.log("error", f"results wait: {error.strerror}")
                    self._write_hand(InHand("blocked", since=self._clock.wall()))
                told = True
                if self._stops > 1:
                    return None
                self._sleep(0.5)


def pack_source(folder: str) -> bytes:
    """The Python files of a project, as a tar; PostroomError: they are too much to send."""
    packed = io.BytesIO()
    total = 0
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for parent, folders, names in os.walk(folder):
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".")
                and name not in NO_SOURCE
                and not os.path.exists(f"{parent}/{name}/pyvenv.cfg")
                and not os.path.exists(f"{parent}/{name}/FORMAT")
            )
            for name in sorted(names):
                path = f"{parent}/{name}"
                if name.endswith(".py") and os.path.isfile(path):
                    total += os.path.getsize(path)
                    if total > SOURCE_BYTES:
                        raise PostroomError(
                            f"the Python files of {folder} are more than {SOURCE_BYTES >> 20} MiB: "
                            "give the folder of the project alone: Master(base, import_folder=...)"
                        )
                    info = archive.gettarinfo(path, os.path.relpath(path, folder))
                    info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
                    with open(path, "rb") as file:
                        archive.addfile(info, file)
    return packed.getvalue()


def _load(frame: Frame, *, keep: bool = False) -> bytes:
    if not frame.path:
        return frame.data
    with open(frame.path, "rb") as file:
        data = file.read()
    if not keep:
        os.unlink(frame.path)
    return data


def main(arguments: list[str]) -> int:
    """Run the stand-in of a pilot: BASE RECORD GROUP IDLE, the last three in JSON."""
    folder, said, of_group, idle = arguments
    base = open_base(folder)
    record = PilotRecord.decode("its record", said.encode())
    group = from_fields(PilotGroup, json.loads(of_group))
    try:
        stand_in = StandIn(base, record, group, open_engine(group), idle_s=json.loads(idle))
        try:
            return stand_in.run()
        finally:
            stand_in.close()
    except PostroomError as error:
        print(f"stand-in {record.pilot}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
