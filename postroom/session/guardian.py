"""The guardian: pins a GPU, holds its locks, watches the worker, kills it and starts it again.

    STARTING --ready--> SERVING --worker dies--> STARTING (what it had is noted and given on)
        |                  |--SIGTERM, Ctrl-C--> DRAINING --worker ends--> gone
        |                  |--again------------> worker killed ----------> gone
        '-- three workers in a row die with different jobs, or three before they are ready: gone

It never imports torch, so it starts at once, stays small, and is not hurt by what hurts a worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

from ..commands.minder import MinderContext
from ..errors import BadFileError, PostroomError
from ..parcel.sheets import RanBy
from ..store.agents import AgentInfo, read_agent_info
from ..store.base import Base
from ..store.files import LocalFiles, LocalLock
from ..store.journal import Journal
from ..store.mailbox import read_in_hand
from ..store.requests import read_stop
from ..store.runs import Note, close_outboxes, read_run_info, take_back_letter, write_note
from ..store.snapshot import living_agents
from ..system import cgroups
from ..system.file_events import listen
from ..system.process_tree import MARK, SHARES, adopt_orphans, below, mark_of, reap, sweep
from ..system.processes import myself
from .card_health import CardHealth, ask_driver, quarantine
from .command_relay import CommandRelay
from .forked_worker import ForkedWorker, fork_worker
from .task_output import TaskOutput
from .timeouts import job_in_hand

# A full disk is tried again after this long.
BLOCKED_S = 0.5
# How often a guardian that hears nothing sees whether its base is still there.
LOOK_S = 2.0
PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

T = TypeVar("T")


@dataclass
class SessionSlot:
    """What a session is to run on."""

    agent_id: str
    gpu: str  # the card's uuid, or "cpu"
    gpu_name: str
    environment: dict[str, str]  # pins the worker
    lease_fds: tuple[int, ...] = ()  # handed down to every process of the session
    threads: int | None = None
    preload: list[str] = field(default_factory=lambda: ["torch"])
    gpus: int = 0  # how many cards
    memory_mib: int = 0  # of the smallest of them
    shares: bool = False  # they are not leased: each job books its part of one


class SessionError(PostroomError):
    """A session cannot start, or had to stop itself."""


class Guardian:
    """One session's watching half."""

    def __init__(self, base: Base, slot: SessionSlot, *, talk: bool = True) -> None:
        self._files = LocalFiles()
        self._base = base
        self._slot = slot
        self._talk = talk
        self._journal = Journal(base, f"guardian {slot.agent_id}")
        self._mark = mark_of(base.root, slot.agent_id)
        self._helpers = below(os.getpid())  # a ledger may have given its lease a process
        self._lock = self._take_lock()
        self._strays = self._end_strays()
        self._cgroup = cgroups.make(self._mark)
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self._worker: subprocess.Popen[bytes] | ForkedWorker | None = None
        self._socket: socket.socket | None = None
        self._ready = False
        self._told = False  # the worker is ended because its task was to
        self._deadline: float | None = None
        self._timeout: dict[str, Any] = {}
        # A session that shares cards can't say which of them was to blame.
        self._health = CardHealth(
            "cpu" if slot.shares else slot.gpu, ask_driver=ask_driver, quarantine=quarantine
        )
        self._output: TaskOutput | None = None
        self._heard = b""
        self._post = MinderContext(
            base,
            slot.agent_id,
            slot.environment,
            slot.lease_fds,
            self._lock.fd,
            self._cgroup,
            shares=slot.shares,
        )
        self._relay = CommandRelay(self._post, self._selector, ended=self._end_errand)

    def run(self, while_pid: int | None = None) -> int:
        """Serve until told to stop, or until another process has ended; return the exit code."""
        adopt_orphans()
        if self._strays:
            words = f"{self._strays} processes of an earlier session were ended"
            self._journal.log("warning", words)
        take_back_letter(
            self._files, self._base, self._slot.agent_id, reason="its agent died", at=time.time()
        )
        with self._catching_signals():
            if while_pid is not None:
                self._watch_process(while_pid)
            if self._slot.preload:  # what has only commands leaves that to their minder
                self._listen_for_stops()
            self._write_info()
            try:
                self._start_worker()
                while self._worker is not None:
                    self._wait()
            finally:
                self._leave()
        return 0

    # Locks and cards

    def _take_lock(self) -> LocalLock:
        # A Master that clears up behind a dead session holds the lock for a moment, the minder of a
        # command that outlived its session until that ends.
        give_up_at = time.monotonic() + 2.0
        waits = False
        while True:
            lock = self._files.try_lock(self._base.agent_lock(self._slot.agent_id))
            if lock is not None:
                return lock
            if time.monotonic() > give_up_at:
                info = read_agent_info(self._files, self._base, self._slot.agent_id)
                if info is not None and living_agents(self._files, self._base, info.agent) is None:
                    if not waits:
                        self._say("waiting for a command that outlived its session")
                    waits = True
                    time.sleep(0.05)
                    continue
                who = f" (pid {info.pid}, on {info.gpu_name})" if info else ""
                raise SessionError(
                    f"agent {self._slot.agent_id} of {self._base.root} lives already{who}: "
                    f"stop it first with python agent.py stop {self._base.root} "
                    f"{self._slot.agent_id}"
                )
            time.sleep(0.02)

    def _end_strays(self) -> int:
        """End what an earlier session left; who left in peace took its card, and left nobody."""
        if not self._files.exists(self._base.agent_info(self._slot.agent_id)):
            return 0
        info = read_agent_info(self._files, self._base, self._slot.agent_id)
        strays = sweep(self._mark)
        return strays + (cgroups.end(info.cgroup, self._mark) if info is not None else 0)

    def _sweep(self, spared: Collection[int] = ()) -> None:
        """End all that was started here, and nobody minds any more."""
        sweep(self._mark, own_but={*self._helpers, *spared})
        cgroups.end(self._cgroup, self._mark)

    def _write_info(self) -> None:
        me = myself()
        info = AgentInfo(
            agent=self._slot.agent_id,
            gpu=self._slot.gpu,
            gpu_name=self._slot.gpu_name,
            host=socket.gethostname(),
            boot_id=me.boot_id,
            pid=me.pid,
            started=me.started_ticks,
            since=time.time(),
            gpus=self._slot.gpus,
            memory_mib=self._slot.memory_mib,
            cgroup=self._cgroup,
        )
        temporary = self._base.temporary()
        self._files.write_new(temporary, [info.encode()])
        self._files.move(temporary, self._base.agent_info(self._slot.agent_id))

    def _leave(self) -> None:
        self._relay.close()
        self._sweep()
        # On a disk that has become read-only, the Master finds the lock free.
        with contextlib.suppress(OSError):
            close_outboxes(self._files, self._base, self._slot.agent_id)
            self._files.remove(self._base.mailbox(self._slot.agent_id))
            self._files.remove(self._base.agent_info(self._slot.agent_id))
        self._journal.log("info", f"session {self._slot.agent_id} ended")
        self._lock.release()

    # The worker

    def _start_worker(self) -> None:
        ours, theirs = socket.socketpair()
        settings = {
            "base": self._base.root,
            "agent": self._slot.agent_id,
            "gpu": self._slot.gpu,
            "gpu_name": self._slot.gpu_name,
            "parent": os.getpid(),
            "lock_fd": self._lock.fd,
            "socket_fd": theirs.fileno(),
            "threads": self._slot.threads,
            "preload": self._slot.preload,
            "shares": self._slot.shares,
        }
        if self._slot.preload:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "postroom.session.worker", json.dumps(settings)],
                cwd=PACKAGE_PARENT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(self._lock.fd, theirs.fileno(), *self._slot.lease_fds),
                start_new_session=True,
            )
        else:
            self._worker = fork_worker(self._post, settings, theirs)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._heard = b""
        self._ready = False
        self._health.touch_failed = ""
        self._selector.register(ours, selectors.EVENT_READ, self._hear)
        if self._worker.stdout is not None:
            self._output = TaskOutput(self._worker.stdout, self._journal, self._slot.agent_id)
            self._selector.register(self._worker.stdout, selectors.EVENT_READ, self._read_output)

    def _environment(self) -> dict[str, str]:
        """What a worker finds in its environment, and what it starts after it."""
        shares = {SHARES: str(os.getpid())} if self._slot.shares else {}
        inherited = {name: value for name, value in os.environ.items() if name != SHARES}
        return {**inherited, **self._slot.environment, MARK: self._mark, **shares}

    def _wait(self) -> None:
        timeout = LOOK_S
        if self._deadline is not None:
            timeout = max(0.0, min(timeout, self._deadline - time.monotonic()))
        events = self._selector.select(timeout)
        for key, _ in events:
            key.data(key.fileobj)
        if not events:
            self._check_base()
            self._look_for_stop()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            self._end_overdue_job()
        # While its minder has a command in hand, a dead worker's letter is not laid down.
        dead = self._worker is not None and self._worker.poll() is not None
        if dead and not self._relay.busy:
            self._bury_worker()

    def _listen_for_stops(self) -> None:
        self._files.make_folder(self._base.control)
        events = listen(self._base.control)
        if events is None:
            return  # it is looked for now and then anyway

        def heard(fd: int) -> None:
            os.read(fd, 1 << 16)
            self._look_for_stop()

        self._selector.register(events, selectors.EVENT_READ, heard)

    def _look_for_stop(self) -> None:
        """See whether the task in the worker's hand is to end; a command's minder looks itself.

        The note takes the place of the blame, and the Master does what the order says.
        """
        worker = self._worker
        if worker is None or self._relay.busy or isinstance(worker, ForkedWorker):
            return
        found = job_in_hand(self._files, self._base, self._slot.agent_id)
        if found is None:
            return
        run, job, attempt = found.letter.run, found.hand.job, found.letter.attempt
        stop = read_stop(self._files, self._base, run, job, attempt)
        if stop is not None:
            agent_id, reason = self._slot.agent_id, stop.reason
            note = Note(run, job, attempt, "stopped", agent_id, reason=reason, at=time.time())
            self._insist(lambda: write_note(self._files, self._base, note))
            self._told = True
            worker.kill()

    def _hear(self, line: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            data = line.recv(1 << 16)
            if not data:
                self._selector.unregister(line)
                assert self._worker is not None
                self._worker.wait()
                return
            *lines, self._heard = (self._heard + data).split(b"\n")
            for text in lines:
                self._obey(json.loads(text))

    def _obey(self, message: dict[str, Any]) -> None:
        if "command" in message:
            self._begin_errand(message)
        elif message.get("ready"):
            assert self._worker is not None
            self._ready = True
            self._health.was_ready()
            self._journal.event("ready", agent=self._slot.agent_id, worker=self._worker.pid)
            where = f"{self._slot.gpu_name}, {message['device']}"
            self._say(f"ready on {where} (worker pid {self._worker.pid})")
            if self._signals:
                self._tell_worker("stop")
        elif "touch_failed" in message:
            self._health.touch_failed = str(message["touch_failed"])
        elif message.get("deadline_s") is not None:
            self._timeout = message
            self._deadline = time.monotonic() + float(message["deadline_s"])
        else:
            self._deadline = None

    def _begin_errand(self, errand: dict[str, Any]) -> None:
        if self._signals:  # what has not begun is not begun any more
            self._tell_worker("stopped")
        else:
            self._relay.give(json.dumps(errand).encode() + b"\n")

    def _end_errand(self, word: str) -> None:
        """The minder is done with a command, or died with it."""
        worker = self._worker
        if word == "lost":
            self._journal.log("error", "the minder of a command died")
            spared = {worker.pid, *below(worker.pid)} if worker is not None else set()
            self._sweep(spared)
        self._tell_worker(word)

    def _read_output(self, pipe: IO[bytes]) -> None:
        assert self._output is not None
        if not self._output.read():  # it was readable, so this is its end
            self._selector.unregister(pipe)

    def _bury_worker(self) -> None:
        """The worker is dead: end what it started, note what it had in hand, start another."""
        worker, self._worker = self._worker, None
        assert worker is not None and self._socket is not None
        for fileobj in (worker.stdout, self._socket):
            if fileobj is not None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(fileobj)
        if self._output is not None:
            self._output.close()
            self._output = None
        self._socket.close()
        self._deadline = None
        told, self._told = self._told, False
        self._relay.close()
        self._sweep()
        self._check_base()
        reason = f"its worker {_describe_exit(worker.returncode or 0)}"
        if self._health.touch_failed:
            reason = f"its card failed: {self._health.touch_failed}"
        hand = read_in_hand(self._files, self._base, self._slot.agent_id)
        note = self._lay_down(reason, blame=not (self._signals or told))
        if self._signals:
            return
        if told:
            self._start_worker()
            return
        self._journal.log("error", f"worker {worker.pid} {_describe_exit(worker.returncode or 0)}")
        self._say(f"worker {_describe_exit(worker.returncode or 0)}")
        why = self._health.worker_died(
            ready=self._ready,
            finished_any=bool(hand and hand.done),
            lost=(note.run, note.job) if note else None,
            kind=self._kind_of(note.run) if note else "",
        )
        if why is not None:
            raise SessionError(f"session {self._slot.agent_id}: {why}; see {self._base.log}")
        self._start_worker()

    def _lay_down(self, reason: str, *, blame: bool) -> Note | None:
        """Note what the worker died with; that of one that was told to end is nobody's fault."""
        left = self._insist(
            lambda: take_back_letter(
                self._files,
                self._base,
                self._slot.agent_id,
                reason=reason,
                at=time.time(),
                blame=blame,
            )
        )
        return left[1] if left else None

    def _insist(self, action: Callable[[], T]) -> T | None:
        """Do what must come before anything else: a full disk is waited for, unless told to stop.

        None also when the run is gone, so that nobody wants it any more.
        """
        while True:
            try:
                return action()
            except FileNotFoundError:
                self._check_base()
                return None
            except OSError as error:
                self._journal.log("error", f"blocked, and trying again: {error}")
                told = self._signals
                for key, _ in self._selector.select(BLOCKED_S):
                    key.data(key.fileobj)
                if self._signals > told:
                    return None

    def _check_base(self) -> None:
        if not os.path.isdir(self._base.agent_pool):
            raise SessionError(
                f"session {self._slot.agent_id}: the base {self._base.root} was removed"
            )

    def _kind_of(self, run: str) -> str:
        """What the jobs of a run are called, to tell a bad kernel from a bad card."""
        with contextlib.suppress(OSError, BadFileError):
            return ", ".join(read_run_info(self._files, self._base, run).kernels) or run
        return run

    def _end_overdue_job(self) -> None:
        """A job is past its time: the worker is ended, and the job's outcome written for it."""
        assert self._worker is not None
        limit_s, retries = float(self._timeout["deadline_s"]), int(self._timeout["retries"])
        files, base, agent_id = self._files, self._base, self._slot.agent_id
        overdue = job_in_hand(files, base, agent_id)
        self._worker.kill()
        self._worker.wait()
        self._sweep()
        if overdue is not None:
            began, attempt = overdue.hand.since, overdue.letter.attempt
            ran_by = RanBy(agent_id, self._slot.gpu, self._worker.pid, began, attempt)
            self._insist(
                lambda: overdue.record(files, base, ran_by, limit_s=limit_s, retries=retries)
            )

    # Signals

    @contextlib.contextmanager
    def _catching_signals(self) -> Iterator[None]:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._selector.register(reader, selectors.EVENT_READ, self._on_signal)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.unregister(reader)
            reader.close()
            writer.close()

    def _on_signal(self, reader: socket.socket) -> None:
        for number in reader.recv(64):
            if number == signal.SIGCHLD:
                self._reap_orphans()
            else:
                self._stop()

    def _watch_process(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._stop()
            return

        def ended(fd: int) -> None:
            self._selector.unregister(fd)
            os.close(fd)
            self._stop()
            if self._relay.busy or isinstance(self._worker, ForkedWorker):
                self._stop()  # a command may take for ever, and nobody waits for it any more

        self._selector.register(pidfd, selectors.EVENT_READ, ended)

    def _stop(self) -> None:
        """Once: after the job in hand. Twice: at once."""
        self._signals += 1
        if self._signals > 1:
            self._relay.stop()
        if self._worker is None:
            return
        if self._signals == 2 and isinstance(self._worker, ForkedWorker) and self._ready:
            self._worker.terminate()  # the command in hand may have something to save
            return
        if self._signals > 1 or not self._ready:
            self._worker.kill()
            return
        self._say("finishing the job in hand; again to stop at once")
        self._tell_worker("stop")

    def _reap_orphans(self) -> None:
        """Reap what we adopted; the worker itself is left to `Popen.poll`."""
        worker = self._worker
        if worker is None:
            reap()
            return
        with contextlib.suppress(ChildProcessError):
            while True:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if seen is None or seen.si_pid == worker.pid:
                    return
                os.waitpid(seen.si_pid, os.WNOHANG)

    def _tell_worker(self, word: str) -> None:
        """Say "stop", or how an errand ended."""
        assert self._socket is not None
        with contextlib.suppress(OSError):
            self._socket.send(word.encode() + b"\n")

    def _say(self, text: str) -> None:
        if self._talk:
            print(f"session {self._slot.agent_id}: {text}", file=sys.stderr, flush=True)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
