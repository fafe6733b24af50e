"""What listings show: plain rows, which `dataclasses.asdict` turns into JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# The states of a job, in the order in which lists show them.
STATES = (
    "running",
    "stopping",
    "queued",
    "waiting",
    "paused",
    "held",
    "abandoned",
    "failed",
    "timed out",
    "lost",
    "cancelled",
    "ok",
)
RUNNING = ("running", "stopping")
# "abandoned": the program that its run belongs to is gone, and nobody sends its jobs.
PENDING = ("queued", "waiting", "paused", "held", "abandoned")
FAILED = ("failed", "timed out", "lost")
ENDED = (*FAILED, "cancelled", "ok")


def summary_of(command: str) -> str:
    """A command on one line; of a script, the first line that is no comment."""
    lines = [line.strip() for line in command.splitlines()]
    telling = [line for line in lines if line and not line.startswith("#")] or lines
    return telling[0] + (" …" if len(telling) > 1 else "") if telling else ""


@dataclass(frozen=True)
class JobView:
    """One job, in one line."""

    id: str  # run/number
    short: str  # what people type: 0b859f/17
    run: str
    number: int
    name: str
    project: str
    user: str
    command: str  # the shell line, or the task
    state: str
    priority: int = 0
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    seconds: float | None = None
    agent: str = ""
    gpu: str = ""
    attempt: int = 0  # 0: it was never started
    exit: int | None = None
    error: str = ""
    reason: str = ""  # why it waits, in one sentence
    rerun_of: str = ""

    @property
    def summary(self) -> str:
        """Its command on one line."""
        return summary_of(self.command)


@dataclass(frozen=True)
class JobLink:
    """A job that another one waits for."""

    id: str
    short: str
    name: str
    state: str
    any_end: bool  # True: however it ends; False: it must end well


@dataclass(frozen=True)
class AttemptView:
    """One attempt of a job."""

    number: int
    outcome: str  # "ok", "failed", "lost", "stopped", "running", ...
    reason: str = ""
    agent: str = ""
    gpu: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    out_path: str = ""
    err_path: str = ""  # "": in the same file as stdout


@dataclass(frozen=True)
class JobDetail:
    """All details of one job."""

    job: JobView
    cwd: str = ""
    env: list[str] = field(default_factory=list)  # names that were set for it alone
    arguments: dict[str, Any] = field(default_factory=dict)
    folder: str = ""
    out_path: str = ""
    err_path: str = ""
    timeout_s: float | None = None
    retries: int = 0
    scheduling: dict[str, Any] = field(default_factory=dict)
    attempts: list[AttemptView] = field(default_factory=list)
    pid: int | None = None
    starts_at: float | None = None  # an estimate; None: unknown
    position: int | None = None  # in the queue, counted from 1
    after: list[JobLink] = field(default_factory=list)
    traceback: str = ""
    timeline: str = ""  # path of the record of its GPU memory, if there is one


@dataclass(frozen=True)
class JobPage:
    """A page of a list of jobs."""

    jobs: list[JobView]
    first: int
    total: int | None  # None: not counted
    more: bool
    counts: dict[str, int] = field(default_factory=dict)  # by state, of whatever state is asked for


@dataclass(frozen=True)
class EqualFailures:
    """Jobs of one project that failed lately, with equal errors."""

    project: str
    state: str
    error: str  # of the newest
    jobs: list[JobView]  # newest first


@dataclass(frozen=True)
class CardHolder:
    """Somebody who has a GPU, or a part of it."""

    user: str
    name: str  # of the lease; "": it has none
    pid: int
    agent: str  # of this base; "": it is somebody else
    since: float | None  # None: without a lease
    memory_mib: int | None  # None: the whole GPU


@dataclass(frozen=True)
class CardView:
    """One GPU, and who uses it."""

    uuid: str
    index: int
    name: str
    memory_total_mib: int
    memory_used_mib: int | None
    utilization: int | None
    temperature: int | None
    power: float | None
    problem: str
    agents: list[str]
    holder: str  # who else uses it: not an agent of this base
    holders: list[CardHolder] = field(default_factory=list)  # everybody who has it, of any user


@dataclass(frozen=True)
class AgentView:
    """One agent and its job."""

    agent: str
    state: str
    gpu: str
    gpu_name: str
    pid: int
    since: float
    job: str | None  # its short id
    drained: bool
    done: int
    note: str = ""  # what it waits for without its GPU; its last words, where it is missing


@dataclass(frozen=True)
class ProjectView:
    """A project, with its jobs counted by state."""

    name: str
    counts: dict[str, int]
    paused: bool
    limit: int = 0  # how many of its jobs run at once; 0: as many as there are agents
    active_at: float = 0.0  # when a job of it was submitted or ended last
    paused_why: str = ""  # why it paused itself


@dataclass(frozen=True)
class Overview:
    """A base at one moment, nearly: its folders are read one after another."""

    base: str
    at: float
    master_pid: int | None
    paused: bool
    pending_requests: int
    cards: list[CardView]
    agents: list[AgentView]
    counts: dict[str, int]
    running: list[JobView]
    queued: list[JobView]  # the first few
    finished: list[JobView]  # the newest few that did not fail
    failed: list[JobView]  # the newest few that did
    done_today: int
    failed_today: int
    rate_per_hour: float
    projects: list[ProjectView]
    troubles: list[str]  # files that cannot be read, and what to do
    failures: list[EqualFailures] = field(default_factory=list)  # newest first
    disk: str = ""  # what takes space, and what will go, in one line
    disk_bytes: dict[str, int] = field(default_factory=dict)  # by kind, when it was last measured
    paused_why: str = ""  # why the whole queue paused itself


@dataclass(frozen=True)
class Interval:
    """A time during which a job ran on a GPU."""

    job: str
    short: str
    name: str
    project: str
    agent: str
    gpu: str
    attempt: int
    started_at: float
    ended_at: float | None  # None: still running
    outcome: str
