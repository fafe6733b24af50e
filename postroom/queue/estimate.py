"""Why a job waits, and when it should start: for people, so in words, and honest where unknown."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Iterator
from statistics import fmean

from ..errors import BadFileError
from ..gpus.sizes import from_mib
from ..ids import JobId
from ..status import AgentStatus
from .order import in_order
from .rows import FAILED
from .scene import Scene, Spot
from .shelf import Shelf

# How many of a project's last jobs say how long its next ones will take.
SAMPLE = 20
# An agent that has died and one that does not take letters yet can be given nothing.
_GONE = ("dead", "finishing", "outdated")


class Oracle:
    """Answers for one look at a base."""

    def __init__(self, scene: Scene, base_root: str) -> None:
        self._scene = scene
        self._root = base_root
        self._order: Iterator[Spot] = in_order(scene.ready)
        self._places: dict[JobId, int] = {}
        self._means: dict[str, float | None] = {}

    # Why

    def why(self, shelf: Shelf, number: int, state: str) -> str:
        """Why a job waits, in one sentence."""
        job = shelf.job_id(number)
        if state == "held":
            asked = self._scene.orders.held.get(job)
            how = "it was submitted with --hold" if asked is None else "somebody has held it"
            return f"{how}; let it go with: postroom release {job.short}"
        if state == "waiting":
            return self._why_waiting(shelf, number)
        if state == "paused":
            return self._why_paused(shelf)
        if job in self._scene.orders.killed:
            return "it was killed, and is about to be cancelled"
        return self._why_queued(shelf, number)

    def _why_waiting(self, shelf: Shelf, number: int) -> str:
        wishes = shelf.wishes(number)
        missing = self._scene.missing(wishes)
        in_vain = [job for job in missing if self._scene.outcome(job) is not None]
        if in_vain:
            state = self._scene.outcome(in_vain[0])
            return f"it is about to be cancelled: {in_vain[0].short}, which it needs, is {state}"
        named = ", ".join(f"{job.short} ({self._state(job)})" for job in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"it waits for {named}{more}"

    def _state(self, job: JobId) -> str:
        shelf = self._scene.shelves.get(job.run)
        if shelf is None or job.number >= shelf.asked:
            return "never submitted"
        return self._scene.state(shelf, job.number)

    def _why_paused(self, shelf: Shelf) -> str:
        orders = self._scene.orders
        if shelf.run in self._scene.unwanted:
            return "the program that handed it in is gone; start it again and it goes on"
        if orders.paused_all:
            return "the queue is paused; go on with: postroom resume"
        if shelf.run in orders.paused_runs:
            return f"its run is paused; go on with: postroom resume --run {shelf.run[-6:]}"
        return f"its project is paused; go on with: postroom resume --project {shelf.project}"

    def _why_queued(self, shelf: Shelf, number: int) -> str:
        if self._scene.master_pid is None:
            return f"no Master acts; start one with: postroom master {self._root} --detach"
        agents = [agent for agent in self._scene.agents if agent.state not in _GONE]
        if not agents:
            return f"no agent lives; start one with: postroom agents start 1 {self._root}"
        open_ = [agent for agent in agents if agent.agent not in self._scene.orders.drained]
        if not open_:
            return "all agents are drained; take them back with: postroom drain --undo"
        wishes = shelf.wishes(number)
        if not self._fitting(shelf, number):
            if wishes.gpus > 1 and not any(_cards(agent) >= wishes.gpus for agent in open_):
                return f"no agent has the {wishes.gpus} cards that it needs"
            return f"no agent has a card with the {from_mib(wishes.memory_mib)} that it needs"
        place = self._place(shelf.job_id(number))
        if place == 0:
            return "it is next"
        return f"{place} job{'s are' if place > 1 else ' is'} before it"

    def _fitting(self, shelf: Shelf, number: int) -> list[AgentStatus]:
        """The agents that may be given a job."""
        wishes = shelf.wishes(number)
        return [
            agent
            for agent in self._scene.agents
            if agent.state not in _GONE
            and agent.agent not in self._scene.orders.drained
            and (wishes.gpus <= 1 or wishes.gpus <= _cards(agent))
            and wishes.memory_mib <= agent.memory_mib
        ]

    def _place(self, job: JobId) -> int:
        """How many stand before a job; the queue is walked only as far as it was asked about."""
        while job not in self._places:
            shelf, number = next(self._order, (None, 0))
            if shelf is None:
                break
            self._places[shelf.job_id(number)] = len(self._places)
        return self._places.get(job, len(self._places))

    # When

    def when(self, shelf: Shelf, number: int, state: str) -> tuple[int | None, float | None]:
        """Its place in the queue from 1 on, and when it should start; None: nobody knows."""
        if state != "queued":
            return None, None
        job = shelf.job_id(number)
        place = self._place(job)
        agents = self._fitting(shelf, number)
        if not agents or self._scene.master_pid is None:
            return place + 1, None
        free: list[float] = []
        for agent in agents:
            left_s = self._left(agent)
            if left_s is None:
                return place + 1, None
            free.append(left_s)
        heapq.heapify(free)
        before = itertools.islice(self._places, place)
        for earlier in before:
            mean_s = self._mean(self._scene.shelves[earlier.run].project)
            if mean_s is None:
                return place + 1, None
            heapq.heapreplace(free, free[0] + mean_s)
        return place + 1, self._scene.at + free[0]

    def _left(self, agent: AgentStatus) -> float | None:
        """How long an agent still has to do with the job in its hand."""
        mine = [job for job, at in self._scene.running.items() if at.agent == agent.agent]
        if not mine:
            return 0.0
        mean_s = self._mean(self._scene.shelves[mine[0].run].project)
        if mean_s is None or agent.job_since is None:
            return mean_s
        return max(0.0, mean_s - (self._scene.at - agent.job_since))

    def _mean(self, project: str) -> float | None:
        """How long a job of a project takes, from its last ones; None: none has ended."""
        if project not in self._means:
            own = [shelf for shelf in self._scene.shelves.values() if shelf.project == project]
            self._means[project] = self._mean_of(own)
        return self._means[project]

    def _mean_of(self, shelves: list[Shelf]) -> float | None:
        seconds = []
        spots = self._scene.spots(("ok", *FAILED), shelves)
        for shelf, number, _ in itertools.islice(spots, SAMPLE):
            first = shelf.result_of(number)
            if first is not None:
                with contextlib.suppress(BadFileError, OSError):
                    seconds.append(shelf.read_outcomes(first).seconds[number - first])
        return fmean(seconds) if seconds else None


def _cards(agent: AgentStatus) -> int:
    return 0 if agent.gpu in ("", "cpu") else agent.gpu.count(",") + 1
