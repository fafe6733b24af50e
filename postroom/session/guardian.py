"""The guardian: pins a GPU, holds its locks, watches the worker, kills it and starts it again.

    STARTING --ready--> SERVING --worker dies--> STARTING (its job is noted, its letter requeued)
        |                  |--SIGTERM, Ctrl-C--> DRAINING --worker ends--> gone
        |                  |--again------------> worker killed ----------> gone
        |                  |--the out-of-memory killer ends the worker--> pause --> STARTING
        |                  |--another user's turn: after the job, or with --yield now--.
        |                  '--nothing to do for a while, or a moment if somebody waits for the GPU
        |                                        --> worker ends --> RESTING, without its GPU
        |                                                  RESTING --called, has its GPU--> STARTING
        '-- three workers in a row die with different jobs, or three before they are ready: gone

It never imports torch, so it starts at once, stays small, and survives what kills a worker.
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
from math import inf
from typing import IO, Any, NoReturn, TypeVar

from ..commands.attempt import ATTEMPT
from ..commands.minder import MinderContext
from ..errors import BadFileError, CardHeld, PostroomError
from ..gpus.devices.faults import Fault
from ..gpus.ledger.lease_environment import granted_over
from ..parcel.sheets import RanBy
from ..store.agents import AgentInfo, read_agent_info
from ..store.base import Base
from ..store.files import LocalFiles, LocalLock
from ..store.journal import Journal
from ..store.mailbox import read_in_hand, read_letter
from ..store.requests import read_stop
from ..store.runs import Note, close_outboxes, read_run_info, take_back_letter, write_note
from ..store.snapshot import living_agent
from ..store.wanted_agents import is_to_yield, is_unwanted
from ..system import cgroups
from ..system.absence import may_pass
from ..system.file_events import listen
from ..system.fork import ForkedProcess
from ..system.oom_kills import OOM_MESSAGE, OomWatch
from ..system.own_python import PACKAGE_PARENT, own_python
from ..system.process_tree import (
    MARK,
    SHARES,
    adopt_orphans,
    below,
    mark_of,
    reap,
    reap_orphans,
    sweep,
)
from ..system.processes import myself
from ..text.safe_text import printable
from .card_health import CardHealth, DriverWatch, quarantine
from .card_lease import CardLease
from .command_relay import LOST, CommandRelay
from .forked_worker import fork_worker
from .job_runner import NEEDS_TASKS
from .process_state import SPOILT
from .rest import IdleWatch, RestFile, told_to_yield
from .task_output import TaskOutput
from .timeouts import job_in_hand

# A full disk is tried again after this long.
BLOCKED_S = 0.5
# A worker that was killed and has not ended after this long is stuck in the driver.
STUCK_S = 30.0
# How often an idle guardian looks whether its base still exists.
LOOK_S = 2.0
# How many characters of the reason why it has no GPU a session tells.
MOST_WORDS = 1000

T = TypeVar("T")


@dataclass
class SessionSlot:
    """What a session runs on, and how."""

    agent_id: str
    gpu: str  # the uuids of its GPUs, or "cpu"
    gpu_name: str
    environment: dict[str, str]  # pins the worker
    threads: int | None = None
    preload: list[str] = field(default_factory=lambda: ["torch"])
    lazy: bool = False  # preload, and use the GPU, only with the first task
    gpus: int = 0  # how many GPUs a job gets
    memory_mib: int = 0  # of the smallest of them; of those that are shared, of the largest
    shares: bool = False  # the GPUs are not leased: each job books its part of one
    any_accelerator: bool = False  # on the CPU, unless torch has a card that we cannot list


class SessionError(PostroomError):
    """A session cannot start, or had to stop itself."""


class Guardian:
    """The process of a session that watches its worker."""

    def __init__(
        self,
        base: Base,
        slot: SessionSlot,
        lease: CardLease | None = None,
        *,
        rest_s: float | None = None,
        kept: bool = False,
        yields: bool = False,
        talk: bool = True,
    ) -> None:
        """`rest_s`: give the lease back after so long without work; None: hold it all the time.
        `kept`: leave when the base does not want this agent any more. `yields`: give the lease to
        another user whose turn it is in the middle of a job, which goes on later."""
        self._files = LocalFiles()
        self._base = base
        self._slot = slot
        self._lease = lease
        self._kept = kept
        self._yields = yields or told_to_yield()
        self._talk = talk
        self._journal = Journal(base, f"guardian {slot.agent_id}")
        self._mark = mark_of(base.root, slot.agent_id)
        self._driver = DriverWatch(slot.gpu)
        # Beside the one that asks the driver, a ledger may have one that renews the lease.
        self._helpers = below(os.getpid())
        self._strays = 0
        self._lock, self._tree = self._take_locks()
        self._cgroup = cgroups.make(self._mark)
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self.owner_ended = False  # the process that it was started for
        self._worker: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._socket: socket.socket | None = None
        self._ready = False
        self._broken = ""  # why the worker could not go on
        self._refused = ""  # why it must not begin: it cannot compute on its GPU
        self._first_use = False  # whether it could not even use its GPU once
        self._killed_at = 0.0  # when the worker was killed, until it has ended
        self._task_stopped = False  # the worker was killed because its task had a stop order
        self._deadline: float | None = None
        self._timeout: dict[str, Any] = {}
        # A session that shares GPUs can't tell which of them was to blame.
        self._health = CardHealth(
            "cpu" if slot.shares else slot.gpu,
            ask_driver=self._driver.problem,
            quarantine=quarantine,
        )
        self._oom_watch = OomWatch(time.monotonic())
        self._start_at: float | None = None  # when a pause ends
        self._output: TaskOutput | None = None
        self._heard = b""
        self._since = time.time()
        self._look_at = 0.0
        self._rests = rest_s is not None and lease is not None
        self._idle = IdleWatch(rest_s)
        self._wanted = False  # somebody waits for our GPU
        self._rest_file = RestFile(self._files, base, slot.agent_id)
        self._bell_events: int | None = None
        self._resting = False  # it has no GPU, no worker and no mailbox
        self._until = inf  # when somebody's reservation of its GPU begins
        self._retiring = False  # the worker was told to stop, so that the session can rest
        # Commands need no worker that can load torch, and are faster without.
        self._only_commands = slot.lazy or not slot.preload
        self._hold(lease.fds if lease is not None else ())

    def _hold(self, lease_fds: tuple[int, ...]) -> None:
        """Hand these down from now on, with the session's own lock, to all that is started here."""
        slot = self._slot
        # Every process of the session has these open, also those that jobs start.
        self._kept_fds = (*lease_fds, self._tree)
        self._context = MinderContext(
            self._base,
            slot.agent_id,
            slot.gpu,
            slot.gpu_name,
            slot.environment,
            self._kept_fds,
            self._lock.fd,
            self._cgroup,
            shares=slot.shares,
        )
        self._relay = CommandRelay(self._context, self._selector, ended=self._end_attempt)

    def run(self, while_pid: int | None = None, *, private: bool = False) -> int:
        """Serve until told to stop, or until the process `while_pid` ends; return the exit code.

        In a private base nobody looks for results then: running jobs are ended.
        """
        adopt_orphans()
        if self._strays:
            words = f"{self._strays} processes of an earlier session were ended"
            self._journal.log("warning", words)
        take_back_letter(
            self._files, self._base, self._slot.agent_id, reason="its agent died", at=time.time()
        )
        with self._catching_signals():
            if while_pid is not None:
                self._watch_process(while_pid, private=private)
            # In a session for commands only, the minder looks for orders to stop a job.
            if self._slot.preload or self._kept:
                self._listen_for_orders()
            self._rest_file.take_down()  # of a session that was killed
            self._write_info()
            try:
                if self._lease is None or self._lease.fds:
                    self._start_worker()
                else:
                    self._rest()
                while self._goes_on():
                    self._wait()
            finally:
                self._leave()
        return 0

    def _goes_on(self) -> bool:
        if self._resting and not self._signals:
            return True
        return self._worker is not None or self._start_at is not None

    # The locks and the agent's file

    def _take_locks(self) -> tuple[LocalLock, int]:
        """Take the agent's lock, then end what an earlier session left, then take the tree's lock.

        A Master that clears away a dead agent holds the first for a moment; the minder of a command
        that outlived its session, until the command ends. The second is held by processes that we
        cannot end: what cannot be seen from our container is not dead.
        """
        give_up_at = time.monotonic() + 2.0
        waits = False
        while True:
            tree = None
            lock = self._files.try_lock(self._base.agent_lock(self._slot.agent_id))
            if lock is not None:
                self._end_strays()
                tree = self._files.try_lock(self._base.agent_tree(self._slot.agent_id))
                if tree is not None:
                    # A LocalLock would be dropped by what we fork.
                    return lock, os.dup(tree.fd)
                lock.release()
            if time.monotonic() > give_up_at:
                info = read_agent_info(self._files, self._base, self._slot.agent_id)
                living = living_agent(self._files, self._base, self._slot.agent_id)
                if lock is not None or (info is not None and living is None):
                    if not waits:
                        self._say("waiting for a command that outlived its session")
                    waits = True
                    time.sleep(0.05)
                    continue
                who = f" ({info.pid_words}, on {info.gpu_name})" if info else ""
                raise SessionError(
                    f"agent {self._slot.agent_id} of {self._base.root} is running already{who}: "
                    f"stop it first with postroom agents stop {self._base.root} "
                    f"{self._slot.agent_id}"
                )
            time.sleep(0.02)

    def _end_strays(self) -> None:
        """End processes of an earlier session; one that ended normally has removed its file."""
        if not self._files.exists(self._base.agent_info(self._slot.agent_id)):
            return
        info = read_agent_info(self._files, self._base, self._slot.agent_id)
        self._strays += sweep(self._mark, held=self._base.agent_tree(self._slot.agent_id))
        self._strays += cgroups.end(info.cgroup, self._mark) if info is not None else 0

    def _sweep(self, spared: Collection[int] = ()) -> None:
        """End all processes that were started here and have no parent of ours any more."""
        sweep(self._mark, own_but={*self._helpers, *spared})
        cgroups.end(self._cgroup, self._mark)

    def _write_info(self, *, out_of_memory: bool = False, waits_for: str = "") -> None:
        me = myself()
        info = AgentInfo(
            agent=self._slot.agent_id,
            gpu=self._slot.gpu,
            gpu_name=self._slot.gpu_name,
            host=socket.gethostname(),
            boot_id=me.boot_id,
            pid=me.pid,
            started=me.started_ticks,
            since=self._since,
            pid_namespace=me.pid_namespace,
            gpus=self._slot.gpus,
            memory_mib=self._slot.memory_mib,
            cgroup=self._cgroup,
            out_of_memory=out_of_memory,
            kept=self._kept,
            waits_for=waits_for[:MOST_WORDS],
            until=self._until if self._until < inf else 0.0,
            shares=self._slot.shares,
        )
        temporary = self._base.temporary()
        self._files.write_new(temporary, [info.encode()])
        self._files.move(temporary, self._base.agent_info(self._slot.agent_id))

    def _leave(self) -> None:
        self._relay.close()
        self._driver.close()
        self._sweep()
        # On a disk that has become read-only, the Master finds the lock free.
        with contextlib.suppress(OSError, SessionError):
            self._check_base()
            close_outboxes(self._files, self._base, self._slot.agent_id)
            self._files.remove(self._base.mailbox(self._slot.agent_id))
            self._rest_file.take_down()
            self._files.remove(self._base.agent_info(self._slot.agent_id))
        self._journal.log("info", f"session {self._slot.agent_id} ended")
        os.close(self._tree)
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
            "lazy": self._slot.lazy,
            "shares": self._slot.shares,
            "any_accelerator": self._slot.any_accelerator,
            "environment": self._environment(),
        }
        if not self._only_commands:
            del settings["environment"]  # it is started with that one
            self._worker = subprocess.Popen(
                own_python("postroom.session.worker", json.dumps(settings)),
                cwd=PACKAGE_PARENT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(self._lock.fd, theirs.fileno(), *self._kept_fds),
                start_new_session=True,
            )
        else:
            settings |= {"preload": [], "only_commands": bool(self._slot.preload)}
            self._worker = fork_worker(self._context, settings, theirs)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._heard = b""
        self._ready = False
        self._broken = ""
        self._refused = ""
        self._first_use = False
        self._killed_at = 0.0
        self._health.touch_failed = ""
        self._idle.begin()
        self._selector.register(ours, selectors.EVENT_READ, self._hear)
        if self._worker.stdout is not None:
            self._output = TaskOutput(
                self._worker.stdout, self._base, self._journal, self._slot.agent_id
            )
            self._selector.register(self._worker.stdout, selectors.EVENT_READ, self._read_output)

    def _environment(self) -> dict[str, str]:
        """The environment of the worker, and of what it starts."""
        shares = {SHARES: str(os.getpid())} if self._slot.shares else {}
        inherited = {name: value for name, value in os.environ.items() if name != SHARES}
        return {**granted_over(inherited, self._slot.environment), MARK: self._mark, **shares}

    def _wait(self) -> None:
        due = [at for at in (self._deadline, self._start_at) if at is not None]
        if self._killed_at:
            due.append(self._killed_at + stuck_s())
        timeout = max(0.0, min([LOOK_S, *(at - time.monotonic() for at in due)]))
        events = self._selector.select(timeout)
        for key, _ in events:
            key.data(key.fileobj)
        if not events:
            self._check_base()
            self._look_for_orders()
        if self._resting:
            self._look_at_rest_file()
        elif time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._rest_if_idle()
            self._give_way()
        self._oom_watch.look(time.monotonic())
        if self._start_at is not None and time.monotonic() >= self._start_at:
            self._start_at = None
            self._insist(self._write_info)
            if not self._signals:
                self._start_worker()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            self._end_overdue_job()
        if self._killed_at and time.monotonic() >= self._killed_at + stuck_s():
            if self._worker is not None and self._worker.poll() is None:
                self._leave_stuck_worker()
            self._killed_at = 0.0
        # While the minder runs a command, a dead worker's letter is not taken back.
        dead = self._worker is not None and self._worker.poll() is not None
        if dead and not self._relay.busy:
            self._clear_away_worker()

    def _listen_for_orders(self) -> None:
        self._files.make_folder(self._base.control)
        events = listen(self._base.control)
        if events is None:
            return  # orders are looked for every LOOK_S anyway

        def heard(fd: int) -> None:
            os.read(fd, 1 << 16)
            self._look_for_orders()

        self._selector.register(events, selectors.EVENT_READ, heard)

    def _look_for_orders(self) -> None:
        kept = self._kept and not self._signals
        if kept and is_unwanted(self._files, self._base, self._slot.agent_id):
            self._say("the base does not want this agent any more")
            self._stop()
        if self._slot.preload:
            self._look_for_stop()

    def _look_for_stop(self) -> None:
        """End the worker if its task has a stop order; a minder looks for those of commands.

        The note says that the task was stopped, so that it is not blamed for the worker's death.
        The Master does what the order says.
        """
        worker = self._worker
        if worker is None or self._relay.busy or isinstance(worker, ForkedProcess):
            return
        found = job_in_hand(self._files, self._base, self._slot.agent_id)
        if found is None:
            return
        run, job, attempt = found.letter.run, found.hand.job, found.letter.attempt
        stop = read_stop(self._files, self._base, run, job, attempt)
        if stop is not None:
            self._stop_task(stop.reason)

    def _stop_task(self, reason: str) -> None:
        """Kill the worker in its task, which is noted as stopped."""
        found = job_in_hand(self._files, self._base, self._slot.agent_id)
        if found is not None:
            run, job, attempt = found.letter.run, found.hand.job, found.letter.attempt
            agent_id, now = self._slot.agent_id, time.time()
            note = Note(run, job, attempt, "stopped", agent_id, reason=reason, at=now)
            self._insist(lambda: write_note(self._files, self._base, note))
            self._task_stopped = True
            self._kill_worker()

    # Without a GPU

    def _rest_if_idle(self) -> None:
        """Have the worker end if it has had nothing to do for a while.

        It gives back a letter that comes in this moment, as whenever it is told to stop.
        """
        if not self._rests or self._worker is None or not self._ready:
            return
        if self._signals or self._retiring:
            return
        agent_id = self._slot.agent_id
        hand = read_in_hand(self._files, self._base, agent_id)
        letter = self._relay.busy or read_letter(self._files, self._base, agent_id) is not None
        if self._idle.is_over(time.monotonic(), hand, letter=letter, wanted=self._wanted):
            self._retiring = True
            self._tell_worker(b"stop\n")

    def _give_way(self) -> None:
        """Rest after the running job if it is another user's turn to have the GPU.

        For an agent that yields, it is the turn of anybody who asks for it. It stops the running
        job, which may save its state, and is requeued.
        """
        if not self._rests or self._worker is None or not self._ready or self._lease is None:
            return
        if self._signals or self._retiring:
            return
        yields = self._told_to_yield()
        why, until, self._wanted = self._lease.claimed(yields=yields)
        if until != self._until:
            self._until = until
            self._insist(self._write_info)
        if not why:
            return
        self._retiring = True
        self._say(f"{self._slot.gpu_name} is given back: {why}")
        self._journal.event("gives way", agent=self._slot.agent_id, why=why)
        self._tell_worker(b"stop\n")
        if yields:
            self._stop_running_job(f"its GPU is given back: {why}")

    def _told_to_yield(self) -> bool:
        return self._yields or (self._kept and is_to_yield(self._files, self._base))

    def _stop_running_job(self, reason: str) -> None:
        """Stop what runs now, without blame; it goes on later, from its checkpoint."""
        worker = self._worker
        assert worker is not None
        if isinstance(worker, ForkedProcess):
            worker.terminate()
        elif self._relay.busy:
            self._relay.stop()
        else:
            self._stop_task(reason)

    def _rest(self) -> None:
        """The worker is dead and its mailbox removed: give the GPU back, and wait for a call."""
        assert self._lease is not None
        self._lease.release()
        self._hold(())
        self._resting = True
        self._only_commands = self._slot.lazy
        self._insist(self._rest_file.put_up)
        self._bell_events = listen(self._base.rest(self._slot.agent_id))
        if self._bell_events is not None:

            def heard(fd: int) -> None:
                os.read(fd, 1 << 16)

            self._selector.register(self._bell_events, selectors.EVENT_READ, heard)
        self._say(f"{self._slot.gpu_name} is free for others until there is work")

    def _look_at_rest_file(self) -> None:
        if self._rest_file.is_gone():
            self._check_base()
            raise SessionError(f"session {self._slot.agent_id} was taken for dead")
        if self._rest_file.is_called() and not self._signals:
            self._wake()

    def _wake(self) -> None:
        """Wait for the GPU as long as there is work for it; then start a worker."""
        assert self._lease is not None
        told = False

        def tell(why: str) -> None:
            nonlocal told
            told = True
            self._insist(lambda: self._write_info(waits_for=why))

        try:
            fds = self._lease.take(
                wait=True, yields=self._told_to_yield(), wanted=self._is_called, waiting=tell
            )
        except CardHeld:  # nobody needs it any more
            if told:
                self._insist(self._write_info)
            return
        self._helpers = below(os.getpid())
        self._hold(fds)
        if self._bell_events is not None:
            self._selector.unregister(self._bell_events)
            os.close(self._bell_events)
            self._bell_events = None
        self._insist(self._rest_file.take_down)
        self._resting = False
        # Known before the first letter: jobs that would reach into a reservation are not sent.
        until = self._lease.claimed(yields=self._told_to_yield()).until
        if told or until != self._until:
            self._until = until
            self._insist(self._write_info)
        if not self._signals:
            self._start_worker()

    def _is_called(self) -> bool:
        """Whether the acting Master still has work; it hears signals, too."""
        for key, _ in self._selector.select(0):
            key.data(key.fileobj)
        self._look_for_orders()
        return not self._signals and self._is_ours() and self._rest_file.is_called()

    def _hear(self, line: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            data = line.recv(1 << 16)
            if not data:
                self._selector.unregister(line)  # its end is told by SIGCHLD
                return
            *lines, self._heard = (self._heard + data).split(b"\n")
            for text in lines:
                if text.startswith(ATTEMPT):
                    self._pass_on(text)
                else:
                    self._obey(json.loads(text))

    def _obey(self, message: dict[str, Any]) -> None:
        if message.get("ready"):
            assert self._worker is not None
            self._ready = True
            self._health.was_ready(used_card=message["device"] != "commands")
            self._journal.event("ready", agent=self._slot.agent_id, worker=self._worker.pid)
            where = f"{self._slot.gpu_name}, {message['device']}"
            self._say(f"ready on {where} (worker pid {self._worker.pid})")
            if self._signals:
                self._tell_worker(b"stop\n")
        elif "broken" in message:
            self._broken = str(message["broken"])
        elif "touched" in message:
            self._health.was_ready()
        elif "touch_failed" in message:
            self._health.touch_failed = str(message["touch_failed"])
            self._health.fault = Fault[message["fault"]]
            self._first_use = bool(message["first"])
        elif "refused" in message:
            self._refused = str(message["refused"])
        elif "ask_card" in message:
            self._tell_worker(f"card {printable(self._driver.problem())}\n".encode())
        elif message.get("deadline_s") is not None:
            self._timeout = message
            self._deadline = time.monotonic() + float(message["deadline_s"])
        else:
            self._deadline = None

    def _pass_on(self, attempt: bytes) -> None:
        """Give an attempt to the minder; once we are told to stop, none is begun any more."""
        if self._signals:
            self._tell_worker(b"stopped\n")
        else:
            self._relay.give(attempt)

    def _end_attempt(self, word: bytes) -> None:
        """The minder has ended a command, or died with it."""
        worker = self._worker
        if word == LOST:
            why = f": {OOM_MESSAGE}" if self._oom_watch.saw_kill() else ""
            self._journal.log("error", f"the minder of a command died{why}")
            spared = {worker.pid, *below(worker.pid)} if worker is not None else set()
            self._sweep(spared)
        self._tell_worker(word)

    def _read_output(self, pipe: IO[bytes]) -> None:
        assert self._output is not None
        if not self._output.read():  # it was readable, so this is its end
            self._selector.unregister(pipe)

    def _clear_away_worker(self) -> None:
        """The worker is dead: end what it started, note its running job, start another."""
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
        stopped, self._task_stopped = self._task_stopped, False
        self._relay.close()
        self._sweep()
        self._check_base()
        ended = _describe_exit(worker.returncode or 0, self._broken)
        reason = f"its worker {ended}"
        out_of_memory = worker.returncode == -signal.SIGKILL and self._oom_watch.saw_kill()
        if out_of_memory:
            reason, ended = OOM_MESSAGE, f"{ended}: {OOM_MESSAGE}"
        if self._health.touch_failed:
            reason = f"its card failed: {self._health.touch_failed}"
        hand = read_in_hand(self._files, self._base, self._slot.agent_id)
        card_failed = bool(self._health.touch_failed or self._refused)
        note = self._take_back(reason, blame=not (self._signals or stopped or card_failed))
        retired, self._retiring = self._retiring, False
        if self._signals:
            return
        if retired and (worker.returncode in (0, NEEDS_TASKS) or stopped):
            self._rest()
            return
        spoilt = worker.returncode == SPOILT
        self._only_commands &= worker.returncode != NEEDS_TASKS
        replaced = worker.returncode in (0, NEEDS_TASKS) and note is None
        if stopped or replaced:
            self._start_worker()
            return
        if self._refused:
            raise SessionError(f"session {self._slot.agent_id}: {self._refused}")
        self._journal.log("error", f"worker {worker.pid} {ended}")
        self._say(f"worker {ended}")
        if self._first_use:
            self._wait_for_card()
            return
        finished_any = bool(hand and hand.done)
        if out_of_memory:
            self._pause(self._health.out_of_memory(finished_any=finished_any))
            return
        if spoilt:  # by its job: that is no sign of a bad session or a bad GPU
            self._start_worker()
            return
        why = self._health.worker_died(
            ready=self._ready,
            finished_any=finished_any,
            lost=(note.run, note.job) if note else None,
            kind=self._kind_of(note.run) if note else "",
        )
        if why is not None:
            raise SessionError(f"session {self._slot.agent_id}: {why}; see {self._base.log}")
        self._start_worker()

    def _wait_for_card(self) -> None:
        """The worker could not use its GPU once: try again later, or stop."""
        why, seconds = self._health.first_use_failed()
        if why is not None:
            raise SessionError(f"session {self._slot.agent_id}: {why}; see {self._base.log}")
        fault, said = self._health.fault, self._health.touch_failed
        words = f"waiting for the GPU: {fault.value} ({said}); trying again in {seconds:g} s"
        self._journal.log("warning", words)
        self._say(words)
        self._start_at = time.monotonic() + seconds

    def _pause(self, seconds: float) -> None:
        """Start the next worker only after a while."""
        self._say(f"the next worker starts in {seconds:g} s")
        self._start_at = time.monotonic() + seconds  # before anything in which a signal may arrive
        self._insist(lambda: self._write_info(out_of_memory=True))

    def _take_back(self, reason: str, *, blame: bool) -> Note | None:
        """Take back the dead worker's letter, and note its running job if that is to blame."""
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
        """Do what must be done before anything else: wait for the disk, unless stopped.

        None when it was not done: we were told to stop, or the run was removed.
        """
        while True:
            self._check_base()
            try:
                return action()
            except FileNotFoundError:
                self._check_base()
                return None
            except OSError as error:
                if not may_pass(error):
                    raise
                self._journal.log("error", f"blocked, and trying again: {error}")
                before = self._signals
                for key, _ in self._selector.select(BLOCKED_S):
                    key.data(key.fileobj)
                if self._signals > before:
                    return None

    def _check_base(self) -> None:
        """End if the base was removed or moved; at its path there may be another by now."""
        if not self._is_ours():
            raise SessionError(
                f"session {self._slot.agent_id}: the base {self._base.root} was removed or moved"
            )

    def _is_ours(self) -> bool:
        """Whether the lock that we hold is the one at its path: all our rights come from it."""
        return self._lock.is_at(self._base.agent_lock(self._slot.agent_id))

    def _kind_of(self, run: str) -> str:
        """The tasks of a run's jobs, to tell a bad kernel from a bad GPU."""
        with contextlib.suppress(OSError, BadFileError):
            return ", ".join(read_run_info(self._files, self._base, run).kernels) or run
        return run

    def _end_overdue_job(self) -> None:
        """A task is past its time limit: end the worker, and write the task's outcome."""
        assert self._worker is not None
        limit_s, retries = float(self._timeout["deadline_s"]), int(self._timeout["retries"])
        files, base, agent_id = self._files, self._base, self._slot.agent_id
        overdue = job_in_hand(files, base, agent_id)
        self._kill_worker()
        give_up_at = time.monotonic() + stuck_s()
        while self._worker.poll() is None and time.monotonic() < give_up_at:
            time.sleep(0.002)
        self._sweep()
        if overdue is not None:
            began, attempt = overdue.hand.since, overdue.letter.attempt
            ran_by = RanBy(agent_id, self._slot.gpu, self._worker.pid, began, attempt)
            self._insist(
                lambda: overdue.record(files, base, ran_by, limit_s=limit_s, retries=retries)
            )
        if self._worker.poll() is None:
            self._leave_stuck_worker()

    def _kill_worker(self) -> None:
        assert self._worker is not None
        self._worker.kill()
        self._killed_at = self._killed_at or time.monotonic()

    def _leave_stuck_worker(self) -> NoReturn:
        """The worker was killed and does not end: it is in a call of the driver that never returns.

        It executes nothing of its own any more, so its outcome could be recorded. Its GPU is of no
        use to anybody. It still holds the lease and the agent's lock, until it ends or the machine
        is started again.
        """
        assert self._worker is not None
        pid, gpu = self._worker.pid, self._slot.gpu
        why = f"process {pid} was killed and does not end: it is stuck in a call of the driver"
        if gpu != "cpu" and not self._slot.shares:
            quarantine(gpu, why)
        raise SessionError(
            f"session {self._slot.agent_id}: {why}; see dmesg (often only a reboot helps)"
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

    def _watch_process(self, pid: int, *, private: bool) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.owner_ended = True
            self._stop()
            return

        def ended(fd: int) -> None:
            self._selector.unregister(fd)
            os.close(fd)
            self.owner_ended = True
            self._stop()
            if private or self._relay.busy or isinstance(self._worker, ForkedProcess):
                self._stop()  # a command may take very long, and nobody waits for it any more

        self._selector.register(pidfd, selectors.EVENT_READ, ended)

    def _stop(self) -> None:
        """Once: stop after the running job. Twice: stop now."""
        self._signals += 1
        self._start_at = None
        if self._signals > 1:
            self._relay.stop()
        if self._worker is None:
            return
        if self._signals == 2 and isinstance(self._worker, ForkedProcess) and self._ready:
            self._worker.terminate()  # the command may have something to save
            return
        if self._signals > 1 or not self._ready:
            self._kill_worker()
            return
        self._say("finishing the running job; press again to stop now")
        self._tell_worker(b"stop\n")

    def _reap_orphans(self) -> None:
        """Reap orphans; the worker itself is left to `Popen.poll`."""
        if self._worker is None:
            reap()
        else:
            reap_orphans(self._worker.pid)

    def _tell_worker(self, word: bytes) -> None:
        """Say "stop", or how an attempt ended."""
        assert self._socket is not None
        with contextlib.suppress(OSError):
            self._socket.send(word)

    def _say(self, text: str) -> None:
        if self._talk:
            said = f"session {self._slot.agent_id}: {printable(text)}"
            print(said, file=sys.stderr, flush=True)


def stuck_s() -> float:
    """How long a worker that was killed may take to end."""
    return float(os.environ.get("POSTROOM_STUCK_S") or STUCK_S)


def _describe_exit(code: int, broken: str = "") -> str:
    if code == SPOILT:
        return "had to end: the job closed descriptors that it had not opened (os.closerange?)"
    if broken:
        return f"could not go on: {broken}"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
