"""Why a job waits, and when it should start: for people, so in words, and honest where unknown."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Iterator
from statistics import fmean

from ..errors import BadFileError
from ..store.job_ids import JobId
from ..store.snapshot import AgentStatus
from ..text.memory_sizes import from_mib
from .base_state import BaseState, RunJob
from .rows import FAILED
from .run_reader import RunReader
from .waiting_order import in_order

# How many of a project's last jobs say how long its next ones will take.
SAMPLE = 20
# An agent that has died and one that does not take letters yet can be given nothing.
_GONE = ("dead", "finishing", "outdated")


class Estimator:
    """Answers for one look at a base."""

    def __init__(self, base_state: BaseState, base_root: str) -> None:
        self._base_state = base_state
        self._root = base_root
        self._order: Iterator[RunJob] = in_order(base_state.ready)
        self._places: dict[JobId, int] = {}
        self._means: dict[str, float | None] = {}

    # Why

    def why(self, reader: RunReader, number: int, state: str) -> str:
        """Why a job waits, in one sentence."""
        job = reader.job_id(number)
        if state == "held":
            asked = self._base_state.orders.held.get(job)
            how = "it was submitted with --hold" if asked is None else "somebody has held it"
            return f"{how}; let it go with: postroom release {job.short}"
        if state == "waiting":
            return self._why_waiting(reader, number)
        if state == "paused":
            return self._why_paused(reader)
        if job in self._base_state.orders.killed:
            return "it was killed, and is about to be cancelled"
        return self._why_queued(reader, number)

    def _why_waiting(self, reader: RunReader, number: int) -> str:
        scheduling = reader.scheduling(number)
        missing = self._base_state.missing(scheduling)
        in_vain = [job for job in missing if self._base_state.outcome(job) is not None]
        if in_vain:
            state = self._base_state.outcome(in_vain[0])
            return f"it is about to be cancelled: {in_vain[0].short}, which it needs, is {state}"
        named = ", ".join(f"{job.short} ({self._state(job)})" for job in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"it waits for {named}{more}"

    def _state(self, job: JobId) -> str:
        reader = self._base_state.readers.get(job.run)
        if reader is None or job.number >= reader.asked:
            return "never submitted"
        return self._base_state.state(reader, job.number)

    def _why_paused(self, reader: RunReader) -> str:
        orders = self._base_state.orders
        if reader.run in self._base_state.unwanted:
            return "the program that handed it in is gone; start it again and it goes on"
        if orders.paused_all:
            return "the queue is paused; go on with: postroom resume"
        if reader.run in orders.paused_runs:
            return f"its run is paused; go on with: postroom resume --run {reader.run[-6:]}"
        return f"its project is paused; go on with: postroom resume --project {reader.project}"

    def _why_queued(self, reader: RunReader, number: int) -> str:
        if self._base_state.master_pid is None:
            return f"no Master acts; start one with: postroom master {self._root} --detach"
        agents = [agent for agent in self._base_state.agents if agent.state not in _GONE]
        if not agents:
            return f"no agent lives; start one with: postroom agents start 1 {self._root}"
        open_ = [agent for agent in agents if agent.agent not in self._base_state.orders.drained]
        if not open_:
            return "all agents are drained; take them back with: postroom drain --undo"
        scheduling = reader.scheduling(number)
        if not self._fitting(reader, number):
            if scheduling.gpus > 1 and not any(_infos(agent) >= scheduling.gpus for agent in open_):
                return f"no agent has the {scheduling.gpus} cards that it needs"
            return f"no agent has a card with the {from_mib(scheduling.memory_mib)} that it needs"
        place = self._place(reader.job_id(number))
        if place == 0:
            return "it is next"
        return f"{place} job{'s are' if place > 1 else ' is'} before it"

    def _fitting(self, reader: RunReader, number: int) -> list[AgentStatus]:
        """The agents that may be given a job."""
        scheduling = reader.scheduling(number)
        return [
            agent
            for agent in self._base_state.agents
            if agent.state not in _GONE
            and agent.agent not in self._base_state.orders.drained
            and (scheduling.gpus <= 1 or scheduling.gpus <= _infos(agent))
            and scheduling.memory_mib <= agent.memory_mib
        ]

    def _place(self, job: JobId) -> int:
        """How many stand before a job; the queue is walked only as far as it was asked about."""
        while job not in self._places:
            reader, number = next(self._order, (None, 0))
            if reader is None:
                break
            self._places[reader.job_id(number)] = len(self._places)
        return self._places.get(job, len(self._places))

    # When

    def when(self, reader: RunReader, number: int, state: str) -> tuple[int | None, float | None]:
        """Its place in the queue from 1 on, and when it should start; None: nobody knows."""
        if state != "queued":
            return None, None
        job = reader.job_id(number)
        place = self._place(job)
        agents = self._fitting(reader, number)
        if not agents or self._base_state.master_pid is None:
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
            mean_s = self._mean(self._base_state.readers[earlier.run].project)
            if mean_s is None:
                return place + 1, None
            heapq.heapreplace(free, free[0] + mean_s)
        return place + 1, self._base_state.at + free[0]

    def _left(self, agent: AgentStatus) -> float | None:
        """How long an agent still has to do with the job in its hand."""
        mine = [job for job, at in self._base_state.running.items() if at.agent == agent.agent]
        if not mine:
            return 0.0
        mean_s = self._mean(self._base_state.readers[mine[0].run].project)
        if mean_s is None or agent.job_since is None:
            return mean_s
        return max(0.0, mean_s - (self._base_state.at - agent.job_since))

    def _mean(self, project: str) -> float | None:
        """How long a job of a project takes, from its last ones; None: none has ended."""
        if project not in self._means:
            own = [
                reader for reader in self._base_state.readers.values() if reader.project == project
            ]
            self._means[project] = self._mean_of(own)
        return self._means[project]

    def _mean_of(self, readers: list[RunReader]) -> float | None:
        seconds = []
        jobs_in = self._base_state.jobs_in(("ok", *FAILED), readers)
        for reader, number, _ in itertools.islice(jobs_in, SAMPLE):
            first = reader.result_of(number)
            if first is not None:
                with contextlib.suppress(BadFileError, OSError):
                    seconds.append(reader.read_outcomes(first).seconds[number - first])
        return fmean(seconds) if seconds else None


def _infos(agent: AgentStatus) -> int:
    return 0 if agent.gpu in ("", "cpu") else agent.gpu.count(",") + 1
