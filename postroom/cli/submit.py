"""`postroom submit`: queue commands."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from ..commands.spec import CommandSpec
from ..errors import PostroomError
from ..queue.submission import DEFAULT_PROJECT, spread, submit
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.job_ids import JobId
from ..store.scheduling import SchedulingOptions, will_do
from .job_options import in_new_base, make_base, some_jobs
from .options import CONTEXT, as_json, limited_array
from .output import print_json, print_table, talk
from .spec_options import OPTION_NAMES, spec_options, with_options


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, metavar="CMD...")
@click.option(
    "-f",
    "--file",
    type=click.File("r", errors="surrogateescape"),
    help="Queue every line of a file; - for stdin.",
)
@click.option(
    "-P", "--project", default=DEFAULT_PROJECT, show_default=True, help="Project of the job."
)
@spec_options
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
    help="Run at most N of these jobs at once. For a single job: N of those jobs of its project "
    "that were submitted with --limit.",
)
@click.option(
    "--stop-after-failures",
    type=click.IntRange(1),
    metavar="N",
    help="Hold the rest of these jobs after N of them have failed.",
)
@click.option("--snapshot", is_flag=True, help="Run in a copy of this folder, taken now.")
@click.option(
    "--notify",
    multiple=True,
    metavar="CMD|URL",
    help="Send a message at the first failure, and when all have ended; may be repeated.",
)
@click.option("--split-output", is_flag=True, help="Write stderr to a log of its own.")
@click.option("--wait", is_flag=True, help="Wait until it has ended; exit 1 if it failed.")
@click.option("--dry-run", is_flag=True, help="Only show what would be queued.")
@as_json
@in_new_base
def command(base: Base, words: tuple[str, ...], json_: bool, **options: Any) -> int:
    """Queue a command and print its id. By then it is on disk, and survives a power loss.

    \b
      postroom submit python train.py --lr 0.1
      postroom submit "python train.py > log.txt"        one word: the shell reads it
      postroom submit -P vae -p 5 -t 2h --retries 1 python train.py
      postroom submit --array 1-100%4 'python train.py --seed $SGE_TASK_ID'
      postroom submit --begin 22:00 --require 'A100|40G' python train.py
      postroom submit --after @ python evaluate.py       after the job submitted last
      postroom submit train.sh                           with its #SBATCH or #$ lines
      postroom submit -f jobs.txt --dry-run
      postroom wait $(postroom submit make)

    Options come before the command: from its first word on, everything belongs to it. It runs in
    this folder, with the environment and the umask of this shell.
    """
    text = ""
    if words and options["file"] is None:
        words, text, options = _of_script(words, options)
    specs = make_specs(_lines(words, options, text), options, partial(_named, base))
    if options["notify"]:
        from ..queue.notify import check_target

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
    make_base(base)
    files = LocalFiles()
    with ExitStack() as stack:
        snapshot = None
        if options["snapshot"]:
            from ..commands.code_snapshot import take_snapshot  # late: few jobs need it

            snapshot = stack.enter_context(take_snapshot(specs[0].cwd, base))
        project = options["project"]
        jobs = submit(files, base, specs, project=project, snapshot=snapshot)
    if options["notify"]:
        from ..queue.notices import notify_of

        for target in options["notify"]:
            notify_of(files, base, jobs, target)
    if json_:
        print_json([str(job) for job in jobs])
    else:
        for job in jobs:
            click.echo(job.short)
    _advise(base, jobs[0], specs[0].scheduling)
    if not options["wait"]:
        return 0
    from ..queue.queue_view import QueueView
    from .wait import wait_for

    with QueueView(base) as view:
        return wait_for(view, jobs, json_=json_)


_SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash", ".job")


def _of_script(
    words: tuple[str, ...], options: dict[str, Any]
) -> tuple[tuple[str, ...], str, dict[str, Any]]:
    """Where the command is a script with #SBATCH or #$ lines: its text, and its options.

    It is read now, as Slurm and Grid Engine do: later changes of the file do not matter.
    """
    place = 1 if len(words) > 1 and words[0] in ("bash", "sh") else 0
    path = words[place]
    if not (path.endswith(_SCRIPTS) or os.path.isfile(path)):
        return words, "", options
    from . import script_lines  # late: few commands are scripts

    text = script_lines.read_script(path)
    if not text:
        if not place and "/" not in path and os.path.isfile(path) and not shutil.which(path):
            # A shell would not find it, because its folder is not in PATH; sbatch does.
            if os.access(path, os.X_OK):
                words = (f"./{path}", *words[1:])
            elif path.endswith(_SCRIPTS):
                words = ("bash", *words)
        return words, "", options
    found = script_lines.read_lines_of(text)
    for line in found.left_out:
        talk(f"{path}: {found.kind} {line}")
    context = click.get_current_context()
    inside = command.make_context("submit", [*found.words, "-b", ".", "true"], parent=context)
    for name, value in inside.params.items():
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        said = inside.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if said and not typed and name in options:
            options = {**options, name: value}
    if context.get_parameter_source("shell") is not ParameterSource.COMMANDLINE:
        options = {**options, "shell": script_lines.shell_of(text)}
    options = {**options, "name": options["name"] or os.path.basename(path)}
    text = script_lines.as_command(text, path, words[place + 1 :])
    return words, text, {**options, "slurm": found.kind == script_lines.SBATCH}


def _lines(words: Sequence[str], options: dict[str, Any], text: str) -> list[CommandSpec]:
    """The commands that are named: the text of a script, words, or the lines of a file."""
    if bool(words) == (options["file"] is not None):
        raise click.UsageError("name a command (postroom submit python train.py) or -f FILE")
    if text:
        return [CommandSpec(text)]
    if words:
        # One word is read by a shell; several were read by the submitting shell already.
        return [CommandSpec(words[0] if len(words) == 1 else shlex.join(_program_first(words)))]
    from ..commands.command_source import read_lines

    lines = [CommandSpec(spec.command) for spec in read_lines(options["file"])]
    if not lines:
        raise PostroomError(f"{options['file'].name} holds no commands")
    return lines


def _named(base: Base, words: Sequence[str]) -> Sequence[JobId]:
    from ..queue.queue_view import QueueView

    with QueueView(base) as view:
        return some_jobs(view, words)


def make_specs(
    lines: Sequence[CommandSpec],
    options: dict[str, Any],
    named: Callable[[Sequence[str]], Sequence[JobId]],
) -> list[CommandSpec]:
    """What is queued for some commands with these options; `named` finds jobs by words."""
    cwd = os.path.abspath(options["cwd"] or os.getcwd())
    if not os.path.isdir(cwd):
        raise PostroomError(f"the folder {cwd!r} to run in does not exist")
    common = CommandSpec("", cwd=cwd, merged=not options["split_output"])
    common = with_options(common, {name: options[name] for name in OPTION_NAMES}, named)
    common = replace(common, scheduling=replace(common.scheduling, held=options["hold"]))
    numbers, at_once = options["array"] or (None, 0)
    limit, failures = options["limit"] or at_once, options["stop_after_failures"] or 0
    specs = spread(lines, common, numbers, limit=limit, failures=failures)
    if numbers is not None and options.get("slurm"):
        specs = [
            spec.but(env={**spec.env, "SLURM_ARRAY_TASK_ID": str(spec.number)}) for spec in specs
        ]
    return specs


def _program_first(words: Sequence[str]) -> Sequence[str]:
    """The words of a command; a whole command line with more behind it is refused."""
    if " " in words[0] and shutil.which(words[0]) is None:
        raise click.UsageError(
            f"{words[0]!r} is not a program, and {words[1]!r} follows it: write options before the "
            "command, and a command for the shell as one word"
        )
    return words


def _advise(base: Base, job: JobId, scheduling: SchedulingOptions) -> None:
    """Say what is missing for a job to run.

    Where nobody reads it, a job that asks for nothing special is not worth the look.
    """
    special = scheduling.gpus > 1 or scheduling.memory_mib or scheduling.require
    if not (special or sys.stderr.isatty()):
        return
    from ..queue.estimate import NOBODY_HAS
    from ..queue.queue_view import QueueView
    from ..store.pilot_records import has_pilots
    from ..store.snapshot import DEAD

    with QueueView(base) as view:
        base_state = view.read_state()
        agents = [agent for agent in base_state.agents if agent.state not in DEAD]
        if base_state.master_pid is not None and agents:
            why = view.job(job).job.reason
            if why.startswith(NOBODY_HAS):
                talk(f"{job.short} cannot start: {why}")
            return
        cards = view.cards() if special else []
    with_pilots = has_pilots(LocalFiles(), base)
    if cards and not scheduling.where and not with_pilots:
        fitting = [
            card
            for card in cards
            if card.memory_mib >= scheduling.memory_mib
            and will_do(scheduling.require, card.name, card.memory_mib)
        ]
        if len(fitting) < scheduling.gpus:
            talk(
                f"{job.short} can never start here: only {len(fitting)} of the {len(cards)} GPUs "
                f"match what it asks for; change it: postroom edit {job.short}"
            )
    if base_state.master_pid is None:
        talk(f"no scheduler is running; start it with: postroom master {base.root} --detach")
    elif not agents and not with_pilots:
        talk(f"no agent is running; start one with: postroom agents start 1 {base.root}")
