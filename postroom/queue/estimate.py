"""Why a job waits, as a sentence that says what to do, and when it should start."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import Iterator
from statistics import fmean

from ..dispatch.stall import about_pilots
from ..errors import BadFileError
from ..store.base import Base, up_command
from ..store.files import LocalFiles
from ..store.job_ids import SHORT, JobId
from ..store.scheduling import SchedulingOptions, will_do
from ..store.snapshot import DEAD, AgentStatus
from ..text.durations import format_time
from ..text.sizes import from_mib
from .base_state import BaseState, RunJob, gpu_count
from .rows import FAILED
from .run_reader import RunReader
from .waiting_order import in_order

# The next jobs of a project are expected to take the mean time of this many last ones.
SAMPLE = 20
NOBODY_HAS = "no agent has"  # begins the reasons that no waiting will change
# Agents in these states get no jobs.
_GONE = (*DEAD, "finishing", "outdated")


class Estimator:
    """Answers for one state of a base."""

    def __init__(self, base_state: BaseState, base_root: str) -> None:
        self._base_state = base_state
        self._root = base_root
        self._order: Iterator[RunJob] = in_order(base_state.ready, base_state.levels())
        self._places: dict[JobId, int] = {}
        self._means: dict[str, float | None] = {}
        self._pilots: dict[str, str] = {}  # by the engine: why none serves

    def _about_pilots(self, where: str = "") -> str:
        """Why no pilot serves; "": the base has none."""
        if where not in self._pilots:
            base, at = Base(self._root), self._base_state.at
            self._pilots[where] = about_pilots(LocalFiles(), base, at, where)
        return self._pilots[where]

    # Why

    def why(self, reader: RunReader, number: int, state: str) -> str:
        """Why a job waits, in one sentence."""
        job = reader.job_id(number)
        if state == "held":
            ordered = self._base_state.orders.held.get(job)
            how = "it was submitted with --hold" if ordered is None else "somebody held it"
            if ordered and (most := reader.scheduling(number).group_failures):
                how = f"{most} of these jobs have failed (--stop-after-failures), or {how}"
            return f"{how}; release it with: postroom release {job.short}"
        if state == "waiting":
            return self._why_waiting(reader, number)
        if state == "abandoned":
            run = reader.run
            return (
                f"its program is gone, and nobody sends its jobs; end them with: postroom kill "
                f"{run[-SHORT:]}; or take them up in Python: Master(base).resume({run!r}).wait()"
            )
        if state == "paused":
            return self._why_paused(reader)
        if job in self._base_state.orders.killed:
            return "it was killed and will be cancelled in a moment"
        return self._why_queued(reader, number)

    def _why_waiting(self, reader: RunReader, number: int) -> str:
        scheduling = reader.scheduling(number)
        if scheduling.begin_at > self._base_state.at:
            return f"it begins at {format_time(scheduling.begin_at)} (--begin)"
        missing = self._base_state.missing(scheduling)
        ended = [job for job in missing if self._base_state.outcome(job) is not None]
        if ended:
            state = self._base_state.outcome(ended[0])
            return f"it will be cancelled: it needs {ended[0].short}, which is {state}"
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
        if orders.paused_all:
            why = orders.paused_why.get("")
            paused = f"paused itself: {why}; repair that, then" if why else "is paused;"
            return f"the queue {paused} resume it with: postroom resume"
        if reader.run in orders.paused_runs:
            return f"its run is paused; resume it with: postroom resume --run {reader.run[-6:]}"
        if why := orders.paused_why.get(reader.project):
            return (
                f"its project paused itself: {why}; repair that, then: postroom resume --project "
                f"{reader.project}"
            )
        return f"its project is paused; resume it with: postroom resume --project {reader.project}"

    def _why_queued(self, reader: RunReader, number: int) -> str:
        if self._base_state.master_pid is None:
            return f"no scheduler is running; start it with: {up_command(self._root)}"
        agents = [agent for agent in self._base_state.agents if agent.state not in _GONE]
        where = reader.scheduling(number).where
        if not agents and where not in ("", "local"):
            return self._about_pilots(where) or self._why_nowhere(where)
        if not agents:
            return (
                self._about_pilots()
                or f"no agent is running; start one with: {up_command(self._root)}"
            )
        accepting = [
            agent for agent in agents if agent.agent not in self._base_state.orders.drained
        ]
        if not accepting:
            return "all agents are drained; undo it with: postroom drain --undo"
        scheduling = reader.scheduling(number)
        if not self._fitting(reader, number):
            if pilots := self._about_pilots(scheduling.where):
                return pilots
            if scheduling.where not in ("", *(agent.where for agent in accepting)):
                return self._why_nowhere(scheduling.where)
            if scheduling.gpus > 1 and not any(
                gpu_count(agent) >= scheduling.gpus for agent in accepting
            ):
                return (
                    f"{NOBODY_HAS} the {scheduling.gpus} GPUs that it needs; start one with: "
                    f"postroom agents add {self._root} '0-{scheduling.gpus - 1};'"
                )
            if not any(
                will_do(scheduling.require, agent.gpu_name, agent.memory_mib) for agent in accepting
            ):
                return (
                    f"{NOBODY_HAS} a GPU like {scheduling.require!r}; start an agent on one, or "
                    "change the job: postroom edit JOB --require KIND"
                )
            memory = from_mib(scheduling.memory_mib)
            return (
                f"{NOBODY_HAS} a GPU with the {memory} that it needs; start an agent on a larger "
                "GPU, or change the job: postroom edit JOB --memory SIZE"
            )
        if limited := self._why_limited(reader, scheduling):
            return limited
        if reserved := self._why_reserved(reader, number, scheduling):
            return reserved
        place = self._place(reader.job_id(number))
        if place == 0:
            waiting = [agent for agent in self._fitting(reader, number) if agent.note]
            if waiting and not any(agent.state == "idle" for agent in accepting):
                return f"it is next; agent {waiting[0].agent} waits for its GPU: {waiting[0].note}"
            return "it is next"
        return f"{place} job{'s are' if place > 1 else ' is'} ahead of it"

    def _why_nowhere(self, where: str) -> str:
        """Nothing of what a job is to run on is there."""
        if where == "local":
            return (
                f"it is to run on this host (--where local), where no agent is; start one with: "
                f"{up_command(self._root)}"
            )
        engine = "--ray ADDRESS" if where == "ray" else f"--{where}"
        return (
            f"it is to run on pilots of {where}, and there are none: postroom pilots add "
            f"{self._root} {engine}"
        )

    def _why_reserved(self, reader: RunReader, number: int, scheduling: SchedulingOptions) -> str:
        """Whether it would reach into other users' reservations of the GPUs that it could have."""
        awake = [one for one in self._fitting(reader, number) if one.state in ("idle", "running")]
        lasts_s, now = scheduling.lasts_s or math.inf, self._base_state.at
        if not awake or any(not one.until or now + lasts_s <= one.until for one in awake):
            return ""
        last = max(one.until for one in awake)
        return (
            f"another user has reserved the GPU from {format_time(last)}, and the job might not "
            "have ended then; give it a time limit that fits: postroom edit JOB -t TIME"
        )

    def _why_limited(self, reader: RunReader, scheduling: SchedulingOptions) -> str:
        """Whether as many jobs of its group, or of its project, run as may."""
        running = [job for job in self._base_state.running if job.run in self._base_state.readers]
        group = [
            job
            for job in running
            if job.run == reader.run and reader.scheduling(job.number).group == scheduling.group
        ]
        if scheduling.group_limit and len(group) >= scheduling.group_limit:
            return (
                f"{len(group)} of these jobs run, and at most {scheduling.group_limit} may at once"
            )
        most = self._base_state.orders.limits.get(reader.project)
        readers = self._base_state.readers
        count = sum(readers[job.run].project == reader.project for job in running)
        if most is not None and reader.info.queue and count >= most:
            return (
                f"{count} jobs of project {reader.project} run, and at most {most} may at once; "
                f"change it with: postroom limit {reader.project} N"
            )
        return ""

    def _fitting(self, reader: RunReader, number: int) -> list[AgentStatus]:
        """The agents that could run a job."""
        scheduling = reader.scheduling(number)
        return [
            agent
            for agent in self._base_state.agents
            if agent.state not in _GONE
            and agent.agent not in self._base_state.orders.drained
            and scheduling.where in ("", agent.where)
            and (scheduling.gpus <= 1 or scheduling.gpus <= gpu_count(agent))
            and (scheduling.shares or not agent.shares)
            and scheduling.memory_mib <= agent.memory_mib
            and will_do(scheduling.require, agent.gpu_name, agent.memory_mib)
        ]

    def _place(self, job: JobId) -> int:
        """How many jobs are ahead of a job; the queue is walked only as far as needed."""
        while job not in self._places:
            reader, number = next(self._order, (None, 0))
            if reader is None:
                break
            self._places[reader.job_id(number)] = len(self._places)
        return self._places.get(job, len(self._places))

    # When

    def when(self, reader: RunReader, number: int, state: str) -> tuple[int | None, float | None]:
        """Its position in the queue, from 1, and its estimated start; None: unknown."""
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
        """How long an agent's running job should still take."""
        mine = [job for job, at in self._base_state.running.items() if at.agent == agent.agent]
        if not mine:
            return 0.0
        mean_s = self._mean(self._base_state.readers[mine[0].run].project)
        if mean_s is None or agent.job_since is None:
            return mean_s
        return max(0.0, mean_s - (self._base_state.at - agent.job_since))

    def _mean(self, project: str) -> float | None:
        """The mean duration of a project's last jobs; None: none has ended."""
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
