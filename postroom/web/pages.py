"""The HTML pages: each one asks the queue reader and fills a template."""

from __future__ import annotations

import re
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from ..errors import PostroomError
from ..pilots.pilot_view import view_pilots
from ..queue.rows import ENDED, PENDING, RUNNING, STATES, JobDetail
from ..store.job_ids import JobId, find_job
from ..store.kernel_output import read_output
from .api import LONGEST_HISTORY_S, LogMark, Moment, Number, Run
from .context import Context
from .gantt import LABELS, WIDTH, chart, timeline
from .live_updates import Listener, fingerprint, fingerprint_of_job
from .log_reader import NOTHING, LogChunk, last_of, read_log

pages = APIRouter(include_in_schema=False)

ON_PAGE = 50
SPANS = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
Text = Annotated[str, Query(max_length=200)]
_JOB = re.compile(r"[A-Za-z0-9_-]+/\d{1,9}")


@pages.get("/")
async def overview(request: Request, context: Context) -> Response:
    """GPUs, running jobs, the queue, and ended jobs."""
    found = await context.queue.overview()
    return context.page(request, "overview.html", overview=found, seen=fingerprint(found))


@pages.get("/jobs")
async def jobs(
    request: Request,
    context: Context,
    state: Text = "",
    project: Text = "",
    run: Text = "",
    text: Text = "",
    first: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> Response:
    """A page of the list of jobs; a search for an id leads to that job."""
    if _JOB.fullmatch(text.strip()):
        try:
            found = await context.queue.query(
                lambda _: find_job(context.queue.files, context.base, text.strip())
            )
            return RedirectResponse(f"/jobs/{found}", 303)
        except PostroomError:
            pass  # not the id of a job: search for it as text
    page = await context.queue.query(
        lambda view: view.jobs(
            state=state, project=project, run=run, text=text, first=first, count=ON_PAGE
        )
    )
    projects = await context.queue.query(lambda view: view.projects())
    return context.page(
        request,
        "jobs.html",
        page=page,
        projects=projects,
        states=STATES,
        asked={"state": state, "project": project, "run": run, "text": text},
        on_page=ON_PAGE,
    )


@pages.get("/jobs/{run}")
async def jobs_of(run: Run) -> Response:
    """The jobs of one run."""
    return RedirectResponse(f"/jobs?run={run}", 303)


@pages.get("/jobs/{run}/{number}")
async def job(request: Request, context: Context, run: Run, number: Number) -> Response:
    """One job: its details, output and actions."""

    def read(detail: JobDetail) -> tuple[JobDetail, LogChunk, LogChunk]:
        root = context.base.root
        if not detail.out_path:
            return detail, last_of(read_output(context.base, run, number)), NOTHING
        return detail, read_log(root, detail.out_path), read_log(root, detail.err_path)

    detail, out, err = await context.queue.query(lambda view: read(view.job(JobId(run, number))))
    return context.page(
        request,
        "job.html",
        detail=detail,
        job=detail.job,
        out=out,
        err=err,
        timeline=timeline(detail),
        seen=fingerprint_of_job(detail),
        is_running=detail.job.state in RUNNING,
        is_pending=detail.job.state in PENDING,
        is_ended=detail.job.state in ENDED,
    )


@pages.get("/jobs/{run}/{number}/attempts/{attempt}")
async def attempt(
    request: Request, context: Context, run: Run, number: Number, attempt: Number
) -> Response:
    """The output of an earlier attempt."""
    detail = await context.queue.query(lambda view: view.job(JobId(run, number)))
    found = next((one for one in detail.attempts if one.number == attempt), None)
    if found is None:
        raise PostroomError(f"job {detail.job.short} has no attempt {attempt}")
    root = context.base.root
    out, err = await context.queue.query(
        lambda _: (read_log(root, found.out_path), read_log(root, found.err_path))
    )
    return context.page(request, "attempt.html", job=detail.job, attempt=found, out=out, err=err)


@pages.get("/projects")
async def projects(request: Request, context: Context) -> Response:
    """All projects, with their jobs counted by state."""
    found = await context.queue.query(lambda view: view.projects())
    return context.page(request, "projects.html", projects=found, states=STATES)


@pages.get("/agents")
async def agents(request: Request, context: Context) -> Response:
    """The agents; add, drain and remove them."""
    found = await context.queue.overview()
    pilots = await context.queue.query(lambda view: view_pilots(context.base))
    seen = fingerprint(found)
    return context.page(request, "agents.html", overview=found, pilots=pilots, seen=seen)


@pages.get("/history")
async def history(
    request: Request, context: Context, span: Text = "1d", until: Moment = None
) -> Response:
    """Which job ran on which GPU, and when."""
    length = SPANS.get(span, SPANS["1d"])
    end = time.time() if until is None else max(until, LONGEST_HISTORY_S)
    await context.queue.overview()  # for the names of the GPUs
    intervals = await context.queue.query(lambda view: view.history(since=end - length, until=end))
    return context.page(
        request,
        "history.html",
        chart=chart(intervals, end - length, end, context.gpu_name),
        intervals=sorted(intervals, key=lambda one: -one.started_at)[:ON_PAGE],
        total=len(intervals),
        spans=list(SPANS),
        span=span if span in SPANS else "1d",
        since=end - length,
        until=end,
        is_now=until is None,
        length=length,
        width=WIDTH,
        labels=LABELS,
    )


@pages.get("/events")
async def events(
    context: Context,
    seen: Text = "",
    run: Text = "",
    number: int = 0,
    out: LogMark = "",
    err: LogMark = "",
) -> Response:
    """Live updates of the base, or of one job, since the page was made."""
    if context.live_updates.is_full:
        raise PostroomError("too many pages are open; close some, then reload this one")
    listener = Listener(seen=seen, marks={"out": out, "err": err})
    if run:
        detail = await context.queue.query(lambda view: view.job(JobId(run, number)))
        listener.job = JobId(detail.job.run, detail.job.number)
    return StreamingResponse(context.live_updates.listen(listener), media_type="text/event-stream")
