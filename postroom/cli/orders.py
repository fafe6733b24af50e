"""Requests to the scheduler: kill, hold, release, priority, move, pause, resume, drain."""

from __future__ import annotations

import click

from ..queue import actions
from ..queue.actions import QueueScope
from ..queue.queue_view import QueueView
from .job_options import (
    complete_jobs,
    in_base,
    job_argument,
    jobs_argument,
    one_job,
    some_jobs,
)
from .options import CONTEXT, as_json
from .output import settle


@click.command(context_settings=CONTEXT)
@jobs_argument()
@as_json
@in_base
def kill(view: QueueView, jobs: tuple[str, ...], json_: bool) -> None:
    """Kill running JOBs with all their child processes, and cancel waiting ones.

    A running job gets SIGTERM, and SIGKILL after its grace time.

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
    """Keep waiting JOBs from starting until `postroom release`.

    \b
      postroom hold 0b859f/17
    """
    settle(view, actions.hold(view, some_jobs(view, jobs)), json_=json_)


@click.command(context_settings=CONTEXT)
@jobs_argument()
@as_json
@in_base
def release(view: QueueView, jobs: tuple[str, ...], json_: bool) -> None:
    """Let held JOBs start.

    \b
      postroom release 0b859f/17
    """
    settle(view, actions.release(view, some_jobs(view, jobs)), json_=json_)


@click.command(context_settings={**CONTEXT, "ignore_unknown_options": True})
@jobs_argument()
@click.argument("value", type=int)
@as_json
@in_base
def priority(view: QueueView, jobs: tuple[str, ...], value: int, json_: bool) -> None:
    """Set the priority of waiting JOBs: the higher VALUE starts first; the default is 0.

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
    """Move a waiting JOB within its run, among jobs of the same priority.

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


_project_option = click.option(
    "-P", "--project", "projects", multiple=True, help="Only this project; may be repeated."
)
_run_option = click.option(
    "-r", "--run", "runs", multiple=True, help="Only this run; may be repeated."
)


@click.command(context_settings=CONTEXT)
@_project_option
@_run_option
@click.option("--preempt", is_flag=True, help="Also stop and requeue running jobs.")
@as_json
@in_base
def pause(
    view: QueueView, projects: tuple[str, ...], runs: tuple[str, ...], preempt: bool, json_: bool
) -> None:
    """Start no more jobs until `postroom resume`; running jobs continue, unless --preempt.

    With --preempt, a running job gets SIGTERM, can save to $POSTROOM_CHECKPOINT, and is requeued.

    \b
      postroom pause                   the whole queue
      postroom pause --project vae     one project
      postroom pause --preempt         and stop running jobs
    """
    settle(view, actions.pause(view, _scope(projects, runs), preempt), json_=json_)


@click.command(context_settings=CONTEXT)
@_project_option
@_run_option
@as_json
@in_base
def resume(view: QueueView, projects: tuple[str, ...], runs: tuple[str, ...], json_: bool) -> None:
    """Start jobs again after `postroom pause`; name the same project or run.

    \b
      postroom resume
      postroom resume --project vae
    """
    settle(view, actions.resume(view, _scope(projects, runs)), json_=json_)


@click.command(context_settings=CONTEXT)
@click.argument("project", required=False, default="")
@click.argument("most", type=click.IntRange(0), metavar="[N]", required=False)
@click.option(
    "--stop-after-failures",
    "failures",
    type=click.IntRange(0),
    metavar="N",
    help="Pause PROJECT after N failures in a row; without PROJECT, the whole queue. 0: never.",
)
@as_json
@in_base
def limit(
    view: QueueView, project: str, most: int | None, failures: int | None, json_: bool
) -> None:
    """Let at most N jobs of PROJECT run at once, from now on; 0 removes the limit.

    Running jobs continue. The limit applies to jobs that are submitted later, too. What
    --stop-after-failures has paused continues after `postroom resume`.

    \b
      postroom limit vae 2
      postroom limit vae 0
      postroom limit vae --stop-after-failures 3
      postroom limit --stop-after-failures 10      the whole queue
    """
    if (most is None and failures is None) or (most is not None and not project):
        raise click.UsageError("write `limit PROJECT N`, or give --stop-after-failures N")
    if most is not None:
        settle(view, actions.limit(view, project, most), json_=json_)
    if failures is not None:
        settle(view, actions.stop_after_failures(view, project, failures), json_=json_)


@click.command(context_settings=CONTEXT)
@click.argument("agents", nargs=-1, metavar="[AGENT...]")
@click.option("--preempt", is_flag=True, help="Stop now; the running job is requeued.")
@click.option("--undo", is_flag=True, help="Give the agents jobs again.")
@as_json
@in_base
def drain(view: QueueView, agents: tuple[str, ...], preempt: bool, undo: bool, json_: bool) -> None:
    """Give agents no more jobs, before a reboot or to free a GPU; without AGENT, all of them.

    \b
      postroom drain 1                 agent 1 finishes its job, then stays idle
      postroom drain 1 --preempt       agent 1 stops now; its job is requeued
      postroom drain 1 --undo          agent 1 gets jobs again
    """
    if undo and preempt:
        raise click.UsageError("--undo and --preempt contradict each other: give one of them")
    answer = actions.fill(view, agents) if undo else actions.drain(view, agents, preempt)
    settle(view, answer, json_=json_)
