"""What forms ask for: every change comes in here, by POST, and leaves as a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from ..errors import PostroomError
from ..store.job_ids import JobId
from .context import In, PageContext
from .format import sentence
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
from .request_guard import fields_of
from .submit_plan import Commands, Sweep, commands_of, specs_of, sweep_of

forms = APIRouter(include_in_schema=False)

SHOWN = 200
_BACK = re.compile(r"/(?:[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*)?")
USUAL = {
    "commands": "",
    "template": "",
    "values": "",
    "where": "",
    "name": "",
    "project": "",
    "cwd": "",
    "env": "",
    "timeout": "",
    "retries": "0",
    "priority": "0",
    "gpus": "1",
    "memory": "",
    "after": "",
    "held": "",
}


@forms.get("/submit")
async def submit_form(request: Request, context: In) -> Response:
    """The form that queues commands."""
    return await _show(context, request, "submit.html", {})


@forms.get("/sweep")
async def sweep_form(request: Request, context: In) -> Response:
    """The form that queues a sweep."""
    return await _show(context, request, "sweep.html", {})


@forms.post("/submit")
async def submit(request: Request, context: In) -> Response:
    """Queue commands, or show what would be queued."""
    return await _plan(context, request, "submit.html", commands_of)


@forms.post("/sweep")
async def sweep(request: Request, context: In) -> Response:
    """Queue a sweep, or show what would be queued."""
    return await _plan(context, request, "sweep.html", sweep_of)


@forms.post("/jobs/act")
async def act_on_jobs(request: Request, context: In) -> Response:
    """Kill, hold, release, rerun, move jobs, or give them a priority."""
    fields = fields_of(await request.body())
    back = _back(fields, "/jobs")
    try:
        verb = JobVerb(_one(fields, "verb"))
        jobs = [JobId.parse(text) for text in fields.get("job", [])]
        if not jobs:
            raise PostroomError("no job was chosen")
        text = _one(fields, "value")
        if text and not re.fullmatch(r"-?\d{1,7}", text, re.ASCII):
            raise PostroomError(f"{text[:20]!r} is no priority: it is a whole number")
        act = await ask_jobs(context, verb, jobs, int(text) if text else None)
    except (PostroomError, ValueError) as error:
        return _go(back, context.leave_note(sentence(error), kind="bad"))
    if len(act.jobs) == 1:
        back = f"/jobs/{act.jobs[0]}"
    return _go(back, _note(context, act))


@forms.post("/queue/act")
async def act_on_queue(request: Request, context: In) -> Response:
    """Pause or resume the queue, a project or a run."""
    fields = fields_of(await request.body())
    back = _back(fields, "/")
    try:
        verb = QueueVerb(_one(fields, "verb"))
        scope = scope_of(_one(fields, "project"), _one(fields, "run"))
        act = await ask_queue(context, verb, scope, preempt=_one(fields, "preempt") == "on")
    except (PostroomError, ValueError) as error:
        return _go(back, context.leave_note(sentence(error), kind="bad"))
    return _go(back, _note(context, act))


@forms.post("/agents/act")
async def act_on_agents(request: Request, context: In) -> Response:
    """Drain agents, fill them again, have them go, or have new ones."""
    fields = fields_of(await request.body())
    try:
        if gpus := _one(fields, "gpus").strip():
            return _go("/agents", _note(context, await add_agents(context, gpus)))
        verb = AgentVerb(_one(fields, "verb"))
        agents = fields.get("agent", [])
        act = await ask_agents(context, verb, agents, preempt=_one(fields, "preempt") == "on")
    except (PostroomError, ValueError) as error:
        return _go("/agents", context.leave_note(sentence(error), kind="bad"))
    return _go("/agents", _note(context, act))


@forms.post("/login")
async def login(request: Request, context: In) -> Response:
    """Exchange the token for the cookie."""
    token = _one(fields_of(await request.body()), "token").strip()
    found = re.search(r"[?&]token=([^&\s]+)", token)  # the whole address may be pasted
    if not context.keys.opens(found[1] if found else token):
        return RedirectResponse("/", 303)
    answer = RedirectResponse("/", 303)
    answer.headers["set-cookie"] = context.keys.set_cookie()
    return answer


async def _plan(
    context: PageContext,
    request: Request,
    template: str,
    read: Callable[[Mapping[str, str]], Commands | Sweep],
) -> Response:
    fields = {name: texts[0] for name, texts in fields_of(await request.body()).items()}
    try:
        wanted = read(fields)
        asks = await context.reader.look(
            lambda _: specs_of(context.reader.files, context.base, wanted, context.here)
        )
        if fields.get("action") != "queue":
            plan = {"asks": asks[:SHOWN], "count": len(asks), "project": wanted.project}
            return await _show(context, request, template, fields, plan=plan)
        ids = await queue_up(context, asks, wanted.project)
    except PostroomError as error:
        return await _show(context, request, template, fields, error=sentence(error))
    if len(ids) == 1:
        return _go(f"/jobs/{ids[0]}", context.leave_note(f"Queued as {ids[0].short}."))
    text = f"Queued {len(ids)} jobs: {ids[0].short} to {ids[-1].short}."
    return _go("/jobs", context.leave_note(text), run=ids[0].run)


async def _show(
    context: PageContext,
    request: Request,
    template: str,
    fields: Mapping[str, str],
    *,
    plan: dict[str, object] | None = None,
    error: str = "",
) -> Response:
    projects = await context.reader.look(lambda view: view.projects())
    return context.page(
        request,
        template,
        status=400 if error else 200,
        fields={**USUAL, "cwd": context.here, **fields},
        projects=projects,
        plan=plan,
        error=error,
    )


def _one(fields: Mapping[str, list[str]], name: str) -> str:
    return fields.get(name, [""])[0]


def _back(fields: Mapping[str, list[str]], usual: str) -> str:
    """Where the form stood: a path of this page, and no address of another."""
    path = _one(fields, "back")
    return path if _BACK.fullmatch(path) else usual


def _go(path: str, note: str, **query: str) -> Response:
    return RedirectResponse(f"{path}?{urlencode({**query, 'note': note})}", 303)


def _note(context: PageContext, act: PageAction) -> str:
    return context.leave_note(sentence(act.text))
