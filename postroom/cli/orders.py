"""What one asks of the Master: kill, hold, release, pause, resume, drain, priority, move."""

from __future__ import annotations

import click

from ..queue import actions
from ..queue.actions import QueueScope
from ..queue.queue_view import QueueView
from .queue_options import (
    CONTEXT,
    as_json,
    complete_jobs,
    in_base,
    job_argument,
    jobs_argument,
    one_job,
    settle,
    some_jobs,
)


@click.command(context_settings=CONTEXT)
@jobs_argument()
@as_json
@in_base
def kill(view: QueueView, jobs: tuple[str, ...], json_: bool) -> None:
    """End JOBs for good, running or waiting: SIGTERM, a grace, SIGKILL, the whole tree.

    \b
      postroom kill 0b859f/17
      postroom kill 0b859f/3-9     seven jobs
      postroom kill 0b859f         all jobs of the run
    """
    settle(view, actions.kill(view, some_jobs(view, jobs)), json_=json_)


@click.command(context_settings=CONTEXT)
@jobs_argument()
@as_json
@in_base
def hold(view: QueueView, jobs: tuple[str, ...], json_: bool) -> None:
    """Keep waiting JOBs from being begun, until `postroom release`."""
    settle(view, actions.hold(view, some_jobs(view, jobs)), json_=json_)


@click.command(context_settings=CONTEXT)
@jobs_argument()
@as_json
@in_base
def release(view: QueueView, jobs: tuple[str, ...], json_: bool) -> None:
    """Let held JOBs run."""
    settle(view, actions.release(view, some_jobs(view, jobs)), json_=json_)


@click.command(context_settings={**CONTEXT, "ignore_unknown_options": True})
@jobs_argument()
@click.argument("value", type=int)
@as_json
@in_base
def priority(view: QueueView, jobs: tuple[str, ...], value: int, json_: bool) -> None:
    """Give waiting JOBs the priority VALUE: higher goes first, 0 is usual, below 0 yields.

    \b
      postroom priority 0b859f/17 10
      postroom priority 0b859f/17 0b859f/20 -5
    """
    settle(view, actions.set_priority(view, some_jobs(view, jobs), value), json_=json_)


@click.command(context_settings=CONTEXT)
@job_argument
@click.argument("where", type=click.Choice(["first", "last", "before"]))
@click.argument("other", required=False, shell_complete=complete_jobs)
@as_json
@in_base
def move(view: QueueView, job: str, where: str, other: str | None, json_: bool) -> None:
    """Let waiting JOB stand elsewhere among those of its run and priority.

    \b
      postroom move 0b859f/17 first
      postroom move 0b859f/17 before 0b859f/3
      postroom move 0b859f/20-29 last
    """
    if (where == "before") != (other is not None):
        raise click.UsageError("write `move JOB first`, `move JOB last` or `move JOB before OTHER`")
    target = where if other is None else one_job(view, other)
    settle(view, actions.move(view, some_jobs(view, [job]), target), json_=json_)


def _scope(projects: tuple[str, ...], runs: tuple[str, ...]) -> QueueScope:
    return QueueScope(projects=projects, runs=runs)


_project_option = click.option("-P", "--project", "projects", multiple=True, help="Only this.")
_run_option = click.option("-r", "--run", "runs", multiple=True, help="Only this.")


@click.command(context_settings=CONTEXT)
@_project_option
@_run_option
@click.option("--preempt", is_flag=True, help="Stop what runs; it goes on from its checkpoint.")
@as_json
@in_base
def pause(
    view: QueueView, projects: tuple[str, ...], runs: tuple[str, ...], preempt: bool, json_: bool
) -> None:
    """Begin no more jobs; what runs goes on to its end, unless --preempt.

    \b
      postroom pause                   the whole queue
      postroom pause --project vae     one project
      postroom pause --preempt         and stop what runs: it is told by SIGTERM, may save to
                                       $POSTROOM_CHECKPOINT, and is queued again
    """
    settle(view, actions.pause(view, _scope(projects, runs), preempt), json_=json_)


@click.command(context_settings=CONTEXT)
@_project_option
@_run_option
@as_json
@in_base
def resume(view: QueueView, projects: tuple[str, ...], runs: tuple[str, ...], json_: bool) -> None:
    """Begin jobs again after `postroom pause`, in the same scope."""
    settle(view, actions.resume(view, _scope(projects, runs)), json_=json_)


@click.command(context_settings=CONTEXT)
@click.argument("agents", nargs=-1)
@click.option("--preempt", is_flag=True, help="Stop what they run; it goes on elsewhere.")
@click.option("--undo", is_flag=True, help="Give them jobs again.")
@as_json
@in_base
def drain(view: QueueView, agents: tuple[str, ...], preempt: bool, undo: bool, json_: bool) -> None:
    """Give AGENTS (all, when none is named) no more jobs: before a reboot, or to free a card.

    \b
      postroom drain 1                 agent 1 finishes its job, then rests
      postroom drain 1 --preempt       at once
      postroom drain 1 --undo          jobs again
    """
    if undo and preempt:
        raise click.UsageError("--undo gives jobs again, and stops none: leave out --preempt")
    answer = actions.fill(view, agents) if undo else actions.drain(view, agents, preempt)
    settle(view, answer, json_=json_)
