"""The forms of the page. Every change arrives here, by POST, and becomes a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from ..commands.spec import CommandSpec
from ..errors import PostroomError
from ..pilots.group_verbs import change_pilots
from ..queue.actions import ACTIONS, ActionInput, waiting_command
from ..store.job_ids import JobId
from .api import MOST_NAMED, scope_of
from .context import AppContext, Context
from .format import sentence
from .request_guard import fields_of
from .submit_plan import (
    SHELL,
    Commands,
    Sweep,
    commands_of,
    edit_form_of,
    edited,
    form_of,
    specs_of,
    sweep_of,
)

forms = APIRouter(include_in_schema=False)

SHOWN = 200
_BACK = re.compile(r"/(?:[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*)?(?:\?[A-Za-z0-9_.~%&=+/-]*)?")
_PAGE_OF = {"jobs": "/jobs", "queue": "/", "agents": "/agents", "gpus": "/agents"}
# What the fields of both forms hold at first. `whole`: all lines are one command; `again`: the job
# that this one is like; `edit`: the waiting job that is changed.
_EMPTY = (
    "commands template values where name project cwd env time_limit grace memory over only_on "
    "require begin after after_any hold container array limit stop_after_failures snapshot "
    "split_output notify whole again edit"
)
DEFAULTS = {
    **dict.fromkeys(_EMPTY.split(), ""),
    "retries": "0",
    "priority": "0",
    "gpus": "1",
    "shell": SHELL,
}


@forms.get("/submit")
async def submit_form(
    request: Request,
    context: Context,
    again: Annotated[str, Query(max_length=200)] = "",
    edit: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """The form that queues commands.

    It is filled in with those of an earlier job, to run it again, or of a waiting one, to edit it.
    """
    fields = {}
    if edit:
        job, spec, project = await context.queue.query(
            lambda view: waiting_command(view, _job(edit))
        )
        fields = {**edit_form_of(spec, project), "edit": str(job)}
    elif again:
        job, spec, project = await context.queue.query(lambda view: view.command(_job(again)))
        fields = {**form_of(spec, project), "again": str(job)}
    return await _form_page(context, request, "submit.html", fields)


@forms.get("/sweep")
async def sweep_form(request: Request, context: Context) -> Response:
    """The form that queues a sweep."""
    return await _form_page(context, request, "sweep.html", {})


@forms.post("/submit")
async def submit(request: Request, context: Context) -> Response:
    """Queue commands, or show a preview."""
    return await _submit(context, request, "submit.html", commands_of)


@forms.post("/sweep")
async def sweep(request: Request, context: Context) -> Response:
    """Queue a sweep, or show a preview."""
    return await _submit(context, request, "sweep.html", sweep_of)


@forms.post("/act")
async def act(request: Request, context: Context) -> Response:
    """Do what a button says: one verb of the queue, with its jobs, scope, agents or GPUs."""
    fields = fields_of(await request.body())
    # A button may name the value too, as in "move first".
    verb, _, value = _one(fields, "verb").partition(" ")
    target = ACTIONS[verb].target if verb in ACTIONS else "jobs"
    back = _back(fields, _PAGE_OF[target])
    try:
        what = ActionInput(
            jobs=await _chosen(context, fields),
            scope=scope_of(_one(fields, "project"), _one(fields, "run")),
            agents=fields.get("agent", []),
            value=value or _value(verb, _one(fields, "value").strip()),
            preempt=_one(fields, "preempt") == "on",
        )
        if target == "jobs" and not what.jobs:
            raise PostroomError("no job is selected")
        result, _ = await context.queue.act(target, verb, what)
    except (PostroomError, ValueError) as error:
        return _redirect(back, context.leave_note(sentence(error), kind="bad"))
    if len(result.jobs) == 1 and back.startswith("/jobs/"):
        back = f"/jobs/{result.jobs[0]}"
    return _redirect(back, context.leave_note(sentence(result.text)))


@forms.post("/pilots")
async def act_on_pilots(request: Request, context: Context) -> Response:
    """Do what a button says to a group of pilots."""
    fields = fields_of(await request.body())
    try:
        done = await context.queue.query(
            lambda view: change_pilots(view.base, _one(fields, "verb"), fields.get("group", []))
        )
    except PostroomError as error:
        return _redirect("/agents", context.leave_note(sentence(error), kind="bad"))
    return _redirect("/agents", context.leave_note(sentence(done)))


@forms.post("/login")
async def login(request: Request, context: Context) -> Response:
    """Set the cookie for a browser that sent the token."""
    token = _one(fields_of(await request.body()), "token").strip()
    found = re.search(r"[?&]token=([^&\s]+)", token)  # somebody may paste the whole address
    answer = RedirectResponse("/", 303)
    if right := context.token.opens(found[1] if found else token):
        answer.headers["set-cookie"] = context.token.set_cookie(right)
    return answer


async def _chosen(context: AppContext, fields: Mapping[str, list[str]]) -> list[JobId]:
    """The jobs that are selected one by one, or all that match the filter of the list."""
    if "every" not in fields:
        return [JobId.parse(text) for text in fields.get("job", [])]
    asked = {name: texts[0] for name, texts in parse_qs(_one(fields, "every")).items()}
    return await context.queue.query(
        lambda view: view.matching(
            state=asked.get("state", ""),
            project=asked.get("project", ""),
            run=asked.get("run", ""),
            text=asked.get("text", ""),
            most=MOST_NAMED,
        )
    )


async def _submit(
    context: AppContext,
    request: Request,
    template: str,
    read: Callable[[Mapping[str, str]], Commands | Sweep],
) -> Response:
    fields = {name: texts[0] for name, texts in fields_of(await request.body()).items()}
    try:
        wanted = read(fields)
        asks = await context.queue.query(lambda view: specs_of(view, wanted, context.here))
        if fields.get("edit"):
            return await _edit(context, _job(fields["edit"]), asks, wanted.project)
        if fields.get("action") != "queue":
            plan = {"asks": asks[:SHOWN], "count": len(asks), "project": wanted.project}
            return await _form_page(context, request, template, fields, plan=plan)
        again = _job(fields["again"]) if fields.get("again") else None
        ids = await context.queue.submit(asks, wanted, again)
    except PostroomError as error:
        return await _form_page(context, request, template, fields, error=sentence(error))
    if len(ids) == 1:
        return _redirect(f"/jobs/{ids[0]}", context.leave_note(f"Queued as {ids[0].short}."))
    text = f"Queued {len(ids)} jobs: {ids[0].short} to {ids[-1].short}."
    return _redirect("/jobs", context.leave_note(text), run=ids[0].run)


async def _edit(
    context: AppContext, job: JobId, asks: Sequence[CommandSpec], project: str
) -> Response:
    """Change a waiting job."""
    if len(asks) != 1:
        raise PostroomError("one job is edited: write one command")
    done = await context.queue.edit(job, lambda spec: edited(spec, asks[0]), project)
    return _redirect(f"/jobs/{done.jobs[0]}", context.leave_note(sentence(done.text)))


async def _form_page(
    context: AppContext,
    request: Request,
    template: str,
    fields: Mapping[str, str],
    *,
    plan: dict[str, object] | None = None,
    error: str = "",
) -> Response:
    projects = await context.queue.query(lambda view: view.projects())
    defaults = {**DEFAULTS, "cwd": context.here}
    return context.page(
        request,
        template,
        status=400 if error else 200,
        fields={**defaults, **fields},
        defaults=defaults,
        projects=projects,
        plan=plan,
        error=error,
    )


def _value(verb: str, text: str) -> int | str | None:
    """The value field: a number for a priority or a limit; else as it was written."""
    if verb == "limit":
        text = text or "0"
    if verb not in ("priority", "limit") or not text:
        return text or None
    if not re.fullmatch(r"-?\d{1,7}", text, re.ASCII):
        raise PostroomError(f"{text[:20]!r} is not a {verb}: it is a whole number")
    return int(text)


def _job(text: str) -> JobId:
    try:
        return JobId.parse(text)
    except ValueError as error:
        raise PostroomError(str(error)) from None


def _one(fields: Mapping[str, list[str]], name: str) -> str:
    return fields.get(name, [""])[0]


def _back(fields: Mapping[str, list[str]], default: str) -> str:
    """The page that the form is on, with its filter: of this server, never another address."""
    path = _one(fields, "back")
    return path if _BACK.fullmatch(path) else default


def _redirect(path: str, note: str, **query: str) -> Response:
    joint = "&" if "?" in path else "?"
    return RedirectResponse(f"{path}{joint}{urlencode({**query, 'note': note})}", 303)
