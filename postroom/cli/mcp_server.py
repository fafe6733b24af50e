"""`postroom mcp`: the queue for coding assistants, as a server of the Model Context Protocol.

It talks to the program that started it, over stdin and stdout, and to nobody else. Its tools read
the folders as the other verbs do, and write the same requests. Without --allow-submit there are
only tools that read.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from ..commands.spec import CommandSpec
from ..errors import PostroomError
from ..queue import actions
from ..queue.job_logs import Follower, PrintedLog, follow, path_of
from ..queue.job_words import job_named, jobs_named
from ..queue.queue_view import QueueView
from ..queue.submission import DEFAULT_PROJECT, check, submit
from ..store.base import Base, open_base
from ..store.kernel_output import OutputReader
from ..text.durations import parse_duration
from ..text.moments import parse_moment
from .job_options import some_jobs
from .options import CONTEXT, base_option
from .spec_options import with_options

MOST_LINES = 2000
ABOUT = (
    "The queue of GPU jobs of this user. Jobs are named as 0b859f/17, @ (the last one), @~1, a "
    "number of the last run, or a unique name. show_job tells why a job waits or failed."
)


@click.command(context_settings=CONTEXT)
@click.option("--allow-submit", is_flag=True, help="Also offer tools that submit, kill and rerun.")
@base_option
def command(base: str, allow_submit: bool) -> None:
    """Serve the queue to a coding assistant, by the Model Context Protocol, over stdin and stdout.

    Its tools list GPUs and jobs, show a job, say why it waits, and read its log; with
    --allow-submit they also submit, kill and rerun jobs. Needs the extra:
    pip install 'postroom[mcp]'

    \b
      claude mcp add postroom -- postroom mcp
      claude mcp add postroom -- postroom mcp --allow-submit
    """
    make_server(open_base(base, write=False), allow_submit=allow_submit).run("stdio")


def make_server(base: Base, *, allow_submit: bool) -> Any:
    """A server with the tools for one base."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise PostroomError("this verb needs the extra: pip install 'postroom[mcp]'") from None
    server = MCPServer("postroom", instructions=ABOUT, log_level="ERROR")
    tools = QueueTools(base)
    chosen: list[Callable[..., Any]] = [
        tools.list_gpus,
        tools.list_jobs,
        tools.show_job,
        tools.read_log,
    ]
    if allow_submit:
        chosen += [tools.submit_job, tools.edit_job, tools.kill_jobs, tools.rerun_jobs]
    for tool in chosen:
        server.tool()(_saying(tool, ToolError))
    return server


def _saying(tool: Callable[..., Any], error_type: type[Exception]) -> Callable[..., Any]:
    """A tool whose errors are told to the assistant in our words; others are bugs."""

    @functools.wraps(tool)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except PostroomError as error:
            raise error_type(str(error)) from None

    return wrapped


class QueueTools:
    """What an assistant can do; each call reads the base again."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def list_gpus(self) -> list[dict[str, Any]]:
        """List the GPUs of this machine: memory, use, and who uses each."""
        with QueueView(self._base) as view:
            return [dataclasses.asdict(card) for card in view.overview().cards]

    def list_jobs(
        self, state: str = "", project: str = "", text: str = "", count: int = 20
    ) -> list[dict[str, Any]]:
        """List jobs: running, then queued in their order, then ended, newest first.

        state: e.g. "running", "queued", "failed", "ok"; text: part of an id, name or command.
        """
        with QueueView(self._base) as view:
            page = view.jobs(state=state, project=project, text=text, count=max(1, min(count, 200)))
            return [dataclasses.asdict(job) for job in page.jobs]

    def show_job(self, job: str = "@") -> dict[str, Any]:
        """Show everything about a job: its state, why it waits (job.reason), why it failed
        (job.error, traceback), its attempts, and when it should start."""
        with QueueView(self._base) as view:
            return dataclasses.asdict(view.job(job_named(view, job)))

    def read_log(self, job: str = "@", lines: int = 100) -> str:
        """Read the last lines of a job's output, stdout and stderr."""
        with QueueView(self._base) as view:
            found = job_named(view, job)
            lines = max(1, min(lines, MOST_LINES))
            path = path_of(view.job(found))
            reader = OutputReader(view.base, found.run, found.number, err=False)
            log = Follower(path, lines) if path else PrintedLog(reader, lines, None)
            blocks = follow(log, over=lambda: True, pause=lambda: None)
            return b"".join(blocks).decode(errors="replace")

    def submit_job(
        self,
        command: str,
        cwd: str = "",
        name: str = "",
        project: str = DEFAULT_PROJECT,
        priority: int = 0,
        gpus: int = 1,
        time_limit: str = "",
        after: list[str] | None = None,
        begin: str = "",
        require: str = "",
    ) -> str:
        """Queue a shell command, and return its id.

        time_limit: as 90s, 30m, 2h; begin: not before 22:00 or now+2h; require: kinds of GPUs, as
        'A100|24G'.
        """
        with QueueView(self._base) as view:
            given = {"name": name, "priority": priority, "gpus": gpus, "after": after or []}
            given |= _values(time_limit=time_limit, begin=begin, require=require)
            spec = CommandSpec(command, cwd=os.path.abspath(cwd or os.getcwd()))
            spec = check(with_options(spec, given, partial(some_jobs, view)))
            return submit(view.files, view.base, [spec], project=project)[0].short

    def edit_job(
        self,
        job: str,
        command: str = "",
        name: str = "",
        priority: int | None = None,
        time_limit: str = "",
        begin: str = "",
        require: str = "",
    ) -> str:
        """Change a waiting job: what is given replaces what it has. It keeps its id."""
        with QueueView(self._base) as view:
            given = _values(time_limit=time_limit, begin=begin, require=require)
            given |= {} if priority is None else {"priority": priority}
            given |= {"name": name} if name else {}

            def change(spec: CommandSpec) -> CommandSpec:
                spec = with_options(spec, given, partial(some_jobs, view))
                return dataclasses.replace(spec, command=command) if command else spec

            result = actions.edit(view, [job_named(view, job)], change)
            done = actions.wait_settled(view, result, timeout_s=10.0)
            return result.text + ("" if done else "; the scheduler has not answered yet")

    def kill_jobs(self, jobs: list[str]) -> str:
        """Kill running jobs, cancel waiting ones."""
        return self._settle(actions.kill, jobs)

    def rerun_jobs(self, jobs: list[str]) -> str:
        """Queue jobs again, as new ones; the answer names their ids."""
        return self._settle(actions.rerun, jobs)

    def _settle(self, act: Callable[..., actions.ActionResult], words: list[str]) -> str:
        with QueueView(self._base) as view:
            found = [job for word in words for job in jobs_named(view, word)]
            result = act(view, found)
            done = actions.wait_settled(view, result, timeout_s=10.0)
            new = f": {' '.join(job.short for job in result.jobs)}" if result.jobs else ""
            return result.text + new + ("" if done else "; the scheduler has not answered yet")


def _values(*, time_limit: str, begin: str, require: str) -> dict[str, Any]:
    """Those of the options that were given, as `with_options` takes them."""
    found: dict[str, Any] = {"require": require} if require else {}
    if time_limit:
        found["time_limit"] = parse_duration(time_limit)
    if begin:
        found["begin"] = parse_moment(begin, time.time())
    return found
