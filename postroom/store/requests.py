"""Requests to the Master, one file each, and the orders that are in force because of them.

    control/<time>-<token>.json   a request, by any process that may write to the base
    control/orders.json           what is in force of all requests so far
    control/stop.<run>.<job>      the acting Master's order to end that running job

A request says how things shall be (this job is held, that priority is 5), never how they change: to
apply it twice is the same as once. The acting Master applies requests in the order of
their names, writes the orders, does what follows from them, and only then removes the request:
if it is killed at any point, the next Master does the rest. Orders about a job are dropped when the
job has ended.
"""

from __future__ import annotations

import binascii
import contextlib
import enum
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import BadFileError, PostroomError
from .base import Base
from .files import Files, new_token, replace_file
from .job_ids import MOST_JOBS, JobId, JobIds
from .mailbox import is_plain_name
from .records import JsonRecord
from .scheduling import check_priority

REQUEST_LIMIT = 64 << 20
ORDERS_LIMIT = 1 << 30
STOP_LIMIT = 4096
MOST_TEXT = 1000
NO_JOBS = JobIds()
# What agents do with their running job when it is another user's turn; None: as before.
YIELDS = {"yield": True, "keep": False, None: None}
GPUS = re.compile(r"[A-Za-z0-9][A-Za-z0-9,;/_-]{0,9999}")


class RequestVerb(enum.Enum):
    """What a request can ask for."""

    KILL = "kill"  # jobs
    HOLD = "hold"  # jobs
    RELEASE = "release"  # jobs
    PRIORITY = "priority"  # jobs or runs; value: the number
    EDIT = "edit"  # jobs that wait; value: for each of them a parcel with what it is to be, base64
    MOVE = "move"  # jobs; value: "first", "last" or the job to put them before
    PAUSE = "pause"  # runs, projects, or everything; preempt: stop running jobs, which go on later
    LIMIT = "limit"  # projects; value: how many of their jobs may run at once; 0: any number
    FAILURES = "failures"  # projects, or everything; value: how many failures in a row pause it
    RESUME = "resume"  # runs, projects, or everything
    DRAIN = "drain"  # agents: no more letters; preempt: stop what they run
    FILL = "fill"  # agents: letters again
    ADD = "add"  # agents; value: their GPUs, as in "0,0,1": they are wanted from now on
    REMOVE = "remove"  # agents: they are not wanted any more; preempt: stop what they run
    UP = "up"  # everything: the agents that are wanted are to live; value: see `YIELDS`
    DOWN = "down"  # everything: none of them is to live for now; preempt: stop what they run


@dataclass(frozen=True)
class Request(JsonRecord):
    """What one user asks of the acting Master, as a file in control/."""

    CALLED: ClassVar[str] = "a request"

    verb: RequestVerb
    jobs: JobIds = NO_JOBS
    runs: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    everything: bool = False  # the whole queue, or every agent
    value: int | str | None = None
    preempt: bool = False
    by: str = ""  # who asks, for the history
    at: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "jobs", JobIds(self.jobs))

    def check(self) -> None:
        """Refuse what could not be carried out."""
        if len(self.jobs) > MOST_JOBS:
            raise PostroomError(f"{len(self.jobs)} jobs are too many at once: at most {MOST_JOBS}")
        named = {
            "jobs": bool(self.jobs),
            "runs": bool(self.runs),
            "projects": bool(self.projects),
            "agents": bool(self.agents),
            "everything": self.everything,
        }
        allowed = _TARGETS[self.verb]
        wrong = [name for name, present in named.items() if present and name not in allowed]
        if wrong or not (any(named.values()) or self.verb is RequestVerb.ADD):
            raise PostroomError(f"{self.verb.value} applies to {' or '.join(allowed) or 'nothing'}")
        if not all(map(is_plain_name, (*self.runs, *self.agents))):
            raise PostroomError("the name of a run or an agent has only letters, digits, - and _")
        if not all(0 < len(project) <= MOST_TEXT for project in self.projects):
            raise PostroomError(f"the name of a project has 1 to {MOST_TEXT} characters")
        if self.verb is RequestVerb.PRIORITY:
            if type(self.value) is not int:
                raise PostroomError("a priority is a whole number")
            check_priority(self.value)
        counts = self.verb in (RequestVerb.LIMIT, RequestVerb.FAILURES)
        if counts and (type(self.value) is not int or self.value < 0):
            raise PostroomError("a limit is a whole number; 0 removes it")
        if self.verb is RequestVerb.ADD and not GPUS.fullmatch(str(self.value)):
            raise PostroomError("write GPUs as 0,0,1 or all or cpu")
        if self.verb is RequestVerb.UP and self.value not in YIELDS:
            raise PostroomError("agents yield, or keep their GPU until the end of the job")
        if self.verb is RequestVerb.EDIT:
            self.parcels()
        if self.verb is RequestVerb.MOVE and self.value not in ("first", "last"):
            JobId.parse(str(self.value)[:MOST_TEXT])

    def parcels(self) -> dict[JobId, bytes]:
        """What each job is to be, of a request to edit them."""
        words = str(self.value).split()
        if len(words) != len(self.jobs):
            raise PostroomError(f"it edits {len(self.jobs)} jobs, and has {len(words)} parcels")
        parcels = [binascii.a2b_base64(word, strict_mode=True) for word in words]
        return dict(zip(self.jobs, parcels, strict=True))


_TARGETS = {
    RequestVerb.KILL: ("jobs",),
    RequestVerb.HOLD: ("jobs",),
    RequestVerb.RELEASE: ("jobs",),
    RequestVerb.PRIORITY: ("jobs", "runs"),
    RequestVerb.EDIT: ("jobs",),
    RequestVerb.MOVE: ("jobs",),
    RequestVerb.PAUSE: ("runs", "projects", "everything"),
    RequestVerb.LIMIT: ("projects",),
    RequestVerb.FAILURES: ("projects", "everything"),
    RequestVerb.RESUME: ("runs", "projects", "everything"),
    RequestVerb.DRAIN: ("agents", "everything"),
    RequestVerb.FILL: ("agents", "everything"),
    RequestVerb.ADD: (),
    RequestVerb.REMOVE: ("agents", "everything"),
    RequestVerb.UP: ("everything",),
    RequestVerb.DOWN: ("everything",),
}


def ask(files: Files, base: Base, request: Request) -> str:
    """Write a request for the acting Master; return its name. It survives a power loss."""
    request.check()
    content = request.encode()
    if len(content) > REQUEST_LIMIT:
        raise PostroomError("this names too many single jobs at once: name ranges, or fewer jobs")
    files.make_folder(base.control)
    temporary = base.temporary()
    files.write_new(temporary, [content], sync=True)
    name = _new_name(pending(files, base))
    files.publish(temporary, f"{base.control}/{name}")
    files.sync_folder(base.control)
    return name


def _new_name(waiting: Sequence[str]) -> str:
    """A name behind those of all requests that wait, also where the clock was set back."""
    newest = int(waiting[-1][:20]) if waiting else 0
    return f"{max(time.time_ns(), newest + 1):020d}-{new_token(6)}.json"


def is_settled(files: Files, base: Base, name: str) -> bool:
    """Whether the acting Master has carried out a request; PostroomError if it put it aside."""
    path = f"{base.control}/{name}"
    if files.exists(path):
        return False
    aside = base.put_aside(path)
    if files.exists(aside):
        reason = f"see {aside}"
        with contextlib.suppress(FileNotFoundError, BadFileError):  # it is written a moment later
            reason = files.read(f"{aside}.reason", STOP_LIMIT).decode(errors="replace").strip()
        raise PostroomError(f"the scheduler refused the request, and nothing was done: {reason}")
    return True


def pending(files: Files, base: Base) -> list[str]:
    """The names of the requests that wait for the acting Master, in order."""
    return sorted(
        name
        for name in files.names(base.control)
        if name[:20].isdigit() and name[20:21] == "-" and name.endswith(".json")
    )


def read_request(files: Files, base: Base, name: str) -> Request:
    """Read one request; a bad one raises BadFileError."""
    path = f"{base.control}/{name}"
    return Request.decode(path, files.read(path, REQUEST_LIMIT))


@dataclass
class Orders(JsonRecord):
    """What is in force of all requests so far."""

    CALLED: ClassVar[str] = "the Master's orders"

    paused_all: bool = False
    paused_projects: set[str] = field(default_factory=set)
    paused_runs: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    run_priorities: dict[str, int] = field(default_factory=dict)
    priorities: dict[JobId, int] = field(default_factory=dict)
    held: dict[JobId, bool] = field(
        default_factory=dict
    )  # False: released, whatever its scheduling options say
    positions: dict[JobId, float] = field(default_factory=dict)  # instead of its number
    killed: dict[JobId, str] = field(default_factory=dict)  # by whom
    limits: dict[str, int] = field(default_factory=dict)  # how many jobs of a project run at once
    paused_why: dict[str, str] = field(default_factory=dict)  # of projects that paused themselves
    # After how many failures in a row a project pauses itself; "": the whole queue.
    failure_limits: dict[str, int] = field(default_factory=dict)

    def is_paused(self, run: str, project: str) -> bool:
        """Whether nothing more of a run is to be begun."""
        return self.paused_all or run in self.paused_runs or project in self.paused_projects

    def forget(self, job: JobId) -> bool:
        """Drop the orders about a job that has ended; True when there were some."""
        about = (self.priorities, self.held, self.positions, self.killed)
        return sum(one.pop(job, None) is not None for one in about) > 0

    def forget_run(self, run: str) -> bool:
        """Drop the orders about a run that was removed; True when there were some."""
        gone = {
            job
            for about in (self.priorities, self.held, self.positions, self.killed)
            for job in about
            if job.run == run
        }
        named = run in self.paused_runs or run in self.run_priorities
        self.paused_runs.discard(run)
        self.run_priorities.pop(run, None)
        for job in gone:
            self.forget(job)
        return named or bool(gone)


def read_orders(files: Files, base: Base) -> Orders:
    """The orders that are in force; none when nothing was ever requested."""
    try:
        return Orders.decode(base.orders, files.read(base.orders, ORDERS_LIMIT))
    except FileNotFoundError:
        return Orders()


def no_orders(error: BadFileError) -> str:
    """What the orders that cannot be read mean, and how to decide."""
    return (
        f"no job starts, because nobody knows what is held, paused, drained or killed: {error}; "
        f"put a good copy in its place, or forget all of that: rm '{error.path}'"
    )


def write_orders(files: Files, base: Base, orders: Orders) -> None:
    """Write the orders, so that they survive a power loss; only the acting Master does this."""
    replace_file(files, base.temporary(), base.orders, orders.encode(), sync=True)


@dataclass(frozen=True)
class StopOrder(JsonRecord):
    """Tells the session that runs a job to end it."""

    CALLED: ClassVar[str] = "a stop order"

    attempt: int  # only this attempt: an order that comes late must not stop the next one
    final: bool  # True: it is cancelled; False: it is to go on later, from its checkpoint
    reason: str


def order_stop(files: Files, base: Base, job: JobId, stop: StopOrder) -> None:
    """Tell the session that runs a job to end it; replaces an earlier order."""
    replace_file(files, base.temporary(), base.stop_order(job.run, job.number), stop.encode())


def read_stop(files: Files, base: Base, run: str, number: int, attempt: int) -> StopOrder | None:
    """Whether this attempt of a job is to be ended."""
    path = base.stop_order(run, number)
    with contextlib.suppress(FileNotFoundError, BadFileError):
        stop = StopOrder.decode(path, files.read(path, STOP_LIMIT))
        if stop.attempt == attempt:
            return stop
    return None


def list_stops(files: Files, base: Base) -> list[JobId]:
    """The jobs that have a stop order."""
    found = []
    for name in files.names(base.control):
        if name.startswith("stop."):
            with contextlib.suppress(ValueError):
                found.append(JobId.parse(name.removeprefix("stop.").replace(".", "/", 1)))
    return found
