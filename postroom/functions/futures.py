"""Futures for jobs that run in sessions; a background thread drives the Master."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..errors import NoAgentsError, PostroomError
from ..gpus.cards import inventory
from ..gpus.cards.gpu_list import SlotSpec
from ..gpus.cards.inventory import Card
from ..gpus.ledger.card_overview import CardState, overview
from ..gpus.ledger.protocol import open_ledger
from ..gpus.memory.booking import held_for_us
from ..jobs import Job, JobPool, Status
from ..master import Master
from ..session.sessions import Sessions
from ..store.agents import list_agents
from ..store.files import LocalFiles
from ..store.job_ids import SHORT, JobId, JobIds
from ..store.requests import Request, RequestVerb, ask
from ..store.snapshot import snapshot
from ..store.task_source import source_version

Say = Callable[[str], None]
Submitted = tuple[Job, "Future[Any]"]

MOST_ON_A_CARD = 4  # sessions; each has torch, a CUDA context and some of the host's memory
GROW_S = 0.5  # between two checks whether one more session would help
PATIENCE_S = 1.0  # a program that ends and waits longer for its jobs says so
CANCEL_S = 5.0  # after Ctrl-C, jobs that run should have ended within this time
GLANCE_S = 0.05  # a new job waits at most so long while results are collected


class DecoratorPool:
    """Sends jobs to the sessions of one base, and sets their Futures when results arrive.

    If no session is running, it starts its own, which end with this process. They share their
    cards: each job reserves the memory that its kind needs, so jobs that fit run side by side. A
    session stays on one card, since CUDA cannot move: there is one per card at first, and more on
    a card with free memory while jobs wait.
    """

    def __init__(self, base: str, project: str, *, say: Say) -> None:
        self._base = base
        self._project = project
        self._say = say
        self._submitted: queue.SimpleQueue[Submitted | None] = queue.SimpleQueue()
        self._checked: set[str] = set()  # tasks that sessions can import
        self._pending: dict[int, Future[Any]] = {}
        self._sessions: Sessions | None = None
        self._cards: list[Card] = []
        self._grow_at = 0.0
        self._failure: BaseException | None = None
        self._pid = os.getpid()
        self._interrupted = threading.Event()  # what waits is to be cancelled
        # Not `Thread.join`: in some versions it takes a thread for ended when it is interrupted.
        self._over = threading.Event()
        threading.Thread(target=self._run, name="postroom futures", daemon=True).start()
        atexit.register(self.close)

    def submit(self, job: Job) -> Future[Any]:
        """Submit a job."""
        if job.task not in self._checked:  # before a session is started for it
            source_version(self._project, job.task)
            self._checked.add(job.task)
        future: Future[Any] = Future()
        if self._failure is not None:
            raise PostroomError(f"the base cannot be used: {self._failure}") from self._failure
        self._submitted.put((job, future))
        return future

    def close(self) -> None:
        """Wait for all submitted jobs, then end the sessions that were started for them.

        Where Ctrl-C has ended the program, or is pressed now, they are cancelled instead; a second
        Ctrl-C leaves at once.
        """
        if os.getpid() != self._pid:
            return  # in a fork there is no thread to wait for
        if _ended_by_interrupt():
            self._interrupted.set()
        self._submitted.put(None)
        with contextlib.suppress(KeyboardInterrupt):
            try:
                in_time = self._over.wait(PATIENCE_S)
                if not in_time and self._pending and not self._interrupted.is_set():
                    self._say(f"waiting for {len(self._pending)} submitted jobs; Ctrl-C ends them")
                self._over.wait()
            except KeyboardInterrupt:
                self._interrupted.set()
                self._over.wait()

    def _run(self) -> None:
        try:
            with Master(self._base, import_folder=self._project) as master:
                if not list_agents(LocalFiles(), master.base):
                    self._start_sessions(master)
                try:
                    self._serve(master, master.open(project="decorated functions"))
                    if self._sessions is not None:
                        self._sessions.finish()
                finally:
                    if self._sessions is not None:
                        self._sessions.stop_now()
        except BaseException as error:
            self._give_up(error)
        finally:
            self._over.set()

    def _start_sessions(self, master: Master) -> None:
        cards = self._cards = [card for card in inventory.cards() if not card.problem]
        _refuse_our_own(cards)
        threads = max(1, len(os.sched_getaffinity(0)) // max(len(cards), 1))
        self._sessions = Sessions(master.base, say=self._say, options={"threads": threads})
        places = [SlotSpec(str(card.index), str(card.index), share=True) for card in cards]
        self._sessions.keep(places or [SlotSpec("0", "cpu")])
        self._say(
            f"starting sessions on {', '.join(f'GPU {card.index}' for card in cards) or 'the CPU'} "
            f"(importing torch may take a moment); log: {master.base.log}"
        )

    def _tend(self, now: float) -> None:
        """Keep the sessions alive, and have one more where that would help."""
        sessions = self._sessions
        if sessions is None:
            return
        sessions.tend(now)
        if now < self._grow_at or len(self._pending) <= len(sessions.slots):
            return
        self._grow_at = now + GROW_S
        for view in overview(open_ledger(), self._cards):
            card = view.card
            here = [place for place in sessions.slots if place.gpu == str(card.index)]
            # Where a job has the card as a whole, as when it is measured, others can only wait.
            if view.state is CardState.SHARED and len(here) < MOST_ON_A_CARD:
                free_mib = card.memory_mib - view.reserved_mib
                if free_mib * MOST_ON_A_CARD >= card.memory_mib:
                    agent = f"{card.index}{chr(ord('a') + len(here))}"
                    sessions.keep([*sessions.slots, SlotSpec(agent, str(card.index), share=True)])

    def _serve(self, master: Master, pool: JobPool) -> None:
        open_ = True
        while open_ or self._pending:
            if self._interrupted.is_set():
                self._cancel(master, pool)
                return
            # With nothing to wait for, wait for one; else take those that are there.
            while not self._submitted.empty() or (open_ and not self._pending):
                submitted = self._submitted.get()
                if submitted is None:
                    open_ = False
                else:
                    self._hand_in(pool, *submitted)
            done = pool.n_done
            for _ in master.rounds(pool, GLANCE_S, until=lambda seen=done: pool.n_done > seen):  # type: ignore[misc]
                self._tend(time.monotonic())
                if not self._submitted.empty():
                    break
            if pool.n_done > done:
                self._settle(pool)

    def _cancel(self, master: Master, pool: JobPool) -> None:
        """Cancel what waits and end what runs, also where another Master acts."""
        waited = 0
        while not self._submitted.empty():
            submitted = self._submitted.get()
            waited += submitted is not None and submitted[1].cancel()
        left = [JobId(pool.run, number) for number in self._pending]
        agents = snapshot(master.base, runs=False).agents
        running = sum(one.run == pool.run and one.job is not None for one in agents)
        if left:
            kill = Request(RequestVerb.KILL, jobs=JobIds(left), by="Ctrl-C")
            ask(LocalFiles(), master.base, kill)
        for _ in master.rounds(pool, CANCEL_S):
            pass
        waited += len(left) - running
        said = f"interrupted: cancelled {waited} jobs that waited, ended {running} that ran"
        if not pool.done:
            missing = len(pool) - pool.n_done
            said += f"; {missing} have not ended yet: postroom jobs --run {pool.run[-SHORT:]}"
        self._say(said)
        self._settle(pool)

    def _hand_in(self, pool: JobPool, job: Job, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            self._pending[pool.submit(job).number] = future
        except Exception as error:  # an argument that cannot be sent: only this job fails
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
        while not self._submitted.empty():
            submitted = self._submitted.get()
            if submitted is not None and submitted[1].set_running_or_notify_cancel():
                submitted[1].set_exception(error)


def _refuse_our_own(cards: list[Card]) -> None:
    """Raise an error if jobs would wait forever for cards that this process holds itself."""
    held = held_for_us(open_ledger(), cards) if cards else []
    if held and len(held) == len(cards):
        raise NoAgentsError(
            "all visible GPUs are held for this process (by `postroom gpu run`, a shell or a job "
            "above it), so submitted jobs could not get one: call the function directly"
        )


def _ended_by_interrupt() -> bool:
    """Return whether Ctrl-C is ending this program; at a prompt, it ends only a call."""
    return not hasattr(sys, "ps1") and isinstance(
        getattr(sys, "last_value", None), KeyboardInterrupt
    )


_pools: dict[tuple[int, str, str], DecoratorPool] = {}
_making = threading.Lock()


def future_pool_for(base: str, project: str, *, say: Say) -> DecoratorPool:
    """Return this process's pool for a base and a project."""
    key = (os.getpid(), os.path.realpath(base), project)  # a thread does not survive a fork
    with _making:
        if key not in _pools:
            _pools[key] = DecoratorPool(base, project, say=say)
        return _pools[key]
