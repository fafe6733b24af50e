"""What can be asked for one command: the options that `submit` and `edit` share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from ..commands.spec import GRACE_S, OVER, CommandSpec
from ..errors import PostroomError
from ..store.job_ids import JobId
from ..store.scheduling import check_require
from ..text.option_values import environment
from .job_options import complete_jobs
from .options import duration, moment

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = [
    click.option("-n", "--name", default="", help="Name of the job."),
    click.option("-p", "--priority", type=int, default=0, help="Higher goes first.  [default: 0]"),
    click.option(
        "-g",
        "--gpus",
        type=click.IntRange(0),
        default=1,
        show_default=True,
        metavar="N",
        help="How many GPUs it needs.",
    ),
    click.option(
        "--where",
        type=click.Choice(["local", "slurm", "ray"]),
        help="Run it only on this host, or only on such pilots.",
    ),
    click.option(
        "-m",
        "--memory",
        metavar="SIZE",
        help="Share a GPU: reserve 8G of it, or auto; with -g 2, what each GPU must have.",
    ),
    click.option(
        "--over",
        type=click.Choice(OVER),
        help="If it uses more GPU memory than is reserved: warn, limit it, or kill it."
        "  [default: warn]",
    ),
    click.option(
        "-t", "--time-limit", type=duration, metavar="TIME", help="End it after TIME: 90s, 30m, 2h."
    ),
    click.option(
        "--retries", type=click.IntRange(0), default=0, help="How often to retry after a failure."
    ),
    click.option(
        "--grace",
        type=duration,
        metavar="TIME",
        help="Time from SIGTERM to SIGKILL.  [default: 10s]",
    ),
    click.option(
        "-a",
        "--after",
        multiple=True,
        metavar="JOB",
        shell_complete=complete_jobs,
        help="Start after JOB has succeeded; cancel if it fails.",
    ),
    click.option(
        "--after-any",
        multiple=True,
        metavar="JOB",
        shell_complete=complete_jobs,
        help="Start after JOB has ended, successfully or not.",
    ),
    click.option(
        "--begin",
        type=moment,
        metavar="WHEN",
        help="Start it at WHEN or later: 22:00, 'fri 20:00', now+2h.",
    ),
    click.option(
        "--require",
        default="",
        metavar="KIND",
        help="Run it only on such GPUs: 'A100|H100', or '24G'.",
    ),
    click.option(
        "-C", "--cwd", type=click.Path(), help="Folder to run in.  [default: this folder]"
    ),
    click.option(
        "-e", "--env", multiple=True, metavar="NAME=VALUE", help="Set an environment variable."
    ),
    click.option("--shell", default="bash", show_default=True, help="The shell that runs it."),
    click.option(
        "--container",
        default="",
        metavar="IMAGE",
        help="Run it in a container: podman, docker or apptainer.",
    ),
]
OPTION_NAMES = (
    "name", "priority", "gpus", "where", "memory", "over", "time_limit", "retries", "grace",
    "after", "after_any", "begin", "require", "cwd", "env", "shell", "container",
)  # fmt: skip


def spec_options(function: F) -> F:
    """Add the options of one command."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def changed_options(function: F) -> F:
    """Add the same options, without defaults: what is not given stays as it is."""
    function = spec_options(function)
    own = getattr(function, "__click_params__")[-len(OPTIONS) :]  # noqa: B009 — set by click
    for option in own:
        option.help, option.show_default = option.help.partition("  [default")[0], False
    return function


def with_options(
    spec: CommandSpec, given: Mapping[str, Any], named: Callable[[Sequence[str]], Sequence[JobId]]
) -> CommandSpec:
    """A command with what the given options say; what is not among them stays as it is.

    `named` finds the jobs that words mean.
    """
    own: dict[str, Any] = {}
    memory = spec.memory
    scheduling: dict[str, Any] = {}
    for option, value in given.items():
        match option:
            case "name" | "retries" | "shell" | "container":
                own[option] = value
            case "cwd":
                own["cwd"] = os.path.abspath(value) if value else spec.cwd
            case "env":
                own["env"] = {**spec.env, **environment(value)}
            case "time_limit":
                own["timeout_s"] = value
            case "grace":
                own["grace_s"] = GRACE_S if value is None else value
            case "priority" | "gpus":
                scheduling[option] = value
            case "where":
                scheduling["where"] = value or ""
            case "memory":
                memory = value or ""
            case "over":
                own["over"] = value or ""
            case "require":
                scheduling["require"] = check_require(value)
            case "begin":
                scheduling["begin_at"] = value if value and value > time.time() else 0.0
            case "after" | "after_any":
                scheduling[option] = tuple(named(value)) if value else ()
            case _:
                raise PostroomError(f"{option!r} is not an option of a command")
    spec = replace(spec, **own)
    # How long it can take: a job is begun before a reservation only if that is known.
    lasts_s = 0.0 if spec.timeout_s is None else spec.timeout_s + spec.grace_s
    spec = replace(spec, scheduling=replace(spec.scheduling, **scheduling, lasts_s=lasts_s))
    return spec.with_memory(memory) if "memory" in given or spec.memory else spec
