"""`postroom pilots`: have agents on other machines, which a cluster's own engine starts."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import asdict
from typing import TextIO

import click

from ..errors import PostroomError
from ..pilots.engine import open_engine
from ..pilots.group_verbs import change_pilots
from ..pilots.pilot_view import GroupRow, PilotRow, view_pilots
from ..session.sessions import Sessions
from ..store.base import create_base, open_base, up_command
from ..store.files import LocalFiles, is_locked
from ..store.pilot_records import PilotGroup, PilotGroups, change_groups
from ..text.durations import format_duration, format_time
from ..text.safe_text import printable
from .options import (
    CONTEXT,
    as_json,
    at_least,
    base_argument,
    base_option,
    split_base,
)
from .output import print_json, print_table, talk

_groups_argument = click.argument("words", nargs=-1, metavar="[BASE] [GROUP...]")


@click.group(context_settings=CONTEXT)
def command() -> None:
    """Have agents on other machines: pilots, which Slurm or Ray starts and ends.

    \b
      postroom pilots add ./base --slurm --max 16 --time 4h -- -p gpu -A lab
      postroom pilots list ./base          which pilots there are, where, and why they wait
      postroom pilots show ./base slurm-3  one pilot, and the end of its log
      postroom pilots drain ./base         no new pilots; those that live finish their jobs
      postroom pilots resume ./base        start pilots again, also after a pause
      postroom pilots stop ./base          end all pilots now; their jobs are requeued
      postroom pilots remove ./base slurm  forget a group

    They are started while jobs wait, and ended when idle. The base stays on this host.
    """


class _Add(click.Command):
    """`add`, which says where options of an engine belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = "Options of the engine follow --, as in: --slurm -- -p gpu"
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from None


@command.command(cls=_Add)
@click.argument("words", nargs=-1, metavar="[BASE] [-- OPTION...]")
@base_option
@click.option("--slurm", "engine", flag_value="slurm", help="Slurm, through srun of this host.")
@click.option("--ray", "address", metavar="ADDRESS", help="Ray, such as auto or HOST:6379.")
@click.option("--local", "engine", flag_value="local", help="Processes of this host, to try it.")
@click.option("--name", metavar="NAME", help="Name of the group.  [default: the engine's]")
@click.option(
    "--max",
    "most",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="At most N pilots live at once.",
)
@click.option(
    "--min",
    "least",
    type=click.IntRange(0, 10_000),
    default=0,
    show_default=True,
    metavar="N",
    help="Keep N, also while no job waits.",
)
@click.option(
    "--pending",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    metavar="N",
    help="At most N of them wait for their nodes.",
)
@click.option(
    "--time",
    "time_s",
    type=at_least(60),
    help="How long a pilot lives, such as 4h.  [default: the engine's]",
)
@click.option(
    "--idle",
    "idle_s",
    type=at_least(1),
    default="5m",
    show_default=True,
    help="End a pilot after TIME without a job.",
)
@click.option(
    "--gpus-per-pilot",
    "gpus",
    type=click.IntRange(0, 1024),
    default=1,
    show_default=True,
    metavar="N",
    help="GPUs of each pilot; 0: it computes on the CPU.",
)
@click.option(
    "--setup",
    type=click.File(),
    metavar="FILE",
    help="Shell lines to run on the node before Python, such as module load.",
)
@click.option("--python", default="", metavar="PATH", help="Python on the node, with Postroom.")
@click.option("--preload", metavar="NAMES", help="Modules to import in each pilot.")
@click.option("--dry-run", is_flag=True, help="Show what would be run; change nothing.")
@as_json
def add(
    words: tuple[str, ...],
    base: str,
    engine: str | None,
    address: str | None,
    name: str | None,
    most: int,
    least: int,
    pending: int,
    time_s: float | None,
    idle_s: float,
    gpus: int,
    setup: TextIO | None,
    python: str,
    preload: str | None,
    dry_run: bool,
    json_: bool,
) -> None:
    """Add a group of pilots, or change the one of this name.

    What follows -- goes to the engine as it is: options of srun, or name=value for Ray's actor.

    \b
      postroom pilots add --slurm --max 16 --time 4h --idle 5m -- -p gpu -A lab
      postroom pilots add --ray auto --max 3 -- num_cpus=4
      postroom pilots add --slurm --setup modules.sh --dry-run
    """
    base, options = split_base(base, words)
    if options and not options[0].startswith("-") and "=" not in options[0]:
        raise click.UsageError(
            f"{options[0]!r} is not an option of an engine; for a base write ./{options[0]}"
        )
    if engine is not None and address is not None:
        raise click.UsageError(
            f"name one engine: --{engine} or --ray; a base may have groups of both"
        )
    engine = "ray" if address is not None else engine
    if engine is None:
        raise click.UsageError("name an engine: --slurm, --ray ADDRESS, or --local to try it")
    if least > most:
        raise click.UsageError(f"--min {least} is more than --max {most}")
    group = PilotGroup(
        engine,
        most,
        least,
        pending,
        time_s,
        idle_s,
        gpus,
        setup=setup.read() if setup is not None else "",
        python=python,
        preload=preload,
        address=address or "",
        options=tuple(options),
    )
    name = name or engine
    if dry_run:
        words_of_it = open_engine(group).command(group, f"postroom-{name}-1")
        if json_:
            click.echo(json.dumps({"name": name, "command": words_of_it}))
            return
        *first, script = words_of_it
        click.echo(printable(f"{shlex.join(first)} SCRIPT"))
        click.echo("\nSCRIPT:")
        click.echo("".join(f"  {printable(line)}\n" for line in script.splitlines()), nl=False)
        return
    if engine == "slurm" and shutil.which("srun") is None:
        raise PostroomError("srun is not on this host: Slurm's commands are needed to start pilots")
    made = create_base(base)

    def change(groups: PilotGroups) -> None:
        groups.groups[name] = group

    change_groups(LocalFiles(), made, change)
    Sessions(made).keep_pilots()
    if json_:
        click.echo(json.dumps({"name": name, **asdict(group)}))
        return
    pilots = "pilot" if most == 1 else "pilots"
    click.echo(
        f"group {name}: up to {most} {pilots}, started while jobs wait; see: "
        f"postroom pilots list {shlex.quote(made.root)}"
    )
    if not is_locked(LocalFiles(), made.master_lock):
        talk(
            f"no scheduler is running, which sends the jobs; start it with: {up_command(made.root)}"
        )


@command.command("list")
@base_argument
@click.option("--all", "everything", is_flag=True, help="Show all that have ended, too.")
@as_json
def list_(base: str, everything: bool, json_: bool) -> None:
    """List groups and pilots: state, node, time left, and why they wait or have ended.

    \b
      postroom pilots list ./base --all    also those that ended long ago
    """
    view = view_pilots(open_base(base, write=False), ended=1000 if everything else 5)
    if json_:
        print_json(view)
        return
    if not view.groups and not view.pilots:
        click.echo("no pilots: add some with postroom pilots add --slurm, or --ray ADDRESS")
        return
    titles = ["GROUP", "ENGINE", "STATE", "PILOTS", "JOBS WAIT", "NOTE"]
    print_table([titles, *map(_group_row, view.groups)])
    if view.groups and not view.kept:
        click.echo("their keeper is dead: postroom pilots resume starts it", err=True)
    if view.pilots:
        click.echo()
        titles = ["PILOT", "STATE", "ID", "NODE", "LEFT", "JOBS", "NOTE"]
        print_table([titles, *map(_pilot_row, view.pilots)])


@command.command()
@click.argument("words", nargs=-1, metavar="[BASE] PILOT")
@base_option
@as_json
def show(words: tuple[str, ...], base: str, json_: bool) -> None:
    """Show one pilot, and the end of its log.

    \b
      postroom pilots show ./base slurm-3
    """
    base, names = split_base(base, words)
    if len(names) != 1:
        raise click.UsageError("name one pilot")
    view = view_pilots(open_base(base, write=False), ended=1000)
    row = next((row for row in view.pilots if row.pilot == names[0]), None)
    if row is None:
        raise PostroomError(f"there is no pilot {names[0]!r}; see postroom pilots list --all")
    if json_:
        print_json(row)
        return
    facts = {
        "pilot": f"{row.pilot} of {row.group} ({row.engine} {row.engine_id})".replace(" )", ")"),
        "state": f"{row.state}{f': {row.why}' if row.why else ''}",
        "node": row.node or "-",
        "submitted": format_time(row.submitted_at),
        "time left": format_duration(row.left_s),
        "jobs done": row.jobs,
        "log": row.log,
    }
    for name, value in facts.items():
        click.echo(printable(f"{name + ':':<11}{value}"))
    try:
        with open(row.log, encoding="utf-8", errors="replace") as file:
            for line in file.read()[-8000:].splitlines()[-20:]:
                click.echo(f"  {printable(line)}")
    except OSError as error:
        click.echo(f"  {error.strerror}")


@command.command()
@_groups_argument
@base_option
@as_json
def drain(words: tuple[str, ...], base: str, json_: bool) -> None:
    """Start no more pilots; those that live finish their job and end.

    \b
      postroom pilots drain ./base          all groups
      postroom pilots drain ./base slurm    one of them
    """
    _act("drain", words, base, json_)


@command.command()
@_groups_argument
@base_option
@as_json
def resume(words: tuple[str, ...], base: str, json_: bool) -> None:
    """Start pilots again, after a drain, a stop or a pause.

    \b
      postroom pilots resume ./base
    """
    _act("resume", words, base, json_)


@command.command()
@_groups_argument
@base_option
@as_json
def stop(words: tuple[str, ...], base: str, json_: bool) -> None:
    """End pilots now, and start no more; their jobs are requeued.

    \b
      postroom pilots stop ./base
    """
    _act("stop", words, base, json_)


@command.command()
@_groups_argument
@base_option
@as_json
def remove(words: tuple[str, ...], base: str, json_: bool) -> None:
    """Forget groups; their pilots finish their job and end.

    \b
      postroom pilots remove ./base slurm
    """
    _act("remove", words, base, json_)


def _act(verb: str, words: tuple[str, ...], base: str, json_: bool) -> None:
    folder, names = split_base(base, words)
    opened = open_base(folder)
    said = change_pilots(opened, verb, names)
    if json_:
        print_json(view_pilots(opened, ended=0))
    else:
        click.echo(said)


def _group_row(row: GroupRow) -> list[str]:
    pilots = f"{row.serving} serving, {row.living} of {row.most}"
    return [row.name, row.engine, row.state, pilots, str(row.waiting), row.why]


def _pilot_row(row: PilotRow) -> list[str]:
    return [
        row.pilot,
        row.state,
        row.engine_id or "-",
        row.node or "-",
        format_duration(row.left_s),
        str(row.jobs),
        row.why,
    ]
