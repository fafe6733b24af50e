"""The same as the pages, as JSON: what is there, and what can be asked for."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from ..queue.rows import AgentView, Interval, JobDetail, JobPage, Overview, ProjectView
from ..store.job_ids import MOST_JOBS, JobId
from ..store.scheduling import MOST_PRIORITY
from .chrome_trace import trace
from .context import In
from .live_updates import Reading
from .log_reader import MOST_BYTES, Piece, read_log
from .metrics import metrics
from .page_actions import (
    AgentVerb,
    JobVerb,
    PageAction,
    QueueVerb,
    add_agents,
    ask_agents,
    ask_jobs,
    ask_queue,
    queue_up,
    scope_of,
)
from .submit_plan import Commands, Sweep, specs_of

api = APIRouter(prefix="/api")
outside = APIRouter()

MOST_ON_PAGE = 500
LONGEST_HISTORY_S = 400 * 86400.0
Run = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,100}$", description="A run's whole id.")]
Number = Annotated[int, Path(ge=0, le=999_999_999, description="The job's number in its run.")]
JobText = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}/[0-9]{1,9}$")]
Word = Annotated[str, Query(max_length=200)]
Moment = Annotated[float | None, Query(ge=0, le=4e9, allow_inf_nan=False)]


class JobsRequest(BaseModel):
    """Something to be done with jobs."""

    model_config = ConfigDict(extra="forbid")

    verb: JobVerb
    jobs: list[JobText] = Field(min_length=1, max_length=MOST_JOBS)
    value: Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] | None = None


class QueueRequest(BaseModel):
    """A pause or its end: of the whole queue, unless a project or a run is named."""

    model_config = ConfigDict(extra="forbid")

    verb: QueueVerb
    project: Annotated[str, Field(max_length=200)] = ""
    run: Annotated[str, Field(max_length=100)] = ""
    preempt: bool = False


class AgentsRequest(BaseModel):
    """Agents that shall take no more jobs, take them again, or go."""

    model_config = ConfigDict(extra="forbid")

    verb: AgentVerb
    agents: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")]] = Field(
        min_length=1, max_length=1000
    )
    preempt: bool = False


class NewAgents(BaseModel):
    """Cards that shall have agents: `0,1`, `0,0` for two on one, `cpu`, `all`."""

    model_config = ConfigDict(extra="forbid")

    gpus: Annotated[str, Field(min_length=1, max_length=200)]


class Said(BaseModel):
    """What came of a request."""

    text: str  # for people
    done: bool  # False: a Master has yet to do it
    jobs: list[str]  # that were queued again


class Queued(BaseModel):
    """What was queued, or would be."""

    dry_run: bool
    jobs: list[str]
    commands: list[str]


@api.get("/overview")
async def overview(context: In) -> Overview:
    """Cards, agents, counts, and the jobs that matter now."""
    return await context.reader.overview()


@api.get("/readings")
async def readings(context: In) -> list[tuple[float, dict[str, Reading]]]:
    """Memory and load of each card in per cent, as far as somebody looked on lately."""
    return list(context.stream.readings)


@api.get("/jobs")
async def jobs(
    context: In,
    state: Word = "",
    project: Word = "",
    run: Word = "",
    text: Word = "",
    user: Word = "",
    first: Annotated[int, Query(ge=0, le=10**9)] = 0,
    count: Annotated[int, Query(ge=1, le=MOST_ON_PAGE)] = 50,
) -> JobPage:
    """Some of the jobs: those that run, then the queue, then what has ended, newest first."""
    return await context.reader.look(
        lambda view: view.jobs(
            state=state,
            project=project,
            run=run,
            text=text,
            user=user,
            first=first,
            count=count,
        )
    )


@api.get("/jobs/{run}/{number}")
async def job(context: In, run: Run, number: Number) -> JobDetail:
    """Everything about one job."""
    return await context.reader.look(lambda view: view.job(JobId(run, number)))


@api.get("/jobs/{run}/{number}/log")
async def log(
    context: In,
    run: Run,
    number: Number,
    stream: Literal["out", "err"] = "out",
    mark: Annotated[str, Query(pattern=r"^[0-9]{0,20}(-[0-9]{1,18})?$")] = "",
    most: Annotated[int, Query(ge=1, le=MOST_BYTES)] = 64 << 10,
) -> Piece:
    """The end of what a job printed, or what follows the mark of an earlier answer."""

    def read(detail: JobDetail) -> Piece:
        path = detail.out_path if stream == "out" else detail.err_path
        return read_log(context.base.root, path, mark, most=most)

    return await context.reader.look(lambda view: read(view.job(JobId(run, number))))


@api.get("/projects")
async def projects(context: In) -> list[ProjectView]:
    """The projects, and how their jobs stand."""
    return await context.reader.look(lambda view: view.projects())


@api.get("/agents")
async def agents(context: In) -> list[AgentView]:
    """The agents, and what they do."""
    return (await context.reader.overview()).agents


@api.get("/history")
async def history(context: In, since: Moment = None, until: Moment = None) -> list[Interval]:
    """Who ran what on which card; the last day, unless other times are given."""
    return await _history(context, since, until)


@api.get("/trace")
async def chrome_trace(context: In, since: Moment = None, until: Moment = None) -> dict[str, Any]:
    """The same as a Chrome trace."""
    return trace(await _history(context, since, until))


@api.post("/jobs")
async def submit_commands(context: In, wanted: Commands) -> Queued:
    """Queue one or many commands."""
    return await _submit(context, wanted)


@api.post("/sweeps")
async def submit_sweep(context: In, wanted: Sweep) -> Queued:
    """Queue a command for every combination of some values."""
    return await _submit(context, wanted)


@api.post("/requests/jobs")
async def request_jobs(context: In, wanted: JobsRequest) -> Said:
    """Kill, hold, release, rerun, move jobs, or give them a priority."""
    jobs = [JobId.parse(text) for text in wanted.jobs]
    act = await ask_jobs(context, wanted.verb, jobs, wanted.value)
    return _said(act)


@api.post("/requests/queue")
async def request_queue(context: In, wanted: QueueRequest) -> Said:
    """Pause or resume the queue, a project or a run."""
    scope = scope_of(wanted.project, wanted.run)
    act = await ask_queue(context, wanted.verb, scope, preempt=wanted.preempt)
    return _said(act)


@api.post("/requests/agents")
async def request_agents(context: In, wanted: AgentsRequest) -> Said:
    """Drain agents, fill them again, or have them go."""
    act = await ask_agents(context, wanted.verb, wanted.agents, preempt=wanted.preempt)
    return _said(act)


@api.post("/agents")
async def new_agents(context: In, wanted: NewAgents) -> Said:
    """Have the acting Master start agents."""
    return _said(await add_agents(context, wanted.gpus))


@outside.get("/metrics", include_in_schema=False)
async def prometheus(context: In) -> Response:
    """What Prometheus scrapes."""
    text = metrics(await context.reader.overview(), context.stream.listeners)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _said(act: PageAction) -> Said:
    return Said(text=act.text, done=act.done, jobs=[str(job) for job in act.jobs])


async def _history(context: In, since: float | None, until: float | None) -> list[Interval]:
    until = time.time() if until is None else until
    since = until - 86400 if since is None else max(since, until - LONGEST_HISTORY_S)
    return await context.reader.look(lambda view: view.history(since=since, until=until))


async def _submit(context: In, wanted: Commands | Sweep) -> Queued:
    asks = await context.reader.look(
        lambda _: specs_of(context.reader.files, context.base, wanted, context.here)
    )
    ids: list[str] = []
    if not wanted.dry_run:
        ids = [str(found) for found in await queue_up(context, asks, wanted.project)]
    return Queued(dry_run=wanted.dry_run, jobs=ids, commands=[ask.command for ask in asks])
