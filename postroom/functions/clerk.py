"""Futures for jobs that sessions run: a thread drives a Master, since a Future waits for nobody."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from ..agent import list_agents
from ..errors import NoAgentsError, PostroomError
from ..files import LocalFiles
from ..gpus import inventory
from ..gpus.ledger import open_ledger
from ..gpus.overview import State, overview
from ..jobs import Job, JobPool, Status
from ..master import Master
from ..session.launch import start_sessions, stop_sessions

Say = Callable[[str], None]
Errand = tuple[Job, "Future[Any]"]

GLANCE_S = 0.05  # how long a job that is handed in may have to wait for others to be looked at


class Clerk:
    """Hands jobs to the sessions of one base and puts what comes back into their Futures.

    Where no session lives, it starts one on each card that nobody holds; they end with us.
    """

    def __init__(self, base: str, project: str, *, say: Say) -> None:
        self._base = base
        self._project = project
        self._say = say
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._pending: dict[int, Future[Any]] = {}
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="postroom clerk", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(self, job: Job) -> Future[Any]:
        """Hand in a job."""
        future: Future[Any] = Future()
        if self._failure is not None:
            raise PostroomError(f"the base cannot be used: {self._failure}") from self._failure
        self._errands.put((job, future))
        return future

    def close(self) -> None:
        """Wait for what was handed in, then end the sessions that were started for it."""
        self._errands.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                master = stack.enter_context(Master(self._base, project=self._project))
                self._hire(master, stack)
                self._serve(master, master.open(label="decorated functions"))
        except BaseException as error:
            self._give_up(error)

    def _hire(self, master: Master, stack: ExitStack) -> None:
        if list_agents(LocalFiles(), master.base):
            return
        slots = _free_slots()
        started = start_sessions(master.base, slots, say=self._say, while_pid=os.getpid())
        new = [session.agent_id for session in started if session.new]
        stack.callback(lambda: stop_sessions(master.base, new, say=_silent))

    def _serve(self, master: Master, pool: JobPool) -> None:
        open_ = True
        while open_ or self._pending:
            # With nothing to wait for, wait for errands; else take those that are there.
            while not self._errands.empty() or (open_ and not self._pending):
                errand = self._errands.get()
                if errand is None:
                    open_ = False
                else:
                    self._hand_in(pool, *errand)
            done = pool.n_done
            for _ in master.rounds(pool, GLANCE_S, until=lambda seen=done: pool.n_done > seen):  # type: ignore[misc]
                if not self._errands.empty():
                    break
            if pool.n_done > done:
                self._settle(pool)

    def _hand_in(self, pool: JobPool, job: Job, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            self._pending[pool.submit(job).number] = future
        except Exception as error:  # an argument that cannot travel: this job's own matter
            future.set_exception(error)
        self._settle(pool)

    def _settle(self, pool: JobPool) -> None:
        for number in [n for n in self._pending if pool.status(n) is Status.DONE]:
            future = self._pending.pop(number)
            try:
                future.set_result(pool[number].result())
            except Exception as error:
                future.set_exception(error)

    def _give_up(self, error: BaseException) -> None:
        self._failure = error
        for future in self._pending.values():
            future.set_exception(error)
        self._pending.clear()
        while not self._errands.empty():
            errand = self._errands.get()
            if errand is not None and errand[1].set_running_or_notify_cancel():
                errand[1].set_exception(error)


def _free_slots() -> list[tuple[str, str]]:
    """Return agents to start: one on each card that nobody holds; without cards, one."""
    cards = inventory.cards()
    if not cards:
        return [("0", "cpu")]
    views = overview(open_ledger(), cards)
    free = [view.card for view in views if view.state is State.IDLE]
    if not free:
        raise NoAgentsError(
            "no agent lives in the base, and no card is free to start one: see `postroom gpu list`"
        )
    return [(str(card.index), str(card.index)) for card in free]


def _silent(text: str) -> None:
    """Say nothing."""


_clerks: dict[tuple[int, str, str], Clerk] = {}
_making = threading.Lock()


def clerk_for(base: str, project: str, *, say: Say) -> Clerk:
    """Return this process's clerk for a base and a project."""
    key = (os.getpid(), os.path.realpath(base), project)  # a thread does not survive a fork
    with _making:
        if key not in _clerks:
            _clerks[key] = Clerk(base, project, say=say)
        return _clerks[key]
