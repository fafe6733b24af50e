"""`postroom edit`: change jobs that wait."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from ..commands.spec import CommandSpec
from ..queue import actions
from ..queue.queue_view import QueueView
from ..store.edited_jobs import list_edited
from .job_options import complete_jobs, in_base, some_jobs
from .options import CONTEXT, as_json
from .output import settle, talk
from .spec_options import OPTION_NAMES, changed_options, with_options


@click.command(context_settings=CONTEXT)
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.argument("words", nargs=-1, metavar="[-- CMD...]")
@click.option("-P", "--project", default="", help="Queue it in this project, with a new id.")
@changed_options
@as_json
@in_base
def command(
    view: QueueView,
    job: str,
    words: tuple[str, ...],
    project: str,
    json_: bool,
    **options: Any,
) -> None:
    """Change a waiting JOB: the options that are given, and the command after --.

    It keeps its id, its place, and the jobs that wait for it. With neither option nor command, the
    command is opened in $EDITOR. Options mean what they mean for `postroom submit`. `-t 0` removes
    the time limit, `--begin now` removes the start time, and -e adds variables.

    \b
      postroom edit 17 -t 4h --priority 5
      postroom edit 17 -- python train.py --lr 0.1
      postroom edit 0b859f/3-9 --require 'A100|40G'
      postroom edit 17 --project vae
    """
    ctx = click.get_current_context()
    given = {
        name: options[name]
        for name in OPTION_NAMES
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if given.get("time_limit") == 0:
        given["time_limit"] = None
    jobs = some_jobs(view, [job])
    text = words[0] if len(words) == 1 else shlex.join(words)
    if not (given or words or project):
        text = _from_editor(view.job(jobs[0]).job.command, alone=len(jobs) == 1)

    def change(spec: CommandSpec) -> CommandSpec:
        spec = with_options(spec, given, partial(some_jobs, view))
        return replace(spec, command=text) if text else spec

    if project:
        settle(view, actions.edit_project(view, jobs, project, change), json_=json_)
        return
    before = {run: set(list_edited(view.files, view.base, run)) for run in {j.run for j in jobs}}
    answer = actions.edit(view, jobs, change)
    settle(view, answer, json_=json_)
    if view.read_state().master_pid is not None:
        for one in answer.jobs:
            changed = list_edited(view.files, view.base, one.run)
            if one.number not in changed and one.number not in before[one.run]:
                talk(f"job {one.short} had begun before: it is not changed")


def _from_editor(command: str, *, alone: bool) -> str:
    if not alone or not sys.stdin.isatty():
        raise click.UsageError("say what to change: an option, or a command after --")
    edited = (click.edit(f"{command}\n") or "").strip()
    if not edited or edited == command:
        raise click.UsageError("the command was left as it is: nothing is changed")
    return edited
