"""What can be done to the queue: the same few functions behind the command line and the page.

Nothing is done here but asking: a request is written for the acting Master (`control`), or jobs are
handed in again. Only `clean` acts itself, on what is over.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ..commands.spec import COMMAND, CommandSpec
from ..errors import BadFileError, PostroomError
from ..store.job_ids import JobId, UnknownJobError, find_run
from ..store.requests import Request, RequestVerb, ask, is_settled
from ..store.runs import user_name
from ..store.scheduling import SchedulingOptions
from .base_state import BaseState
from .cleaning import find_over, remove_run, sweep
from .queue_view import QueueView
from .rows import FAILED
from .run_reader import RunReader, plain
from .submission import rerun as hand_in_again

LOOK_S = 0.02


@dataclass(frozen=True)
class Answer:
    """What became of a wish."""

    request: str | None  # the file that the acting Master has to read; None: it is done already
    text: str  # for people
    jobs: list[JobId] = field(default_factory=list)  # that were queued
    runs: list[str] = field(default_factory=list)  # that were removed


@dataclass(frozen=True)
class Scope:
    """What of the queue is meant: all of it, some projects, or some runs."""

    projects: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return not (self.projects or self.runs)

    def __str__(self) -> str:
        if self.everything:
            return "the queue"
        return " and ".join(
            [f"project {name}" for name in self.projects] + [f"run {run}" for run in self.runs]
        )


def kill(view: QueueView, jobs: Sequence[JobId]) -> Answer:
    """End jobs, running or waiting, for good."""
    base_state = view.look()
    alive = [
        job
        for job in _known(base_state, jobs)
        if _reader(base_state, job).outcome(job.number) is None
    ]
    if not alive:
        return Answer(None, f"{_count(jobs)} ended before: nothing to kill")
    over = len(jobs) - len(alive)
    also = f" ({over} ended before)" if over else ""
    return _ask(
        view, base_state, RequestVerb.KILL, f"{_count(alive)} will be killed{also}", jobs=alive
    )


def hold(view: QueueView, jobs: Sequence[JobId]) -> Answer:
    """Keep jobs from being begun until they are released."""
    base_state = view.look()
    waiting = _waiting(base_state, jobs, "hold")
    return _ask(
        view,
        base_state,
        RequestVerb.HOLD,
        f"{_count(waiting)} will not be begun until released",
        jobs=waiting,
    )


def release(view: QueueView, jobs: Sequence[JobId]) -> Answer:
    """Let held jobs run."""
    base_state = view.look()
    waiting = _waiting(base_state, jobs, "release")
    return _ask(view, base_state, RequestVerb.RELEASE, f"{_count(waiting)} released", jobs=waiting)


def set_priority(view: QueueView, jobs: Sequence[JobId], value: int) -> Answer:
    """Give jobs a priority: higher goes first."""
    base_state = view.look()
    waiting = _waiting(base_state, jobs, "give a priority to")
    text = f"{_count(waiting)} now of priority {value}"
    return _ask(view, base_state, RequestVerb.PRIORITY, text, jobs=waiting, value=value)


def move(view: QueueView, jobs: Sequence[JobId], where: str | JobId) -> Answer:
    """Let jobs stand elsewhere among those of their run: "first", "last", or before another."""
    base_state = view.look()
    waiting = _waiting(base_state, jobs, "move")
    if isinstance(where, JobId):
        _known(base_state, [where])
        text, value = f"before {where.short}", str(where)
    else:
        text = value = where
    text = f"{_count(waiting)} moved {text}"
    return _ask(view, base_state, RequestVerb.MOVE, text, jobs=waiting, value=value)


def pause(view: QueueView, scope: Scope, preempt: bool = False) -> Answer:
    """Begin no more jobs; with `preempt`, stop those that run, so that they go on later."""
    base_state = view.look()
    scope = _check(view, base_state, scope)
    text = f"{scope} is paused: what runs goes on to its end"
    if preempt:
        text = f"{scope} is paused: what runs is stopped, and goes on later from its checkpoint"
    return _ask_scope(view, base_state, RequestVerb.PAUSE, text, scope, preempt=preempt)


def resume(view: QueueView, scope: Scope) -> Answer:
    """Begin jobs again."""
    base_state = view.look()
    scope = _check(view, base_state, scope)
    return _ask_scope(view, base_state, RequestVerb.RESUME, f"{scope} goes on", scope)


def drain(view: QueueView, agents: Sequence[str], preempt: bool = False) -> Answer:
    """Send agents (all, when none is named) no more jobs."""
    return _ask_agents(view, RequestVerb.DRAIN, agents, "no more jobs for", preempt=preempt)


def fill(view: QueueView, agents: Sequence[str]) -> Answer:
    """Send agents (all, when none is named) jobs again."""
    return _ask_agents(view, RequestVerb.FILL, agents, "jobs again for")


def add_agents(view: QueueView, gpus: str) -> Answer:
    """Have the acting Master start a session on each of some cards that has none."""
    request = Request(RequestVerb.ADD, value=gpus, by=user_name(), at=time.time())
    text = f"sessions are started where {gpus} has none; agents.txt in the base's log says how"
    return Answer(ask(view.files, view.base, request), text + _standing(view, view.look()))


def remove_agents(view: QueueView, agents: Sequence[str], preempt: bool = False) -> Answer:
    """Have the acting Master end agents, after the jobs in hand; with `preempt`, at once."""
    if not agents:
        raise PostroomError("no agent is named")
    return _ask_agents(view, RequestVerb.REMOVE, agents, "told to go:", preempt=preempt)


def rerun(view: QueueView, jobs: Sequence[JobId]) -> Answer:
    """Queue commands again; what they did before stays where it is."""
    base_state = view.look()
    known = _known(base_state, jobs)
    specs = {job: _spec_of(_reader(base_state, job), job.number) for job in known}
    new: dict[JobId, JobId] = {}
    # One that waited for another of them now waits for that one's successor: the first ones first.
    left = list(known)
    while left:
        ready = [job for job in left if not set(specs[job].scheduling.after).intersection(left)]
        batch = []
        for job in ready or left:
            scheduling = specs[job].scheduling
            after = tuple(new[one] for one in scheduling.after if one in new)
            again = replace(specs[job], scheduling=replace(scheduling, after=after, after_any=()))
            batch.append((job, again, _reader(base_state, job).project))
        order = _as_handed_in(batch)
        for job, number in zip(order, hand_in_again(view.files, view.base, batch), strict=True):
            new[job] = number
        left = [job for job in left if job not in new]
    numbers = [new[job] for job in known]
    text = f"{_count(numbers)} queued again"
    return Answer(None, text + _standing(view, base_state), jobs=numbers)


def failed_jobs(view: QueueView, project: str = "", run: str = "") -> list[JobId]:
    """The jobs that failed, and those cancelled since they waited for one; each not rerun yet."""
    base_state = view.look()
    readers = [
        reader
        for reader in base_state.readers.values()
        if reader.info.queue and project in ("", reader.project) and reader.run.endswith(run)
    ]
    chosen = {spot[0].job_id(spot[1]) for spot in base_state.spots(FAILED, readers)}
    cancelled = {spot[0].job_id(spot[1]) for spot in base_state.spots(("cancelled",), readers)}
    grew = bool(chosen)
    while grew:
        in_vain = {
            job for job in cancelled if chosen.intersection(_scheduling_of(base_state, job).after)
        }
        cancelled -= in_vain
        chosen |= in_vain
        grew = bool(in_vain)
    if chosen:
        chosen -= _rerun_already(base_state, since=min(job.run for job in chosen))
    return sorted(chosen)


def clean(
    view: QueueView, *, older_than_s: float, project: str = "", dry_run: bool = False
) -> Answer:
    """Remove the runs whose jobs have all ended long ago, with all that they left."""
    base_state = view.look()
    going = find_over(base_state, now=time.time(), older_than_s=older_than_s, project=project)
    if not dry_run:
        sweep(view.files, view.base, now=time.time())
        going = [
            one for one in going if remove_run(view.files, view.base, base_state.readers[one.run])
        ]
    jobs = sum(one.jobs for one in going)
    word = "would be removed" if dry_run else "removed"
    runs = f"{len(going)} run{'' if len(going) == 1 else 's'}"
    return Answer(None, f"{runs} with {jobs} jobs {word}", runs=[one.run for one in going])


def wait_settled(view: QueueView, answer: Answer, timeout_s: float = 10.0) -> bool:
    """Wait until the acting Master has done what was asked; False: it has not, or none acts."""
    give_up_at = time.monotonic() + timeout_s
    while answer.request is not None and not is_settled(view.files, view.base, answer.request):
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(LOOK_S)
    return True


# Asking


def _ask(
    view: QueueView,
    base_state: BaseState,
    verb: RequestVerb,
    text: str,
    *,
    jobs: Sequence[JobId] = (),
    value: int | str | None = None,
) -> Answer:
    request = Request(verb, jobs=tuple(jobs), value=value, by=user_name(), at=time.time())
    return Answer(ask(view.files, view.base, request), text + _standing(view, base_state))


def _ask_scope(
    view: QueueView,
    base_state: BaseState,
    verb: RequestVerb,
    text: str,
    scope: Scope,
    *,
    preempt: bool = False,
) -> Answer:
    request = Request(
        verb,
        projects=scope.projects,
        runs=scope.runs,
        everything=scope.everything,
        preempt=preempt,
        by=user_name(),
        at=time.time(),
    )
    return Answer(ask(view.files, view.base, request), text + _standing(view, base_state))


def _ask_agents(
    view: QueueView, verb: RequestVerb, agents: Sequence[str], text: str, *, preempt: bool = False
) -> Answer:
    base_state = view.look()
    known = [agent.agent for agent in base_state.agents]
    unknown = [agent for agent in agents if agent not in {*known, *base_state.orders.drained}]
    if unknown:
        there = ", ".join(known) or "none"
        raise PostroomError(f"there is no agent {unknown[0]} at {view.base.root}; there: {there}")
    request = Request(
        verb,
        agents=tuple(agents),
        everything=not agents,
        preempt=preempt,
        by=user_name(),
        at=time.time(),
    )
    whom = f"agent {', '.join(agents)}" if agents else "all agents"
    words = f"{text} {whom}" + ("; what runs there goes on elsewhere" if preempt else "")
    return Answer(ask(view.files, view.base, request), words + _standing(view, base_state))


def _standing(view: QueueView, base_state: BaseState) -> str:
    if base_state.master_pid is not None:
        return ""
    return (
        f"; no Master acts, so it waits until one stands: postroom master {view.base.root} --detach"
    )


def _check(view: QueueView, base_state: BaseState, scope: Scope) -> Scope:
    """A scope in whole names, or an error that says which are there."""
    known = {reader.project for reader in base_state.readers.values() if reader.info.queue}
    for name in scope.projects:
        if name not in known | base_state.orders.paused_projects:
            there = ", ".join(sorted(known)) or "none yet"
            raise PostroomError(f"there is no project {name!r}; there: {there}")
    runs = tuple(find_run(view.files, view.base, run) for run in scope.runs)
    return replace(scope, runs=runs)


# Jobs


def _reader(base_state: BaseState, job: JobId) -> RunReader:
    return base_state.readers[job.run]


def _known(base_state: BaseState, jobs: Sequence[JobId]) -> list[JobId]:
    """The jobs, each once, or an error that names one that is not there."""
    for job in jobs:
        reader = base_state.readers.get(job.run)
        if reader is None or not 0 <= job.number < reader.asked:
            raise UnknownJobError(f"there is no job {job.short}; see `postroom jobs`")
    if not jobs:
        raise PostroomError("no job is named")
    return list(dict.fromkeys(jobs))


def _waiting(base_state: BaseState, jobs: Sequence[JobId], verb: str) -> list[JobId]:
    """Those of the jobs that have yet to begin; an error when none is left."""
    known = _known(base_state, jobs)
    unended = [job for job in known if _reader(base_state, job).outcome(job.number) is None]
    left = [job for job in unended if job not in base_state.running]
    if not left:
        state = _reader(base_state, known[0]).outcome(known[0].number) or "running"
        which = f"job {known[0].short} is {state}" if len(known) == 1 else "none of them waits"
        raise PostroomError(f"there is nothing to {verb}: {which}")
    return left


def _count(jobs: Collection[JobId]) -> str:
    return f"job {next(iter(jobs)).short}" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _spec_of(reader: RunReader, number: int) -> CommandSpec:
    """What a job was asked, so that it can be asked again."""
    job = reader.job_id(number)
    try:
        sheet = reader.read_jobs(number)
        if sheet.task == COMMAND and reader.info.queue:
            return CommandSpec.of_job(sheet, number)
    except (BadFileError, OSError, TypeError) as error:
        raise PostroomError(f"job {job.short} cannot be read: {error}") from None
    raise PostroomError(
        f"job {job.short} was not submitted to the queue ({sheet.task}): start the program "
        "again that handed it in"
    )


def _as_handed_in(batch: Sequence[tuple[JobId, CommandSpec, str]]) -> list[JobId]:
    """The order in which a batch comes back: project by project."""
    by_project: dict[str, list[JobId]] = {}
    for job, _, project in batch:
        by_project.setdefault(project, []).append(job)
    return [job for jobs in by_project.values() for job in jobs]


def _scheduling_of(base_state: BaseState, job: JobId) -> SchedulingOptions:
    reader = _reader(base_state, job)
    with contextlib.suppress(BadFileError, OSError, ValueError):
        return SchedulingOptions.decode(
            plain(reader.read_jobs(job.number), job.number).get("scheduling", {})
        )
    return SchedulingOptions()


def _rerun_already(base_state: BaseState, *, since: str) -> set[JobId]:
    """The jobs that later ones are reruns of."""
    found: set[JobId] = set()
    for reader in base_state.readers.values():
        if not reader.info.queue or reader.run < since:
            continue
        for number in range(reader.asked):
            with contextlib.suppress(BadFileError, OSError, ValueError):
                again = reader.read_jobs(number).text(number, "rerun_of")
                if again:
                    found.add(JobId.parse(again))
    return found
