"""The HTML pages: each one asks the queue reader and fills a template."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Annotated, BinaryIO, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from ..errors import PostroomError
from ..gpus.ledger.protocol import open_ledger
from ..gpus.ledger.usage_report import BY, read_past
from ..pilots.group_verbs import GROUP_VERBS
from ..pilots.pilot_view import PilotRow, view_pilots
from ..queue.queue_view import QueueView
from ..queue.rows import ENDED, FAILED, PENDING, RUNNING, Interval, JobDetail
from ..store.job_ids import JobId, find_job
from ..store.kernel_output import read_output
from .api import LONGEST_HISTORY_S, LogMark, Moment, Number, Run
from .context import Context
from .gantt import chart, timeline
from .live_updates import Listener, fingerprint, fingerprint_of_job
from .log_reader import NOTHING, LogChunk, chunks, last_of, open_log, read_log
from .usage_chart import CHART_HEIGHT, COLUMNS, usage_chart

pages = APIRouter(include_in_schema=False)

ON_PAGE = 50
PLAIN = "text/plain; charset=utf-8"
SPANS = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
TABS: dict[str, Sequence[str]] = {
    "All": (),
    "Running": RUNNING,
    "Pending": PENDING,
    "Failed": FAILED,
    "Cancelled": ("cancelled",),
    "Succeeded": ("ok",),
}
SORTED_BY = {
    "": "queue order",
    "-submitted": "newest first",
    "submitted": "oldest first",
    "-duration": "longest first",
    "duration": "shortest first",
    "-priority": "highest priority first",
    "name": "name",
}
ENOUGH = 10  # attempts, to look at
Text = Annotated[str, Query(max_length=200)]
_JOB = re.compile(r"[A-Za-z0-9_-]+/\d{1,9}")


@pages.get("/")
async def overview(request: Request, context: Context) -> Response:
    """GPUs, running jobs, the queue, and ended jobs."""
    found = await context.queue.overview()
    return context.page(
        request,
        "overview.html",
        overview=found,
        seen=fingerprint(found),
        running=RUNNING,
        blocked=[state for state in PENDING if state != "queued"],
        failed=FAILED,
        ended=ENDED,
    )


@pages.get("/jobs")
async def jobs(
    request: Request,
    context: Context,
    state: Text = "",
    project: Text = "",
    run: Text = "",
    text: Text = "",
    sort: Text = "",
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
            state=state,
            project=project,
            run=run,
            text=text,
            sort=sort,
            first=first,
            count=ON_PAGE,
        )
    )
    projects = await context.queue.query(lambda view: view.projects())
    return context.page(
        request,
        "jobs.html",
        page=page,
        projects=projects,
        tabs=_tabs(state),
        sorts=SORTED_BY,
        asked={"state": state, "project": project, "run": run, "text": text, "sort": sort},
        on_page=ON_PAGE,
    )


def _tabs(state: str) -> list[tuple[str, Sequence[str], bool]]:
    """The tabs of the list: name, states (none: all), and whether it is the one that is shown."""
    asked = {word.strip() for word in state.split(",") if word.strip()}
    found = [(name, states, asked == set(states)) for name, states in TABS.items()]
    if not any(shown for _, _, shown in found):
        found.append((", ".join(sorted(asked)).capitalize(), sorted(asked), True))
    return found


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


@pages.get("/jobs/{run}/{number}/log/{stream}")
async def download(
    context: Context,
    run: Run,
    number: Number,
    stream: Literal["out", "err"],
    attempt: Annotated[int | None, Query(ge=0, le=10**9)] = None,
) -> Response:
    """A whole log, as a file; without an attempt, that of the last one."""

    def find(detail: JobDetail) -> tuple[str, str | BinaryIO | None]:
        tries = [one for one in detail.attempts if one.number == attempt]
        log = tries[0] if tries else detail
        path = log.out_path if stream == "out" else log.err_path
        if not detail.out_path and stream == "out":
            return detail.job.short, read_output(context.base, run, number)
        return detail.job.short, open_log(context.base.root, path)

    short, found = await context.queue.query(lambda view: find(view.job(JobId(run, number))))
    return _file(found, f"{short.replace('/', '-')}.{stream}.txt")


def _file(found: str | BinaryIO | None, name: str) -> Response:
    if found is None:
        raise PostroomError(f"there is no {name}, or it is outside the base")
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    if isinstance(found, str):
        return Response(found.encode(errors="replace"), media_type=PLAIN, headers=headers)
    return StreamingResponse(chunks(found), media_type=PLAIN, headers=headers)


@pages.get("/projects")
async def projects(request: Request, context: Context) -> Response:
    """All projects, with their jobs counted by state."""
    found = await context.queue.query(lambda view: view.projects())
    return context.page(
        request,
        "projects.html",
        projects=found,
        running=RUNNING,
        pending=PENDING,
        failed=FAILED,
    )


@pages.get("/agents")
async def agents(request: Request, context: Context) -> Response:
    """The agents; add, drain and remove them."""
    found = await context.queue.overview()
    pilots = await context.queue.query(lambda view: view_pilots(context.base))
    seen = fingerprint(found)
    return context.page(
        request, "agents.html", overview=found, pilots=pilots, seen=seen, verbs=GROUP_VERBS
    )


@pages.get("/pilots/{pilot}")
async def pilot(request: Request, context: Context, pilot: Run) -> Response:
    """One pilot: what is known of it, and the end of its log."""

    def read(view: QueueView) -> tuple[PilotRow | None, LogChunk]:
        rows = view_pilots(view.base, ended=1000).pilots
        row = next((row for row in rows if row.pilot == pilot), None)
        return row, read_log(view.base.root, row.log) if row else NOTHING

    row, log = await context.queue.query(read)
    if row is None:
        raise PostroomError(f"there is no pilot {pilot!r}")
    return context.page(request, "pilot.html", pilot=row, log=log)


@pages.get("/pilots/{pilot}/log")
async def pilot_log(context: Context, pilot: Run) -> Response:
    """The whole log of a pilot, as a file."""
    return _file(open_log(context.base.root, context.base.pilot_log(pilot)), f"{pilot}.log.txt")


@pages.get("/history")
async def history(
    request: Request, context: Context, span: Text = "", until: Moment = None
) -> Response:
    """Which job ran on which GPU, and when."""
    end = time.time() if until is None else max(until, LONGEST_HISTORY_S)
    await context.queue.overview()  # for the names of the GPUs
    length = SPANS.get(span, max(SPANS.values()))
    intervals = await context.queue.query(lambda view: view.history(since=end - length, until=end))
    if span not in SPANS:
        span = telling_span(intervals, end)
        length = SPANS[span]
        intervals = [one for one in intervals if _ends_after(one, end - length)]
    first = min((one.started_at for one in intervals), default=0.0)
    # What is empty before the first attempt is hardly drawn.
    shown_since = max(end - length, first - (end - first) / 30)
    return context.page(
        request,
        "history.html",
        chart=chart(intervals, shown_since, end, context.gpu_name),
        intervals=sorted(intervals, key=lambda one: -one.started_at)[:ON_PAGE],
        total=len(intervals),
        spans=list(SPANS),
        span=span,
        since=end - length,
        shown_since=shown_since,
        until=end,
        is_now=until is None,
        length=length,
    )


def telling_span(intervals: Sequence[Interval], end: float) -> str:
    """The shortest time range with enough in it to look at; a day where nothing ran."""
    enough = min(len(intervals), ENOUGH)
    for span, length in SPANS.items():
        if enough and sum(_ends_after(one, end - length) for one in intervals) >= enough:
            return span
    return "1d"


def _ends_after(interval: Interval, at: float) -> bool:
    return interval.ended_at is None or interval.ended_at >= at


@pages.get("/usage")
async def usage(
    request: Request, context: Context, span: Text = "7d", by: Text = "user"
) -> Response:
    """Who held GPUs, for how long, and how busy they were."""
    span, by = span if span in COLUMNS else "7d", by if by in BY else "user"
    await context.queue.overview()  # for the names of the GPUs
    past = await context.queue.query(lambda _: read_past(open_ledger()))
    return context.page(
        request,
        "usage.html",
        chart=usage_chart(past, SPANS[span], COLUMNS[span], by, context.gpu_name),
        spans=list(COLUMNS),
        span=span,
        bys=BY,
        by=by,
        height=CHART_HEIGHT,
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
