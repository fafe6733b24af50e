"""What forms ask for: every change comes in here, by POST, and leaves as a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from ..errors import PostroomError
from ..ids import JobId
from .deeds import (
    AgentVerb,
    Deed,
    JobVerb,
    QueueVerb,
    add_agents,
    ask_agents,
    ask_jobs,
    ask_queue,
    queue_up,
    scope_of,
)
from .office import In, Office
from .plan import Commands, Sweep, asks_of, commands_of, sweep_of
from .safety import fields_of
from .words import sentence

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
async def submit_form(request: Request, office: In) -> Response:
    """The form that queues commands."""
    return await _show(office, request, "submit.html", {})


@forms.get("/sweep")
async def sweep_form(request: Request, office: In) -> Response:
    """The form that queues a sweep."""
    return await _show(office, request, "sweep.html", {})


@forms.post("/submit")
async def submit(request: Request, office: In) -> Response:
    """Queue commands, or show what would be queued."""
    return await _plan(office, request, "submit.html", commands_of)


@forms.post("/sweep")
async def sweep(request: Request, office: In) -> Response:
    """Queue a sweep, or show what would be queued."""
    return await _plan(office, request, "sweep.html", sweep_of)


@forms.post("/jobs/act")
async def act_on_jobs(request: Request, office: In) -> Response:
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
        deed = await ask_jobs(office, verb, jobs, int(text) if text else None)
    except (PostroomError, ValueError) as error:
        return _go(back, office.leave_note(sentence(error), kind="bad"))
    if len(deed.jobs) == 1:
        back = f"/jobs/{deed.jobs[0]}"
    return _go(back, _note(office, deed))


@forms.post("/queue/act")
async def act_on_queue(request: Request, office: In) -> Response:
    """Pause or resume the queue, a project or a run."""
    fields = fields_of(await request.body())
    back = _back(fields, "/")
    try:
        verb = QueueVerb(_one(fields, "verb"))
        scope = scope_of(_one(fields, "project"), _one(fields, "run"))
        deed = await ask_queue(office, verb, scope, preempt=_one(fields, "preempt") == "on")
    except (PostroomError, ValueError) as error:
        return _go(back, office.leave_note(sentence(error), kind="bad"))
    return _go(back, _note(office, deed))


@forms.post("/agents/act")
async def act_on_agents(request: Request, office: In) -> Response:
    """Drain agents, fill them again, have them go, or have new ones."""
    fields = fields_of(await request.body())
    try:
        if gpus := _one(fields, "gpus").strip():
            return _go("/agents", _note(office, await add_agents(office, gpus)))
        verb = AgentVerb(_one(fields, "verb"))
        agents = fields.get("agent", [])
        deed = await ask_agents(office, verb, agents, preempt=_one(fields, "preempt") == "on")
    except (PostroomError, ValueError) as error:
        return _go("/agents", office.leave_note(sentence(error), kind="bad"))
    return _go("/agents", _note(office, deed))


@forms.post("/login")
async def login(request: Request, office: In) -> Response:
    """Exchange the token for the cookie."""
    token = _one(fields_of(await request.body()), "token").strip()
    found = re.search(r"[?&]token=([^&\s]+)", token)  # the whole address may be pasted
    if not office.keys.opens(found[1] if found else token):
        return RedirectResponse("/", 303)
    answer = RedirectResponse("/", 303)
    answer.headers["set-cookie"] = office.keys.set_cookie()
    return answer


async def _plan(
    office: Office,
    request: Request,
    template: str,
    read: Callable[[Mapping[str, str]], Commands | Sweep],
) -> Response:
    fields = {name: texts[0] for name, texts in fields_of(await request.body()).items()}
    try:
        wanted = read(fields)
        asks = await office.reader.look(
            lambda _: asks_of(office.reader.files, office.base, wanted, office.here)
        )
        if fields.get("action") != "queue":
            plan = {"asks": asks[:SHOWN], "count": len(asks), "project": wanted.project}
            return await _show(office, request, template, fields, plan=plan)
        ids = await queue_up(office, asks, wanted.project)
    except PostroomError as error:
        return await _show(office, request, template, fields, error=sentence(error))
    if len(ids) == 1:
        return _go(f"/jobs/{ids[0]}", office.leave_note(f"Queued as {ids[0].short}."))
    text = f"Queued {len(ids)} jobs: {ids[0].short} to {ids[-1].short}."
    return _go("/jobs", office.leave_note(text), run=ids[0].run)


async def _show(
    office: Office,
    request: Request,
    template: str,
    fields: Mapping[str, str],
    *,
    plan: dict[str, object] | None = None,
    error: str = "",
) -> Response:
    projects = await office.reader.look(lambda view: view.projects())
    return office.page(
        request,
        template,
        status=400 if error else 200,
        fields={**USUAL, "cwd": office.here, **fields},
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


def _note(office: Office, deed: Deed) -> str:
    return office.leave_note(sentence(deed.text))
