"""The options of `postroom gpu` as click takes them, made of the facts in `gpu_words`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from .gpu_words import JSON, LEDGER_OPTIONS, GpuVerb, Misuse, Option, choose_ledger

F = TypeVar("F", bound=Callable[..., Any])


def facts(option: Option) -> dict[str, Any]:
    """Return an option's facts as click calls them."""
    found: dict[str, Any] = {"help": option.help}
    if option.kind is bool:
        return found | {"is_flag": True}
    found |= {"type": option.kind, "metavar": option.metavar, "show_default": option.show_default}
    if option.least is not None:
        found["type"] = click.IntRange(min=option.least)
    if option.default is not None:
        found["default"] = option.default
    return found


def as_command(name: str, verb: GpuVerb) -> click.Command:
    """Make a click command of a verb."""

    def call(**values: Any) -> None:
        with _misuse_told():
            verb.call(values)

    params: list[click.Parameter] = []
    if verb.is_command:
        params.append(
            click.Argument([verb.argument], nargs=-1, required=True, type=click.UNPROCESSED)
        )
    elif verb.argument:
        params.append(click.Argument([verb.argument], metavar=verb.metavar))
    for option in verb.all_options:
        params.append(click.Option([option.flag, option.name], **facts(option)))
    return click.Command(
        name,
        callback=call,
        params=params,
        help=inspect.cleandoc(verb.action.__doc__ or ""),
        context_settings={"ignore_unknown_options": verb.is_command},
    )


def as_json(function: F) -> F:
    """Add --json."""
    return click.option(JSON.flag, JSON.name, **facts(JSON))(function)


def with_ledger(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which ledger, and hand the function the ledger itself."""

    @functools.wraps(function)
    def wrapped(**values: Any) -> Any:
        with _misuse_told():
            ledger = choose_ledger(values)
        return function(ledger, **values)

    for option in reversed(LEDGER_OPTIONS):
        wrapped = click.option(option.flag, option.name, **facts(option))(wrapped)
    return wrapped


@contextmanager
def _misuse_told() -> Iterator[None]:
    try:
        yield
    except Misuse as error:
        raise click.UsageError(str(error)) from None
