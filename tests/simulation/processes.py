"""Simulated processes: ordinary code in threads, of which exactly one runs at any time.

A process gives up its turn only at a point: just before an operation on the disk, or in a sleep.
The test (a seeded random choice, or Hypothesis) says for how many operations a process may run,
and what happens then: the turn goes to another, the next operation fails, or the process is killed.
So every interleaving of operations is possible, and the same choices give the same story.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, NoReturn

Body = Callable[["Process"], None]

# What an operation takes, so that time passes even while nobody sleeps.
OPERATION_S = 0.00002


class Killed(BaseException):
    """SIGKILL: nothing that the process does after it has an effect."""


class Process:
    """One simulated process."""

    def __init__(self, scheduler: Scheduler, name: str, parent: Process | None) -> None:
        self.scheduler = scheduler
        self.name = name
        self.pid = scheduler.spawned
        self.parent = parent
        self.alive = True
        self.finished = False  # it came to its own end
        self.survives = False  # the death of its parent
        self.starved = False  # it gets no descriptor: what it has open, it can use
        self.stopped = False  # SIGSTOP: alive, and holding its locks, but not running
        self.wake_at = scheduler.now
        self.budget = 0  # operations until its turn ends
        self.fault: int | None = None  # the errno with which its next operation fails
        self.error: BaseException | None = None  # what ended it, if not a kill
        self._go = threading.Lock()
        self._go.acquire()

    def __repr__(self) -> str:
        return self.name

    @property
    def ready(self) -> bool:
        """Whether it could run now."""
        return self.alive and not self.stopped and self.wake_at <= self.scheduler.now

    def point(self) -> None:
        """Pause before an operation."""
        if not self.alive:
            raise Killed
        self.scheduler.operations += 1
        self.scheduler.now += OPERATION_S
        self.budget -= 1
        if self.budget < 0:
            self._give_up_turn()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.wake_at = self.scheduler.now + seconds
        self._give_up_turn()

    def die(self) -> NoReturn:
        """End itself, as a bug of Linux or the OOM killer would."""
        self.alive = False
        raise Killed

    def _give_up_turn(self) -> None:
        self.scheduler._back.release()
        self._go.acquire()
        if not self.alive:
            raise Killed


class Scheduler:
    """Creates processes, runs them one at a time, and ends them."""

    def __init__(self) -> None:
        self.now = 1.0
        self.operations = 0
        self.kills = 0
        self.spawned = 0
        self.processes: list[Process] = []
        self.on_exit: Callable[[Process], None] = lambda process: None
        self._back = threading.Lock()
        self._back.acquire()

    def spawn(self, name: str, body: Body, *, parent: Process | None = None) -> Process:
        """Start a process; it runs when it is first given a turn."""
        self.spawned += 1
        process = Process(self, name, parent)
        self.processes.append(process)
        _Thread.take().begin(process, body)
        return process

    def turn(self, process: Process, operations: int, *, fault: int | None = None) -> None:
        """Let a process do some operations, of which the last fails if a fault is given."""
        process.budget = operations
        process.fault = fault
        self._resume(process)

    def kill(self, process: Process) -> None:
        """End a process where it is."""
        if process.alive:
            process.alive = False
            self.kills += 1
            self._resume(process)

    def children(self, process: Process) -> list[Process]:
        """The living children of a process."""
        return [p for p in self.processes if p.alive and p.parent is process]

    def shut_down(self) -> None:
        """End everything, so that no thread stays behind in the middle of something."""
        self.on_exit = lambda process: None
        for process in list(self.processes):
            self.kill(process)

    def _resume(self, process: Process) -> None:
        process._go.release()
        self._back.acquire()
        if not process.alive:
            self.processes.remove(process)
            self.on_exit(process)


class _Thread:
    """A thread that lends itself to one process after another: starting one is the slow part."""

    _idle: ClassVar[list[_Thread]] = []

    def __init__(self) -> None:
        self._work = threading.Lock()
        self._work.acquire()
        threading.Thread(target=self._loop, daemon=True, name="simulated process").start()

    @classmethod
    def take(cls) -> _Thread:
        return cls._idle.pop() if cls._idle else cls()

    def begin(self, process: Process, body: Body) -> None:
        self._process, self._body = process, body
        self._work.release()

    def _loop(self) -> None:
        while True:
            self._work.acquire()
            process = self._process
            process._go.acquire()
            try:
                if process.alive:
                    self._body(process)
                    process.finished = True
            except Killed:
                pass
            except BaseException as error:  # the test judges it
                process.error = error
            process.alive = False
            self._idle.append(self)
            process.scheduler._back.release()
