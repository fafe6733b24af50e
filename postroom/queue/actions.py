"""What people can do to the queue: one table of verbs for the command line, the page and the API.

An action writes a request for the scheduler (`store.requests`), or queues jobs again. Only `clean`
changes files itself: it removes finished runs.
"""

from __future__ import annotations

import binascii
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..commands.spec import COMMAND, CommandSpec
from ..dispatch.job_writer import pack_batch
from ..dispatch.send_order import is_held
from ..errors import BadFileError, PostroomError
from ..gpus.cards.gpu_list import parse_gpus
from ..master import Master
from ..store.base import up_command
from ..store.job_ids import JobId, find_run
from ..store.removal import remove_run, remove_unused_data, sweep
from ..store.requests import Request, RequestVerb, ask, is_settled
from ..store.runs import user_name
from ..text.durations import format_duration
from .base_state import BaseState
from .cleaning import QUIET_S, find_over, runs_in_use
from .job_rows import read_sheet, spec_of
from .queue_view import QueueView
from .rows import FAILED
from .run_reader import RunReader, command_fields, scheduling_in
from .submission import check
from .submission import rerun as submit_again

POLL_S = 0.02
MOST_LIMIT = 1_000_000
SECOND = len("20261116-030703")  # of a run's id: two runs may be made in the same second


@dataclass(frozen=True)
class ActionResult:
    """What came of an action."""

    request: str | None  # the file that the scheduler has yet to carry out; None: it is done
    text: str  # for people
    jobs: list[JobId] = field(default_factory=list)  # that were queued
    runs: list[str] = field(default_factory=list)  # that were removed


@dataclass(frozen=True)
class QueueScope:
    """A part of the queue: some projects, some runs, or (when none is named) all of it."""

    projects: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        """Whether the whole queue is meant."""
        return not (self.projects or self.runs)

    def __str__(self) -> str:
        if self.everything:
            return "the queue"
        return " and ".join(
            [f"project {name}" for name in self.projects] + [f"run {run}" for run in self.runs]
        )


@dataclass(frozen=True)
class ActionInput:
    """What a verb is applied to; each reads the fields that it needs."""

    jobs: Sequence[JobId] = ()
    scope: QueueScope = QueueScope()
    agents: Sequence[str] = ()
    value: int | str | None = None  # a priority, a limit, a place in the queue, or GPUs
    preempt: bool = False


@dataclass(frozen=True)
class Action:
    """One verb."""

    target: str  # what it applies to: "jobs", "queue", "agents" or "gpus"
    label: str  # on a button
    act: Callable[[QueueView, ActionInput], ActionResult]


def find_action(target: str, verb: str) -> Action:
    """The action of a verb, or an error that names the verbs for such a target."""
    action = ACTIONS.get(verb)
    if action is None or action.target != target:
        verbs = ", ".join(verbs_for(target))
        raise PostroomError(f"{verb[:20]!r} is not a verb for {target}: use one of {verbs}")
    return action


def verbs_for(target: str) -> list[str]:
    """The verbs that apply to jobs, the queue, agents or GPUs."""
    return [verb for verb, action in ACTIONS.items() if action.target == target]


# Jobs


def kill(view: QueueView, jobs: Sequence[JobId]) -> ActionResult:
    """End jobs for good, running or waiting."""
    base_state = view.read_state()
    known = _known(base_state, jobs)
    alive = _without_result(base_state, known)
    if not alive:
        return ActionResult(None, f"{_count(known)} already ended: nothing to kill")
    ended = len(known) - len(alive)
    also = f" ({ended} already ended)" if ended else ""
    result = _ask(view, base_state, RequestVerb.KILL, f"killing {_count(alive)}{also}", jobs=alive)
    abandoned = any(base_state.is_abandoned(run) for run in {job.run for job in alive})
    if base_state.master_pid is not None or not abandoned:
        return result
    # Nobody will start a scheduler for a program that is gone: be one for a moment.
    with Master(view.base.root) as master:
        master.carry_out_requests()
    left = len(_without_result(view.read_state(), alive))
    stopping = f"; {left} of them ran, and are being ended" if left else ""
    return replace(result, text=f"killed {_count(alive)}{also}{stopping}")


def hold(view: QueueView, jobs: Sequence[JobId]) -> ActionResult:
    """Do not start jobs until they are released."""
    base_state = view.read_state()
    waiting = _waiting(base_state, jobs, "hold")
    text = f"{_count(waiting)} held until released"
    return _ask(view, base_state, RequestVerb.HOLD, text, jobs=waiting)


def release(view: QueueView, jobs: Sequence[JobId]) -> ActionResult:
    """Let held jobs start."""
    base_state = view.read_state()
    waiting = _waiting(base_state, jobs, "release")
    return _ask(view, base_state, RequestVerb.RELEASE, f"{_count(waiting)} released", jobs=waiting)


def set_priority(view: QueueView, jobs: Sequence[JobId], value: int) -> ActionResult:
    """Change the priority of waiting jobs: higher goes first."""
    base_state = view.read_state()
    waiting = _waiting(base_state, jobs, "change the priority of", own_place=True)
    text = f"priority of {_count(waiting)} set to {value}"
    return _ask(view, base_state, RequestVerb.PRIORITY, text, jobs=waiting, value=value)


def move(view: QueueView, jobs: Sequence[JobId], where: str | JobId) -> ActionResult:
    """Move waiting jobs within their run: "first", "last", or before another job."""
    base_state = view.read_state()
    waiting = _waiting(base_state, jobs, "move", own_place=True)
    if isinstance(where, JobId):
        where = base_state.find(where)
        text, value = f"before {where.short}", str(where)
    else:
        text = value = where
    text = f"{_count(waiting)} moved {text}"
    return _ask(view, base_state, RequestVerb.MOVE, text, jobs=waiting, value=value)


def waiting_command(view: QueueView, job: JobId) -> tuple[JobId, CommandSpec, str]:
    """A job that can be edited, as it is now, and its project; an error if it does not wait."""
    base_state = view.read_state()
    (job,) = _waiting(base_state, [job], "edit", own_place=True)
    return job, _spec_now(base_state, job), _reader(base_state, job).project


def edit(
    view: QueueView, jobs: Sequence[JobId], change: Callable[[CommandSpec], CommandSpec]
) -> ActionResult:
    """Change waiting jobs; they keep their ids, their places, and the jobs that wait for them."""
    base_state = view.read_state()
    waiting = _waiting(base_state, jobs, "edit", own_place=True)
    parcels = []
    for job in waiting:
        reader = _reader(base_state, job)
        new = check(change(_spec_now(base_state, job))).to_job()
        new.arguments["submitted_at"] = reader.submitted_at(job.number)
        packed = pack_batch([(new, new.deploy())], called=job.number)
        parcels.append(binascii.b2a_base64(b"".join(packed), newline=False).decode())
    text = f"{_count(waiting)} changed"
    fields = {"jobs": waiting, "value": " ".join(parcels)}
    return replace(_ask(view, base_state, RequestVerb.EDIT, text, **fields), jobs=waiting)


def edit_project(
    view: QueueView,
    jobs: Sequence[JobId],
    project: str,
    change: Callable[[CommandSpec], CommandSpec],
) -> ActionResult:
    """Queue waiting jobs in another project, and take them out of theirs: they get new ids.

    A job belongs to its project's run. It is held first, so that it cannot begin twice, whatever is
    killed in between.
    """
    base_state = view.read_state()
    waiting = _waiting(base_state, jobs, "edit", own_place=True)
    if base_state.master_pid is None:
        raise PostroomError(f"no scheduler is running; start it: {up_command(view.base.root)}")
    awaited = {
        one
        for reader in base_state.readers.values()
        for scheduling in reader.with_options().values()
        for one in scheduling.after + scheduling.after_any
    }
    if needed := awaited.intersection(waiting):
        raise PostroomError(
            f"job {min(needed).short} cannot change its project: other jobs wait for it"
        )
    held = {
        job
        for job in waiting
        if is_held(base_state.orders, job, _reader(base_state, job).scheduling(job.number))
    }
    if not wait_settled(view, hold(view, waiting)):
        raise PostroomError("the scheduler does not answer: nothing was changed")
    base_state = view.read_state()
    waiting = _waiting(base_state, waiting, "edit", own_place=True)
    batch = []
    for job in waiting:
        new = check(change(_spec_now(base_state, job)))
        batch.append((job, new, project))
    numbers = submit_again(view.files, view.base, batch)
    if held:
        ask_held = [new for job, new in zip(waiting, numbers, strict=True) if job in held]
        hold(view, ask_held)
    answer = kill(view, waiting)
    names = ", ".join(job.short for job in numbers[:5]) + (", ..." if len(numbers) > 5 else "")
    return replace(answer, text=f"queued in project {project} as {names}", jobs=numbers)


def _spec_now(base_state: BaseState, job: JobId) -> CommandSpec:
    """A waiting job as it is, with the priority that it has been given since."""
    reader = _reader(base_state, job)
    spec = spec_of(reader, job.number)
    priority = base_state.priority(reader, job.number)
    return replace(spec, scheduling=replace(spec.scheduling, priority=priority))


def rerun(view: QueueView, jobs: Sequence[JobId]) -> ActionResult:
    """Queue jobs again as new ones; the old jobs and their results stay."""
    base_state = view.read_state()
    known = _known(base_state, jobs)
    tasks = [job for job in known if not _reader(base_state, job).info.queue]
    left = [job for job in known if job not in set(tasks)]
    specs = {job: spec_of(_reader(base_state, job), job.number) for job in left}
    new = _rerun_tasks(view, base_state, tasks)
    # A job that waited for another of them now waits for its new copy: those copies go first.
    while left:
        ready = [job for job in left if not set(specs[job].scheduling.after).intersection(left)]
        batch = []
        for job in ready or left:
            scheduling = specs[job].scheduling
            after = tuple(new[one] for one in scheduling.after if one in new)
            again = replace(specs[job], scheduling=replace(scheduling, after=after, after_any=()))
            batch.append((job, again, _reader(base_state, job).project))
        numbers = submit_again(view.files, view.base, batch)
        new |= {job: number for (job, _, _), number in zip(batch, numbers, strict=True)}
        left = [job for job in left if job not in new]
    numbers = [new[job] for job in known]
    text = f"{_count(numbers)} queued again"
    return ActionResult(None, text + _scheduler_hint(view, base_state), jobs=numbers)


def _rerun_tasks(
    view: QueueView, base_state: BaseState, jobs: Sequence[JobId]
) -> dict[JobId, JobId]:
    """Submit Python tasks again, with their kernels as they are now, in a run for each run."""
    for job in jobs:
        sheet = read_sheet(_reader(base_state, job), job.number)
        if sheet is None or sheet.task == COMMAND:
            what = "cannot be read" if sheet is None else "is a line of `postroom run`"
            raise PostroomError(f"job {job.short} {what}: start its program again")
    new: dict[JobId, JobId] = {}
    for run in dict.fromkeys(job.run for job in jobs):
        numbers = [job.number for job in jobs if job.run == run]
        with Master(view.base.root) as master:
            again = master.rerun(run, numbers)
        new |= {JobId(run, old): JobId(again.run, n) for n, old in enumerate(numbers)}
    return new


def failed_jobs(view: QueueView, project: str = "", run: str = "") -> list[JobId]:
    """The failed jobs and those cancelled because they waited for one; not those rerun since.

    Those of Python programs only if a `run` is named: a program may know what it does about them.
    """
    base_state = view.read_state()
    readers = [
        reader
        for reader in base_state.readers.values()
        if (reader.info.queue or run)
        and project in ("", reader.project)
        and reader.run.endswith(run)
    ]

    def ended_as(*states: str) -> set[JobId]:
        return {reader.job_id(job) for reader, job, _ in base_state.jobs_in(states, readers)}

    chosen, cancelled = ended_as(*FAILED), ended_as("cancelled")
    grew = bool(chosen)
    while grew:
        dependents = {job for job in cancelled if chosen.intersection(_awaited_by(base_state, job))}
        cancelled -= dependents
        chosen |= dependents
        grew = bool(dependents)
    if chosen:
        chosen -= _rerun_already(base_state, since=min(job.run for job in chosen))
    return sorted(chosen)


# The queue


def pause(view: QueueView, scope: QueueScope, preempt: bool = False) -> ActionResult:
    """Start no more jobs; with `preempt`, also stop running jobs and requeue them."""
    base_state = view.read_state()
    scope = _check_scope(view, base_state, scope)
    text = f"{scope} is paused; running jobs continue"
    if preempt:
        text = f"{scope} is paused; running jobs are stopped and resume later from a checkpoint"
    return _ask(view, base_state, RequestVerb.PAUSE, text, **_scope_fields(scope), preempt=preempt)


def resume(view: QueueView, scope: QueueScope) -> ActionResult:
    """Start jobs again."""
    base_state = view.read_state()
    scope = _check_scope(view, base_state, scope)
    return _ask(view, base_state, RequestVerb.RESUME, f"{scope} is resumed", **_scope_fields(scope))


def limit(view: QueueView, project: str, most: int) -> ActionResult:
    """Limit how many jobs of a project run at once; 0: as many as there are agents."""
    base_state = view.read_state()
    jobs = "1 job" if most == 1 else f"{most} jobs"
    text = f"project {project} runs at most {jobs} at once"
    text = text if most else f"project {project} has no limit"
    fields = {"projects": (project,), "value": most}
    return _ask(view, base_state, RequestVerb.LIMIT, text, **fields)


def stop_after_failures(view: QueueView, project: str, most: int) -> ActionResult:
    """Set after how many failures in a row a project (no name: the queue) pauses; 0: never."""
    what = f"project {project}" if project else "the queue"
    text = f"{what} pauses after {most} failures in a row"
    text = text if most else f"{what} is not paused, however many jobs fail"
    fields: dict[str, Any] = {"projects": (project,)} if project else {"everything": True}
    return _ask(view, view.read_state(), RequestVerb.FAILURES, text, value=most, **fields)


def clean(
    view: QueueView,
    *,
    older_than_s: float,
    project: str = "",
    abandoned: bool = False,
    dry_run: bool = False,
) -> ActionResult:
    """Remove the runs whose jobs have all ended long ago, with their results and logs.

    With `abandoned`, also those whose program is gone: what is left of their jobs is killed.
    """
    files, base, now = view.files, view.base, time.time()

    def in_use() -> set[str]:
        return runs_in_use(view.read_state(), files, base)

    errors = [] if dry_run else sweep(files, base, now=now)
    seen = view.read_state()
    old = partial(find_over, seen, now=now, older_than_s=older_than_s, project=project)
    going = old(kept=in_use(), abandoned=abandoned)
    left = [one for one in old(abandoned=not abandoned) if seen.is_abandoned(one.run)]
    here = [one for one in seen.readers.values() if project in ("", one.project)]
    unfinished = [one for one in here if one.pending and one not in [*left, *going]]
    newer = sum(not one.pending for one in here) - len(old(abandoned=False))
    needed = len(old(abandoned=abandoned)) - len(going)
    # How many jobs they had when they were found to be old enough.
    jobs = {reader.run: reader.asked for reader in going}
    if not dry_run:
        for reader in going:
            _kill_all(view, reader)
        for run, asked in list(jobs.items()):
            try:
                if not remove_run(files, base, run, jobs=asked, in_use=in_use):
                    del jobs[run]
            except OSError as error:
                errors.append(error)
        remove_unused_data(files, base, now=now)
    verb = "would be removed" if dry_run else "removed"
    text = f"{len(jobs)} run{'' if len(jobs) == 1 else 's'} with {sum(jobs.values())} jobs {verb}"
    if left:
        text += (
            f"; {len(left)} abandoned run{'' if len(left) == 1 else 's'} with "
            f"{sum(reader.pending for reader in left)} jobs that have not ended stay: --abandoned "
            "removes them, too"
        )
    stays = [
        (len(unfinished), "not finished"),
        (newer, f"ended less than {format_duration(max(older_than_s, QUIET_S))} ago"),
        (needed + len(going) - len(jobs), "in use: jobs wait for them, or a message is due"),
    ]
    if words := [f"{count} {why}" for count, why in stays if count > 0]:
        text += f"; these stay: {', '.join(words)}"
    if errors:
        text += f"; not all could be deleted, clean again when this is mended: {errors[0]}"
    return ActionResult(None, text, runs=list(jobs))


def _kill_all(view: QueueView, reader: RunReader) -> None:
    """Kill all jobs of a run that have not ended; those that run end a little later."""
    waiting = [reader.job_id(n) for first, stop in reader.waiting for n in range(first, stop)]
    if waiting:
        wait_settled(view, kill(view, waiting))


# Agents


def drain(view: QueueView, agents: Sequence[str], preempt: bool = False) -> ActionResult:
    """Send agents (all, when none is named) no more jobs."""
    return _ask_agents(view, RequestVerb.DRAIN, agents, "drained: {}", preempt=preempt)


def fill(view: QueueView, agents: Sequence[str]) -> ActionResult:
    """Send drained agents (all, when none is named) jobs again."""
    return _ask_agents(view, RequestVerb.FILL, agents, "no longer drained: {}")


def remove_agents(view: QueueView, agents: Sequence[str], preempt: bool = False) -> ActionResult:
    """Have the scheduler stop agents after their running job; with `preempt`, at once."""
    if not agents:
        raise PostroomError("name the agents to remove; see `postroom agents list`")
    return _ask_agents(view, RequestVerb.REMOVE, agents, "removing {}", preempt=preempt)


def add_agents(view: QueueView, gpus: str) -> ActionResult:
    """Have an agent on each of some GPUs from now on: started, and started again when it dies."""
    # A list that makes no sense, or a GPU that is not there, is refused here, not in the
    # scheduler's log. "all" means the GPUs of now: those of another day are another decision.
    slots = parse_gpus(gpus, view.cards)
    value = "".join(f"{slot.gpu};" for slot in slots)
    text = f"agents that are wanted from now on: {', '.join(slot.agent for slot in slots)}"
    return _ask(view, view.read_state(), RequestVerb.ADD, text, value=value)


def go_up(view: QueueView, *, yields: bool | None = None) -> ActionResult:
    """Have all agents that are wanted live; `yields`: see `store.wanted_agents`."""
    value = {True: "yield", False: "keep", None: None}[yields]
    fields = {"everything": True, "value": value}
    return _ask(view, view.read_state(), RequestVerb.UP, "the queue is up", **fields)


def go_down(view: QueueView, *, preempt: bool = False) -> ActionResult:
    """Have no agent live that is kept, after their running jobs; with `preempt`, now."""
    text = "the queue goes down" + ("; running jobs are requeued" if preempt else "")
    fields = {"everything": True, "preempt": preempt}
    return _ask(view, view.read_state(), RequestVerb.DOWN, text, **fields)


def carry_out_now(view: QueueView) -> None:
    """Carry out requests about agents where no scheduler does: be one for a moment."""
    from ..session.sessions import Sessions  # other verbs do without it

    with Master(view.base.root, sessions=Sessions(view.base)) as master:
        master.carry_out_requests()


# The names of the verbs, once. The command line has a command for each; the page and the API look
# them up here.
ACTIONS = {
    "kill": Action("jobs", "Kill", lambda view, what: kill(view, what.jobs)),
    "hold": Action("jobs", "Hold", lambda view, what: hold(view, what.jobs)),
    "release": Action("jobs", "Release", lambda view, what: release(view, what.jobs)),
    "priority": Action(
        "jobs", "Set priority", lambda view, what: set_priority(view, what.jobs, _number(what))
    ),
    "move": Action("jobs", "Move", lambda view, what: move(view, what.jobs, _place(what))),
    "rerun": Action("jobs", "Rerun", lambda view, what: rerun(view, what.jobs)),
    "pause": Action("queue", "Pause", lambda view, what: pause(view, what.scope, what.preempt)),
    "resume": Action("queue", "Resume", lambda view, what: resume(view, what.scope)),
    "limit": Action("queue", "Set limit", lambda view, what: limit(view, *_limit_of(what))),
    "drain": Action("agents", "Drain", lambda view, what: drain(view, what.agents, what.preempt)),
    "fill": Action("agents", "Undo drain", lambda view, what: fill(view, what.agents)),
    "remove": Action(
        "agents", "Remove", lambda view, what: remove_agents(view, what.agents, what.preempt)
    ),
    "add": Action("gpus", "Add", lambda view, what: add_agents(view, str(what.value or ""))),
}


def _number(what: ActionInput) -> int:
    if type(what.value) is not int:
        raise PostroomError("a priority, or a limit, is a whole number")
    return what.value


def _limit_of(what: ActionInput) -> tuple[str, int]:
    most = _number(what)
    if len(what.scope.projects) != 1 or not 0 <= most <= MOST_LIMIT:
        raise PostroomError(f"a limit is for one project, and a number from 0 to {MOST_LIMIT}")
    return what.scope.projects[0], most


def _place(what: ActionInput) -> str | JobId:
    if what.value in ("first", "last"):
        return str(what.value)
    try:
        return JobId.parse(str(what.value))
    except ValueError:
        raise PostroomError("a job is moved first, last, or before a job RUN/NUMBER") from None


# Asking the scheduler


def wait_settled(view: QueueView, result: ActionResult, timeout_s: float = 10.0) -> bool:
    """Wait until the scheduler has carried out a request; False: not within this time.

    Raises PostroomError if the scheduler refused it.
    """
    give_up_at = time.monotonic() + timeout_s
    while result.request is not None and not is_settled(view.files, view.base, result.request):
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(POLL_S)
    return True


def _ask(
    view: QueueView, base_state: BaseState, verb: RequestVerb, text: str, **fields: Any
) -> ActionResult:
    request = Request(verb, by=user_name(), at=time.time(), **fields)
    name = ask(view.files, view.base, request)
    return ActionResult(name, text + _scheduler_hint(view, base_state))


def _ask_agents(
    view: QueueView, verb: RequestVerb, agents: Sequence[str], text: str, *, preempt: bool = False
) -> ActionResult:
    base_state = view.read_state()
    known = [agent.agent for agent in base_state.agents]
    unknown = [agent for agent in agents if agent not in {*known, *base_state.orders.drained}]
    if unknown:
        there = ", ".join(known) or "none"
        raise PostroomError(
            f"there is no agent {unknown[0]!r} at {view.base.root}; there are: {there}"
        )
    text = text.format(f"agent {', '.join(agents)}" if agents else "all agents")
    text += "; running jobs are requeued" if preempt else ""
    return _ask(
        view,
        base_state,
        verb,
        text,
        agents=tuple(agents),
        everything=not agents,
        preempt=preempt,
    )


def _scheduler_hint(view: QueueView, base_state: BaseState) -> str:
    """What to do where no scheduler is there to carry out a request."""
    if base_state.master_pid is not None:
        return ""
    return (
        f"; no scheduler is running, so this waits until you start it: {up_command(view.base.root)}"
    )


def _scope_fields(scope: QueueScope) -> dict[str, Any]:
    return {"projects": scope.projects, "runs": scope.runs, "everything": scope.everything}


def _check_scope(view: QueueView, base_state: BaseState, scope: QueueScope) -> QueueScope:
    """The scope with full run names, or an error that says which projects there are."""
    known = {reader.project for reader in base_state.readers.values() if reader.info.queue}
    for name in scope.projects:
        if name not in known | base_state.orders.paused_projects:
            there = ", ".join(sorted(known)) or "none yet"
            raise PostroomError(f"there is no project {name!r}; there are: {there}")
    runs = tuple(find_run(view.files, view.base, run) for run in scope.runs)
    return replace(scope, runs=runs)


# Reading jobs


def _reader(base_state: BaseState, job: JobId) -> RunReader:
    return base_state.readers[job.run]


def _known(base_state: BaseState, jobs: Sequence[JobId]) -> list[JobId]:
    """The jobs, each once, or an error that names one that does not exist."""
    if not jobs:
        raise PostroomError("no job is named")
    return list(dict.fromkeys(map(base_state.find, jobs)))


def _without_result(base_state: BaseState, jobs: Sequence[JobId]) -> list[JobId]:
    return [job for job in jobs if _reader(base_state, job).outcome(job.number) is None]


def _waiting(
    base_state: BaseState, jobs: Sequence[JobId], verb: str, *, own_place: bool = False
) -> list[JobId]:
    """Those of the jobs that have not started; an error when none is left.

    With `own_place`, all must be in the project queue: the jobs of a program's run have no priority
    and no place of their own.
    """
    known = _known(base_state, jobs)
    left = [job for job in _without_result(base_state, known) if job not in base_state.running]
    if not left:
        state = _reader(base_state, known[0]).outcome(known[0].number) or "running"
        which = f"job {known[0].short} is {state}" if len(known) == 1 else "none of them waits"
        raise PostroomError(f"there is nothing to {verb}: {which}")
    for job in left:
        if own_place and not _reader(base_state, job).info.queue:
            raise PostroomError(
                f"cannot {verb} job {job.short}: a Python program submitted it, and sends its jobs "
                "in their order"
            )
    return left


def _count(jobs: Collection[JobId]) -> str:
    return f"job {next(iter(jobs)).short}" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _awaited_by(base_state: BaseState, job: JobId) -> tuple[JobId, ...]:
    """The jobs that had to end well before this one."""
    with contextlib.suppress(BadFileError, OSError):
        sheet = _reader(base_state, job).read_jobs(job.number)
        return scheduling_in(command_fields(sheet, job.number)).after
    return ()


def _rerun_already(base_state: BaseState, *, since: str) -> set[JobId]:
    """The jobs that later jobs are reruns of."""
    found: set[JobId] = set()
    for reader in base_state.readers.values():
        if reader.run[:SECOND] < since[:SECOND]:
            continue
        # Each Python task that is run again has a record of its own.
        for number in range(reader.asked) if reader.info.queue else reader.firsts:
            with contextlib.suppress(BadFileError, OSError, ValueError):
                sheet = reader.read_jobs(number)
                again = sheet.options.rerun_of or sheet.text(number, "rerun_of")
                if again:
                    found.add(JobId.parse(again))
    return found
