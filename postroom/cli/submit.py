"""`postroom submit`: queue commands."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from ..commands.command_source import read_lines
from ..commands.spec import GRACE_S, CommandSpec
from ..errors import PostroomError
from ..queue.estimate import NOBODY_HAS
from ..queue.notices import notify_of
from ..queue.notify import check_target
from ..queue.queue_view import QueueView
from ..queue.submission import DEFAULT_PROJECT, check, submit
from ..store.files import LocalFiles, new_token
from ..store.job_ids import JobId
from ..store.pilot_records import has_pilots
from ..store.scheduling import PROJECT_GROUP, SchedulingOptions, check_require
from ..store.snapshot import DEAD
from ..text.memory_sizes import to_mib
from ..text.option_values import environment
from .job_options import complete_jobs, in_new_base, make_base, some_jobs
from .options import CONTEXT, as_json, duration, limited_array, moment
from .output import print_json, print_table, talk
from .wait import wait_for


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, metavar="CMD...")
@click.option(
    "-f",
    "--file",
    type=click.File("r", errors="surrogateescape"),
    help="Queue every line of a file; - for stdin.",
)
@click.option("-n", "--name", default="", help="Name of the job.")
@click.option("-P", "--project", default=DEFAULT_PROJECT, show_default=True)
@click.option("-p", "--priority", type=int, default=0, help="Higher goes first.  [default: 0]")
@click.option(
    "-g",
    "--gpus",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="GPUs that its session must have.",
)
@click.option(
    "--where",
    type=click.Choice(["local", "slurm", "ray"]),
    help="Only on this host, or only on such pilots.",
)
@click.option("-m", "--memory", metavar="SIZE", help="Memory that each GPU must have: 40G.")
@click.option(
    "-t", "--time-limit", type=duration, metavar="TIME", help="End it after 90s, 30m, 2h."
)
@click.option(
    "--retries", type=click.IntRange(0), default=0, help="How often to retry after a failure."
)
@click.option(
    "--grace", type=duration, metavar="TIME", help="Time from SIGTERM to SIGKILL.  [default: 10s]"
)
@click.option(
    "-a",
    "--after",
    multiple=True,
    metavar="JOB",
    shell_complete=complete_jobs,
    help="Start after JOB has succeeded; cancel if it fails.",
)
@click.option(
    "--after-any",
    multiple=True,
    metavar="JOB",
    shell_complete=complete_jobs,
    help="Start after JOB has ended, successfully or not.",
)
@click.option("--hold", is_flag=True, help="Wait for `postroom release`.")
@click.option(
    "--array",
    type=limited_array,
    metavar="1-100[:STEP][%N]",
    help="Queue it once for each $SGE_TASK_ID; at most N at once.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="At most N of these jobs at once; of a single job: of those of its project with --limit.",
)
@click.option("--begin", type=moment, metavar="WHEN", help="Not before 22:00, 'fri 20:00', now+2h.")
@click.option(
    "--stop-after-failures",
    type=click.IntRange(1),
    metavar="N",
    help="Hold the rest of these jobs after N of them have failed.",
)
@click.option(
    "--require", default="", metavar="KIND", help="Only on GPUs like 'A100|H100', or '24G'."
)
@click.option("--snapshot", is_flag=True, help="Run in a copy of this folder, taken now.")
@click.option("-C", "--cwd", type=click.Path(), help="Folder to run in.  [default: this folder]")
@click.option(
    "-e", "--env", multiple=True, metavar="NAME=VALUE", help="Set an environment variable."
)
@click.option("--shell", default="bash", show_default=True, help="The shell that runs it.")
@click.option(
    "--container", default="", metavar="IMAGE", help="Run it in a container: see docs/queue.md."
)
@click.option(
    "--notify",
    multiple=True,
    metavar="CMD|URL",
    help="Send a message at the first failure, and when all have ended; may be repeated.",
)
@click.option("--split-output", is_flag=True, help="Have stderr in a log of its own.")
@click.option("--wait", is_flag=True, help="Wait for its end; exit 1 if it failed.")
@click.option("--dry-run", is_flag=True, help="Only show what would be queued.")
@as_json
@in_new_base
def command(view: QueueView, words: tuple[str, ...], json_: bool, **options: Any) -> int:
    """Queue a command and print its id. By then it is on disk, and survives a power loss.

    \b
      postroom submit python train.py --lr 0.1
      postroom submit "python train.py > log.txt"        one word: the shell reads it
      postroom submit -P vae -p 5 -t 2h --retries 1 python train.py
      postroom submit --array 1-100%4 'python train.py --seed $SGE_TASK_ID'
      postroom submit --begin 22:00 --require 'A100|40G' python train.py
      postroom submit --after @ python evaluate.py       after the job submitted last
      postroom submit -f jobs.txt --dry-run
      postroom wait $(postroom submit make)

    Options come before the command: from its first word on, everything belongs to it. It runs in
    this folder, with the environment and the umask of this shell.
    """
    specs = _specs(view, words, options)
    for target in options["notify"]:
        check_target(target)
    if options["dry_run"]:
        if json_:
            print_json(specs)
        else:
            rows = [[spec.name or "-", spec.cwd, spec.command] for spec in specs]
            print_table([["NAME", "FOLDER", "COMMAND"], *rows])
        count = "1 job" if len(specs) == 1 else f"{len(specs)} jobs"
        talk(f"{count} would be queued in project {options['project']}")
        return 0
    make_base(view)
    with ExitStack() as stack:
        snapshot = None
        if options["snapshot"]:
            from ..commands.code_snapshot import take_snapshot  # late: few jobs need it

            snapshot = stack.enter_context(take_snapshot(specs[0].cwd, view.base))
        project = options["project"]
        jobs = submit(view.files, view.base, specs, project=project, snapshot=snapshot)
    for target in options["notify"]:
        notify_of(view.files, view.base, jobs, target)
    if json_:
        click.echo(json.dumps([str(job) for job in jobs]))
    else:
        for job in jobs:
            click.echo(job.short)
    _advise(view, jobs[0])
    return wait_for(view, jobs, json_=json_) if options["wait"] else 0


def _specs(view: QueueView, words: Sequence[str], options: dict[str, Any]) -> list[CommandSpec]:
    if bool(words) == (options["file"] is not None):
        raise click.UsageError("name a command (postroom submit python train.py) or -f FILE")
    if words:
        # One word is read by a shell; several were read by the submitting shell already.
        lines = [words[0] if len(words) == 1 else shlex.join(_program_first(words))]
    else:
        lines = [spec.command for spec in read_lines(options["file"])]
        if not lines:
            raise PostroomError(f"{options['file'].name} holds no commands")
    cwd = os.path.abspath(options["cwd"] or os.getcwd())
    if not os.path.isdir(cwd):
        raise PostroomError(f"the folder {cwd!r} to run in does not exist")
    common = CommandSpec(
        "",
        cwd=cwd,
        env=environment(options["env"]),
        timeout_s=options["time_limit"],
        retries=options["retries"],
        grace_s=GRACE_S if options["grace"] is None else options["grace"],
        shell=options["shell"],
        container=options["container"],
        merged=not options["split_output"],
        scheduling=SchedulingOptions(
            priority=options["priority"],
            held=options["hold"],
            after=_named(view, options["after"]),
            after_any=_named(view, options["after_any"]),
            gpus=options["gpus"],
            memory_mib=to_mib(options["memory"]) if options["memory"] else 0,
            where=options["where"] or "",
            require=check_require(options["require"]),
            begin_at=options["begin"] or 0.0,
            lasts_s=_lasts_s(options),
        ),
    )
    name = options["name"]
    numbers, at_once = options["array"] or (None, 0)
    common = _grouped(common, options, at_once, alone=len(lines) * len(numbers or [0]) == 1)
    several = len(lines) * len(numbers or [0]) > 1
    specs = []
    for place, line in enumerate(lines, 1):
        for number in numbers or [place]:
            own = f"{name}.{number}" if name and several else name
            specs.append(check(replace(common, command=line, name=own, number=number)))
    return specs


def _lasts_s(options: dict[str, Any]) -> float:
    """How long a job can take: it is begun before a reservation only if that is known."""
    if options["time_limit"] is None:
        return 0.0
    grace_s = GRACE_S if options["grace"] is None else options["grace"]
    return float(options["time_limit"] + grace_s)


def _grouped(
    common: CommandSpec, options: dict[str, Any], at_once: int, *, alone: bool
) -> CommandSpec:
    """Limit how many of the jobs of this call run at once, and how many may fail."""
    limit, failures = options["limit"] or at_once, options["stop_after_failures"] or 0
    if not (limit or failures):
        return common
    scheduling = replace(
        common.scheduling,
        group=PROJECT_GROUP if alone else new_token(6),
        group_limit=limit,
        group_failures=failures,
    )
    return replace(common, scheduling=scheduling)


def _program_first(words: Sequence[str]) -> Sequence[str]:
    """The words of a command; a whole command line with more behind it is refused."""
    if " " in words[0] and shutil.which(words[0]) is None:
        raise click.UsageError(
            f"{words[0]!r} is no program, and {words[1]!r} follows it: write options before the "
            "command, and a command for the shell as one word"
        )
    return words


def _named(view: QueueView, words: Sequence[str]) -> tuple[JobId, ...]:
    return tuple(some_jobs(view, words))


def _advise(view: QueueView, job: JobId) -> None:
    """Say what is missing for a job to run; only on a terminal, where somebody reads it."""
    if not sys.stderr.isatty():
        return
    base_state = view.read_state()
    if base_state.master_pid is not None and base_state.agents:
        why = view.job(job).job.reason
        if why.startswith(NOBODY_HAS):
            talk(f"{job.short} cannot start: {why}")
            return
    if base_state.master_pid is None:
        talk(f"no scheduler is running; start it with: postroom master {view.base.root} --detach")
    elif has_pilots(LocalFiles(), view.base):
        return
    elif not any(agent.state not in DEAD for agent in base_state.agents):
        talk(f"no agent is running; start one with: postroom agents start 1 {view.base.root}")
