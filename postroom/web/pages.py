"""The pages that people look at."""

from __future__ import annotations

import re
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from ..errors import PostroomError
from ..ids import JobId, find_job
from ..queue.rows import ENDED, PENDING, RUNNING, STATES, JobDetail
from .api import LONGEST_HISTORY_S, Moment, Number, Run
from .gantt import LABELS, WIDTH, chart, timeline
from .logs import Piece, read_log
from .office import In
from .stream import Listener, fingerprint, fingerprint_of_job

pages = APIRouter(include_in_schema=False)

ON_PAGE = 50
SPANS = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
Text = Annotated[str, Query(max_length=200)]
Mark = Annotated[str, Query(pattern=r"^[0-9]{0,20}(-[0-9]{1,18})?$")]
_JOB = re.compile(r"[A-Za-z0-9_-]+/\d{1,9}")


@pages.get("/")
async def overview(request: Request, office: In) -> Response:
    """Cards, queue, what runs, what has ended."""
    look = await office.reader.overview()
    return office.page(request, "overview.html", look=look, seen=fingerprint(look))


@pages.get("/jobs")
async def jobs(
    request: Request,
    office: In,
    state: Text = "",
    project: Text = "",
    run: Text = "",
    text: Text = "",
    first: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> Response:
    """A page of the list of jobs, or the job whose id was searched for."""
    if _JOB.fullmatch(text.strip()):
        try:
            found = await office.reader.look(
                lambda _: find_job(office.reader.files, office.base, text.strip())
            )
            return RedirectResponse(f"/jobs/{found}", 303)
        except PostroomError:
            pass  # no id of ours: a text like any other
    page = await office.reader.look(
        lambda view: view.jobs(
            state=state, project=project, run=run, text=text, first=first, count=ON_PAGE
        )
    )
    projects = await office.reader.look(lambda view: view.projects())
    return office.page(
        request,
        "jobs.html",
        page=page,
        projects=projects,
        states=STATES,
        asked={"state": state, "project": project, "run": run, "text": text},
        on_page=ON_PAGE,
    )


@pages.get("/jobs/{run}/{number}")
async def job(request: Request, office: In, run: Run, number: Number) -> Response:
    """One job: how it stands, what it printed, and what can be done about it."""

    def read(detail: JobDetail) -> tuple[JobDetail, Piece, Piece]:
        root = office.base.root
        return detail, read_log(root, detail.out_path), read_log(root, detail.err_path)

    detail, out, err = await office.reader.look(lambda view: read(view.job(JobId(run, number))))
    return office.page(
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
    request: Request, office: In, run: Run, number: Number, attempt: Number
) -> Response:
    """What an earlier attempt printed."""
    detail = await office.reader.look(lambda view: view.job(JobId(run, number)))
    found = next((one for one in detail.attempts if one.number == attempt), None)
    if found is None:
        raise PostroomError(f"job {detail.job.short} has no attempt {attempt}")
    root = office.base.root
    out, err = await office.reader.look(
        lambda _: (read_log(root, found.out_path), read_log(root, found.err_path))
    )
    return office.page(request, "attempt.html", job=detail.job, attempt=found, out=out, err=err)


@pages.get("/projects")
async def projects(request: Request, office: In) -> Response:
    """All projects, and how their jobs stand."""
    found = await office.reader.look(lambda view: view.projects())
    return office.page(request, "projects.html", projects=found, states=STATES)


@pages.get("/agents")
async def agents(request: Request, office: In) -> Response:
    """The agents, and how to have more or fewer of them."""
    look = await office.reader.overview()
    return office.page(request, "agents.html", look=look, seen=fingerprint(look))


@pages.get("/history")
async def history(
    request: Request, office: In, span: Text = "1d", until: Moment = None
) -> Response:
    """Which card had which job, and when."""
    length = SPANS.get(span, SPANS["1d"])
    end = time.time() if until is None else max(until, LONGEST_HISTORY_S)
    await office.reader.overview()  # for the names of the cards
    intervals = await office.reader.look(lambda view: view.history(since=end - length, until=end))
    return office.page(
        request,
        "history.html",
        chart=chart(intervals, end - length, end, office.card),
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
    office: In, seen: Text = "", run: Text = "", number: int = 0, out: Mark = "", err: Mark = ""
) -> Response:
    """News of the base, or of one job: what has changed since a page was made, and then changes."""
    if office.stream.is_full:
        raise PostroomError("too many pages are open; close some, and load this one again")
    listener = Listener(seen=seen, marks={"out": out, "err": err})
    if run:
        detail = await office.reader.look(lambda view: view.job(JobId(run, number)))
        listener.job = JobId(detail.job.run, detail.job.number)
    return StreamingResponse(office.stream.listen(listener), media_type="text/event-stream")
