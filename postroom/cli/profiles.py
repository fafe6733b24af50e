"""`postroom profiles`: list, show and forget what was learned about jobs."""

from __future__ import annotations

from typing import Any

import click

from ..errors import PostroomError
from ..gpus.memory.profiles import Profile, ProfileRow, Profiles
from ..text import sizes
from ..text.durations import format_time
from ..text.safe_text import printable
from ..text.table import aligned
from .options import as_json
from .output import print_json


@click.group("profiles", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Show how much memory and time jobs were measured to need, or forget it."""
    if context.invoked_subcommand is None:
        context.invoke(list_)


@command.command("list")
@as_json
def list_(*, json_: bool) -> None:
    """List the types of jobs, and the most memory that each has needed."""
    profiles = Profiles().all()
    if json_:
        print_json([profile.encode() for profile in profiles])
        return
    rows = [["PEAK", "SECONDS", "CALLS", "RUNS", "FAILED", "SEEN", "TYPE"]]
    for profile in profiles:
        peaks = [row.peak_mib for row in profile.rows if row.peak_mib is not None]
        times = [row.seconds for row in profile.rows if row.seconds is not None]
        rows.append(
            [
                _size(max(peaks, default=None)),
                f"{max(times):.1f}" if times else "-",
                str(len(profile.rows)),
                str(sum(row.runs for row in profile.rows)),
                str(sum(row.failures for row in profile.rows)),
                format_time(max((row.seen_at for row in profile.rows), default=0.0)),
                profile.type,
            ]
        )
    click.echo(aligned(rows))


@command.command("show")
@click.argument("type_", metavar="TYPE")
@as_json
def show_(type_: str, *, json_: bool) -> None:
    """Show what one type of job has needed, for each kind of call."""
    profile = _find(type_)
    if json_:
        print_json(profile.encode())
        return
    click.echo(printable(f"{profile.type}, code {profile.code or '-'}"))
    rows = [["PEAK", "MORE THAN", "SECONDS", "RUNS", "FAILED", "CALL"]]
    rows += [_cells(row) for row in profile.rows]
    click.echo(aligned(rows))


@command.command("forget")
@click.argument("types", metavar="TYPE...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Forget everything.")
def forget_(types: tuple[str, ...], *, all_: bool) -> None:
    """Forget what was measured; the next run of the type is measured again."""
    if bool(types) == all_:
        raise click.UsageError("name a TYPE to forget, or give --all")
    store = Profiles()
    for profile in store.all() if all_ else [_find(type_) for type_ in types]:
        store.forget(profile.type)
        click.echo(printable(f"forgotten: {profile.type}"), err=True)


def _find(type_: str) -> Profile:
    """Return the profile with a name, or the only one whose name ends with it or contains it."""
    found = Profiles().all()
    matches = [profile for profile in found if profile.type == type_]
    matches = matches or [profile for profile in found if profile.type.endswith(type_)]
    matches = matches or [profile for profile in found if type_ in profile.type]
    if len(matches) == 1:
        return matches[0]
    word = "more than one type" if matches else "no type"
    raise PostroomError(f"{word} is called {type_!r}; see `postroom profiles`")


def _cells(row: ProfileRow) -> list[str]:
    call = ", ".join(f"{name}={_value(value)}" for name, value in row.call.items())
    return [
        _size(row.peak_mib),
        _size(row.at_least_mib or None),
        "-" if row.seconds is None else f"{row.seconds:.1f}",
        str(row.runs),
        str(row.failures),
        call or "-",
    ]


def _value(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else repr(value)


def _size(memory_mib: int | None) -> str:
    return "-" if memory_mib is None else sizes.from_mib(memory_mib)
