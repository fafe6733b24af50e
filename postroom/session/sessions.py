"""Starts, lists and stops the sessions of one base.

with Sessions(base, 2):                    two sessions, a GPU each, while the block runs
Sessions(base).start(slots, outlive=True)  sessions that outlive this process
sessions.keep(slots)                       a session for each slot; `step` starts dead ones again
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import PostroomError
from ..gpus.cards.gpu_list import SlotSpec
from ..store.agents import AgentInfo, list_agents
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.pilot_records import has_pilots
from ..store.snapshot import last_words, living_agent
from ..system.fork import ForkedProcess
from ..system.own_python import start_detached
from ..system.process_tree import holders
from ..system.processes import pid_namespace
from .forked_worker import fork_session
from .slots import choose_gpus

if TYPE_CHECKING:
    from ..gpus.cards.inventory import Card

# Importing torch on a busy machine takes a while; a session that is still silent then is broken.
READY_S = 180.0
POLL_S = 0.05
# A slot is given up after this many of its sessions have failed.
MOST_FAILURES = 3
STEP_S = 0.25
# A session that is not ready after this long waits for something.
SILENT_S = 2.0

# The options of a session that runs only commands, and waits for its GPU; and of one for the queue,
# which runs commands, and now and then a Python job, and has its GPU only while it does.
COMMANDS_ONLY = {"wait": True, "preload": ""}
KEPT = {"lazy": True, "rest": True, "kept": True}
KEPT_SHARING = {"preload": "", "kept": True}  # ... or has none: its commands book parts of GPUs

SessionProcess = subprocess.Popen[bytes] | ForkedProcess


class SlotsFailed(PostroomError):
    """No session can run in any slot."""


class Sessions:
    """The sessions of one base."""

    def __init__(
        self,
        base: Base,
        count: int = 0,
        *,
        say: Callable[[str], None] = print,
        options: dict[str, Any] | None = None,
    ) -> None:
        """`count`: how many to have in a `with` block; `options`: as `python -m postroom.session`
        calls them, for every session that is started."""
        self.base = base
        self.say = say
        self.slots: list[SlotSpec] = []  # that are kept
        self._count = count
        self._options = options or {}
        self._files = LocalFiles()
        self._processes: dict[str, SessionProcess] = {}  # that were started here, by agent
        self._leaving: list[SessionProcess] = []
        self._failures: dict[str, int] = {}
        self._silent: dict[str, float] = {}  # new sessions, and when they should be ready
        self._step_at = 0.0
        self._keeper: SessionProcess | None = None  # of pilots; it outlives this process
        self._shared = 0  # how many sessions that share GPUs were ever wanted

    # For a while: sessions that serve when the block begins

    def __enter__(self) -> Sessions:
        self.start([SlotSpec(gpu, gpu) for gpu in choose_gpus(self._count, say=self.say)])
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(list(self._processes))

    def start(self, slots: Sequence[SlotSpec], *, outlive: bool = False) -> None:
        """Start a session in each slot that has none, and wait until all of them serve.

        They end with this process, however it ends, unless they are to outlive it.
        """
        if "threads" not in self._options:
            cores = len(os.sched_getaffinity(0))
            self._options = {**self._options, "threads": max(1, cores // max(len(slots), 1))}
        pids = {}
        new = []
        for slot in slots:
            info = living_agent(self._files, self.base, slot.agent)
            if info is None:
                self._processes[slot.agent] = process = self._spawn(slot, outlive=outlive)
                new.append(slot.agent)
            pids[slot.agent] = f"pid {process.pid}" if info is None else info.pid_words
        if new:
            loads = "" if self._options.get("lazy") else " (importing torch may take a moment)"
            self.say(f"starting agents {', '.join(new)}{loads}")
        try:
            for agent, pid in pids.items():
                self._wait_until_ready(agent, pid)
                if agent in new:
                    stop = f"postroom agents stop {shlex.quote(self.base.root)} {agent}"
                    self.say(f"agent {agent} started ({pid}); log: {self.base.log}; stop: {stop}")
                else:
                    self.say(f"agent {agent} is running already ({pid})")
        except BaseException:
            self.finish()
            self.wait()
            raise

    def _wait_until_ready(self, agent: str, pid: str) -> None:
        process = self._processes.get(agent)
        give_up_at = time.monotonic() + READY_S
        while not any(map(self._files.exists, (self.base.mailbox(agent), self.base.rest(agent)))):
            if process is None and living_agent(self._files, self.base, agent) is None:
                raise PostroomError(f"agent {agent} died before it was ready")
            if process is not None and process.poll() is not None:
                raise PostroomError(f"agent {agent} could not start: {self.last_words(agent)}")
            if time.monotonic() > give_up_at:
                raise PostroomError(
                    f"agent {agent} ({pid}) was not ready within {READY_S:g} s; see {self.base.log}"
                )
            time.sleep(POLL_S)

    # For long: a session for each slot, started again when it dies

    def keep(self, slots: Sequence[SlotSpec]) -> None:
        """Keep these slots and no others; the session of a removed slot finishes its job first."""
        kept = {slot.agent for slot in slots}
        for slot in self.slots:
            if slot.agent not in kept:
                process = self._processes.pop(slot.agent, None)
                if process is not None and process.poll() is None:
                    process.terminate()
                    self._leaving.append(process)
        self.slots = list(slots)
        self._failures.clear()
        self._step_at = 0.0
        self.step(time.monotonic())

    def grow(self, cards: Sequence[Card], count: int) -> None:
        """Have at least this many sessions that share these GPUs: each runs one job."""
        gpu = ",".join(str(card.index) for card in cards)
        missing = count - len(self.slots)
        for _ in range(missing if gpu else 0):
            self._shared += 1
            self.slots.append(SlotSpec(f"s{self._shared}", gpu, share=True))
        if missing > 0:
            self._step_at = 0.0

    def step(self, now: float) -> None:
        """Start what is missing: at first all, later what has died."""
        if now < self._step_at:
            return
        self._step_at = now + STEP_S
        for slot in list(self.slots):
            process = self._processes.get(slot.agent)
            if process is not None and process.poll() is None:
                self._tell_waiting(slot, now)
                continue
            if process is not None:
                del self._processes[slot.agent]
                if process.returncode and not self._go_on(slot):
                    continue
            if living_agent(self._files, self.base, slot.agent) is None:
                self._processes[slot.agent] = self._start(slot)
                if not slot.share:  # such a session waits for nothing; its jobs do
                    self._silent[slot.agent] = now + SILENT_S

    def _tell_waiting(self, slot: SlotSpec, now: float) -> None:
        """Say once what a session waits for that is not ready."""
        if now < self._silent.get(slot.agent, now + 1):
            return
        del self._silent[slot.agent]
        words = self.last_words(slot.agent)
        if not self._files.exists(self.base.mailbox(slot.agent)) and "waiting for" in words:
            self.say(f"slot {slot.agent} is not ready yet: {words}")

    def _go_on(self, slot: SlotSpec) -> bool:
        """Count a failure; give up a slot that has too many, with an error if it is the last."""
        failures = self._failures[slot.agent] = self._failures.get(slot.agent, 0) + 1
        if failures < MOST_FAILURES:
            return True
        self.slots.remove(slot)
        words = self.last_words(slot.agent)
        if not self.slots:
            raise SlotsFailed(f"no session can start: {words}")
        self.say(f"slot {slot.agent} is given up: {words}")
        return False

    def forgive(self) -> None:
        """Sessions have done some work: their earlier failures count no more."""
        self._failures.clear()

    def finish(self) -> None:
        """Have every session that was started here end after its job; an idle one ends at once."""
        for process in self._ours():
            process.terminate()

    def end(self, *, now: bool) -> None:
        """End every session that was started here, after its job or now; wait for their end."""
        if now:
            self.stop_now()
        else:
            self.finish()
            self.wait()

    def stop_now(self) -> None:
        """End every session that was started here now, with the commands that they run."""
        for _ in range(2):
            self.finish()
            time.sleep(POLL_S)  # two signals at once would be one
        try:
            self.wait()
            self._end_survivors()
        except KeyboardInterrupt:
            self.finish()  # the third signal ends the grace of a command
            self.wait()
            self._end_survivors()

    def wait(self) -> None:
        """Wait until every session that was started here has ended."""
        for process in self._ours():
            process.wait()

    def _end_survivors(self) -> None:
        """End commands that outlived an earlier process, and that our sessions waited for."""
        for slot in self.slots:
            if living_agent(self._files, self.base, slot.agent) is not None:
                continue  # another process uses it
            told: set[int] = set()
            while minders := holders(self.base.agent_lock(slot.agent)):
                for pid in set(minders) - told:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                    told.add(pid)
                time.sleep(0.02)

    def _ours(self) -> list[SessionProcess]:
        everyone = [*self._processes.values(), *self._leaving]
        return [process for process in everyone if process.poll() is None]

    # Anybody's sessions, by their agents' ids

    def stop(self, agents: Sequence[str], *, now: bool = False) -> None:
        """Stop sessions, also those of others, after their job or now; wait for their end."""
        waiting, elsewhere = [], []
        for agent in agents:
            info = living_agent(self._files, self.base, agent)
            if info is None:
                self.say(f"agent {agent} is not running")
                continue
            if info.pid_namespace != pid_namespace():
                elsewhere.append(info)
                continue
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(info.pid)
                try:
                    # Asked again with the descriptor open: now no other process can get the pid.
                    if self._is_alive(info):
                        for _ in range(2 if now else 1):
                            signal.pidfd_send_signal(fd, signal.SIGTERM)
                            if now:
                                time.sleep(POLL_S)
                finally:
                    os.close(fd)
            waiting.append(info)
        for info in waiting:
            while self._is_alive(info):
                time.sleep(POLL_S)
            self.say(f"agent {info.agent} stopped")
        if elsewhere:
            who = ", ".join(f"agent {info.agent} ({info.pid_words})" for info in elsewhere)
            raise PostroomError(
                f"no signal from here reaches {who}: stop it in its own container, with "
                f"postroom agents stop {shlex.quote(self.base.root)} {elsewhere[0].agent}; or give "
                "it no more jobs, with postroom agents drain"
            )

    def _is_alive(self, info: AgentInfo) -> bool:
        now = living_agent(self._files, self.base, info.agent)
        return now is not None and now.process == info.process

    # For a Master, which waits for nobody

    def start_kept(self, agent_id: str, gpus: str, *, among: int, share: bool = False) -> None:
        """Start a session that lives as long as the base wants it; `among`: how many there are."""
        cores = len(os.sched_getaffinity(0))
        own = KEPT_SHARING if share else {**KEPT, "threads": max(1, cores // max(among, 1))}
        kept = Sessions(self.base, options=own)
        self._processes[agent_id] = kept._spawn(SlotSpec(agent_id, gpus, share), outlive=True)

    def is_starting(self, agent_id: str) -> bool:
        """Whether a session that was started here runs, ready or not."""
        process = self._processes.get(agent_id)
        return process is not None and process.poll() is None

    def remove(self, agents: Collection[str], *, now: bool) -> None:
        """Stop sessions, after their job or now; do not wait for them."""
        words = ["agents", "stop", self.base.root, *agents, *(["--now"] if now else [])]
        with _open_log(f"{os.path.dirname(self.base.log)}/agents.txt", os.O_APPEND) as log:
            start_detached("postroom", *words, log=log)

    def others_serve(self) -> bool:
        """Whether agents live that others have started, or pilots do or will."""
        if list_agents(self._files, self.base, resting=True):
            return True
        if has_pilots(self._files, self.base):
            self.keep_pilots()
            return True
        return False

    def keep_pilots(self) -> None:
        """Start the keeper of the base's pilots, if it is dead."""
        if self._keeper is not None and self._keeper.poll() is None:
            return
        self._files.make_folder(self.base.pilots)
        lock = self._files.try_lock(self.base.pilot_keeper_lock)
        if lock is None:
            return
        lock.release()
        with _open_log(self.base.pilot_log("keeper"), os.O_APPEND) as log:
            self._keeper = start_detached("postroom.pilots.keeper", self.base.root, log=log)

    # Starting one

    def _start(self, slot: SlotSpec) -> SessionProcess:
        # All that a session needs is loaded here already: a fork saves it a tenth of a second. Only
        # a process of one thread may fork; a feed has its own thread, and so has numpy.
        if len(os.listdir("/proc/self/task")) > 1:
            return self._spawn(slot)
        with _open_log(self.base.session_log(slot.agent), os.O_TRUNC) as log:
            return fork_session(slot.gpu, self.base.root, log, **self._options_of(slot))

    def _spawn(self, slot: SlotSpec, *, outlive: bool = False) -> SessionProcess:
        words = []
        for name, value in self._options_of(slot, outlive=outlive).items():
            option = f"--{'yield' if name == 'yields' else name.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
        with _open_log(self.base.session_log(slot.agent), os.O_TRUNC) as log:
            return start_detached("postroom.session", slot.gpu, self.base.root, *words, log=log)

    def _options_of(self, slot: SlotSpec, *, outlive: bool = False) -> dict[str, Any]:
        return {
            **self._options,
            "agent": slot.agent,
            **({} if outlive else {"while_pid": os.getpid()}),
            **({"share": True} if slot.share else {}),
        }

    def last_words(self, agent: str) -> str:
        """The last line that a session printed."""
        said = last_words(self._files, self.base, agent)
        return said or f"it printed nothing; see {self.base.session_log(agent)}"


@contextlib.contextmanager
def _open_log(path: str, flag: int) -> Iterator[int]:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flag, 0o600)
    try:
        yield log
    finally:
        os.close(log)
