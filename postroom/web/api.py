"""The API: everything that the pages show and do, as JSON."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from ..errors import PostroomError
from ..gpus.ledger.protocol import open_ledger
from ..gpus.ledger.usage_report import UsageLine, read_past, usage_lines
from ..pilots.group_verbs import GROUP_VERBS, change_pilots
from ..pilots.pilot_view import PilotView, view_pilots
from ..queue.actions import MOST_LIMIT, ActionInput, QueueScope, verbs_for
from ..queue.card_curves import Readings
from ..queue.rows import AgentView, Interval, JobDetail, JobPage, Overview, ProjectView
from ..store.job_ids import JobId
from ..store.scheduling import MOST_PRIORITY
from .chrome_trace import trace
from .context import Context
from .log_reader import MOST_BYTES, LogChunk, read_log
from .metrics import metrics
from .submit_plan import Commands, Sweep, specs_of

api = APIRouter(prefix="/api")
outside = APIRouter()

MOST_ON_PAGE = 500
MOST_NAMED = 10_000  # jobs, one by one
LONGEST_HISTORY_S = 400 * 86400.0
Run = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9_-]{1,100}$", description="The id of a run, or the end of it.")
]
Number = Annotated[int, Path(ge=0, le=999_999_999, description="The job's number in its run.")]
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
JobText = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}/[0-9]{1,9}$")]
Word = Annotated[str, Query(max_length=200)]
LogMark = Annotated[str, Query(pattern=r"^[0-9]{0,20}(-[0-9]{1,18})?$")]
Moment = Annotated[float | None, Query(ge=0, le=4e9, allow_inf_nan=False)]


class _Strict(BaseModel):
    """A request body that may have no other fields."""

    model_config = ConfigDict(extra="forbid")


class JobsAction(_Strict):
    """A verb for jobs. `value`: a priority, or where to move (`first`, `last`, or a job's id)."""

    verb: str = Field(json_schema_extra={"enum": [*verbs_for("jobs")]})
    jobs: list[JobText] = Field(min_length=1, max_length=MOST_NAMED)
    value: Priority | Annotated[str, Field(max_length=200)] | None = None


class QueueAction(_Strict):
    """A verb for the whole queue, or for one project or run. `value`: the limit of a project."""

    verb: str = Field(json_schema_extra={"enum": [*verbs_for("queue")]})
    project: Annotated[str, Field(max_length=200)] = ""
    run: Annotated[str, Field(max_length=100)] = ""
    value: Annotated[int, Field(ge=0, le=MOST_LIMIT)] | None = None
    preempt: bool = False


class AgentsAction(_Strict):
    """A verb for agents."""

    verb: str = Field(json_schema_extra={"enum": [*verbs_for("agents")]})
    agents: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")]] = Field(
        min_length=1, max_length=1000
    )
    preempt: bool = False


class PilotsAction(_Strict):
    """A verb for groups of pilots; for all of them, where none is named."""

    verb: str = Field(json_schema_extra={"enum": [*GROUP_VERBS]})
    groups: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list, max_length=1000
    )


class NewAgents(_Strict):
    """The GPUs of new agents: `0,1`, `0,0` for two on one GPU, `cpu`, `all`."""

    gpus: Annotated[str, Field(min_length=1, max_length=200)]


class ActionReply(BaseModel):
    """What came of an action."""

    text: str  # for people
    done: bool  # False: the scheduler has yet to carry it out
    jobs: list[str]  # that were queued


class Queued(BaseModel):
    """What was queued, or would be."""

    dry_run: bool
    jobs: list[str]
    commands: list[str]


@api.get("/overview")
async def overview(context: Context) -> Overview:
    """GPUs, agents, counts, and the first jobs of each list."""
    return await context.queue.overview()


@api.get("/readings")
async def readings(context: Context) -> list[Readings]:
    """Memory and load of each GPU in per cent, in the last hour."""
    return await context.live_updates.readings()


@api.get("/jobs")
async def jobs(
    context: Context,
    state: Word = "",
    project: Word = "",
    run: Word = "",
    text: Word = "",
    user: Word = "",
    sort: Word = "",
    first: Annotated[int, Query(ge=0, le=10**9)] = 0,
    count: Annotated[int, Query(ge=1, le=MOST_ON_PAGE)] = 50,
) -> JobPage:
    """A page of jobs: running, then the queue in its order, then ended jobs, newest first."""
    return await context.queue.query(
        lambda view: view.jobs(
            state=state,
            project=project,
            run=run,
            text=text,
            user=user,
            sort=sort,
            first=first,
            count=count,
        )
    )


@api.get("/jobs/{run}/{number}")
async def job(context: Context, run: Run, number: Number) -> JobDetail:
    """All details of one job."""
    return await context.queue.query(lambda view: view.job(JobId(run, number)))


@api.get("/jobs/{run}/{number}/log")
async def log(
    context: Context,
    run: Run,
    number: Number,
    stream: Literal["out", "err"] = "out",
    mark: LogMark = "",
    most: Annotated[int, Query(ge=1, le=MOST_BYTES)] = 64 << 10,
) -> LogChunk:
    """The end of a job's log, or what was added after the `mark` of an earlier reply."""

    def read(detail: JobDetail) -> LogChunk:
        path = detail.out_path if stream == "out" else detail.err_path
        return read_log(context.base.root, path, mark, most=most)

    return await context.queue.query(lambda view: read(view.job(JobId(run, number))))


@api.get("/projects")
async def projects(context: Context) -> list[ProjectView]:
    """The projects, with their jobs counted by state."""
    return await context.queue.query(lambda view: view.projects())


@api.get("/agents")
async def agents(context: Context) -> list[AgentView]:
    """The agents and their jobs."""
    return (await context.queue.overview()).agents


@api.get("/history")
async def history(context: Context, since: Moment = None, until: Moment = None) -> list[Interval]:
    """Which job ran on which GPU; the last day, unless other times are given."""
    return await _history(context, since, until)


@api.get("/usage")
async def usage(
    context: Context,
    by: Literal["user", "project", "card"] = "user",
    since: Moment = None,
    until: Moment = None,
) -> list[UsageLine]:
    """Who held GPUs; the last week, unless other times are given."""
    past = await context.queue.query(lambda _: read_past(open_ledger()))
    until = past.now if until is None else min(until, past.now)
    since = until - 7 * 86400 if since is None else since
    return usage_lines(past, since, until, by=by)


@api.get("/trace")
async def chrome_trace(
    context: Context, since: Moment = None, until: Moment = None
) -> dict[str, Any]:
    """The history as a Chrome trace."""
    return trace(await _history(context, since, until))


@api.post("/jobs")
async def submit_commands(context: Context, wanted: Commands) -> Queued:
    """Queue one or many commands."""
    return await _submit(context, wanted)


@api.post("/sweeps")
async def submit_sweep(context: Context, wanted: Sweep) -> Queued:
    """Queue a command for every combination of values."""
    return await _submit(context, wanted)


@api.post("/requests/jobs")
async def act_on_jobs(context: Context, wanted: JobsAction) -> ActionReply:
    """Kill, hold, release, move or rerun jobs, or set their priority."""
    jobs = [JobId.parse(text) for text in wanted.jobs]
    return await _act(context, "jobs", wanted.verb, ActionInput(jobs=jobs, value=wanted.value))


@api.post("/requests/queue")
async def act_on_queue(context: Context, wanted: QueueAction) -> ActionReply:
    """Pause or resume the queue, a project or a run, or limit a project."""
    scope = scope_of(wanted.project, wanted.run)
    what = ActionInput(scope=scope, value=wanted.value, preempt=wanted.preempt)
    return await _act(context, "queue", wanted.verb, what)


@api.post("/requests/agents")
async def act_on_agents(context: Context, wanted: AgentsAction) -> ActionReply:
    """Drain agents, fill them again, or remove them."""
    what = ActionInput(agents=wanted.agents, preempt=wanted.preempt)
    return await _act(context, "agents", wanted.verb, what)


@api.post("/requests/pilots")
async def act_on_pilots(context: Context, wanted: PilotsAction) -> ActionReply:
    """Drain, stop, resume or remove groups of pilots."""
    text = await context.queue.query(
        lambda view: change_pilots(view.base, wanted.verb, wanted.groups)
    )
    return ActionReply(text=text, done=True, jobs=[])


@api.get("/pilots")
async def pilots(context: Context) -> PilotView:
    """The groups of pilots, and the pilots."""
    return await context.queue.query(lambda view: view_pilots(view.base))


@api.post("/agents")
async def add_agents(context: Context, wanted: NewAgents) -> ActionReply:
    """Have the scheduler start agents."""
    return await _act(context, "gpus", "add", ActionInput(value=wanted.gpus))


@outside.get("/metrics", include_in_schema=False)
async def prometheus(context: Context) -> Response:
    """Metrics for Prometheus."""
    text = metrics(await context.queue.overview(), context.live_updates.listeners)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def scope_of(project: str, run: str) -> QueueScope:
    """A project, a run, or (both empty) the whole queue."""
    if project and run:
        raise PostroomError("name a project or a run, not both")
    return QueueScope(projects=(project,) if project else (), runs=(run,) if run else ())


async def _act(context: Context, target: str, verb: str, what: ActionInput) -> ActionReply:
    result, done = await context.queue.act(target, verb, what)
    return ActionReply(text=result.text, done=done, jobs=[str(job) for job in result.jobs])


async def _history(context: Context, since: float | None, until: float | None) -> list[Interval]:
    until = time.time() if until is None else until
    since = until - 86400 if since is None else max(since, until - LONGEST_HISTORY_S)
    return await context.queue.query(lambda view: view.history(since=since, until=until))


async def _submit(context: Context, wanted: Commands | Sweep) -> Queued:
    asks = await context.queue.query(lambda view: specs_of(view, wanted, context.here))
    ids: list[str] = []
    if not wanted.dry_run:
        ids = [str(job) for job in await context.queue.submit(asks, wanted)]
    return Queued(dry_run=wanted.dry_run, jobs=ids, commands=[ask.command for ask in asks])
