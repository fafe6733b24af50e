"""Options that verbs share: the base, durations, --json.

Those that need the queue are in `job_options`: `postroom run` does not pay for importing it.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..errors import PostroomError
from ..store.base import Base, default_base
from ..text.durations import parse_duration
from ..text.moments import parse_moment
from ..text.option_values import parse_array, parse_limited_array

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

CONTEXT = {"help_option_names": ["-h", "--help"]}


# The base: -b/--base, else POSTROOM_BASE, else the user's own queue


def base_option(function: F) -> F:
    """Add -b/--base; the function gets the folder's path as `base`."""
    return click.option(
        "-b",
        "--base",
        default=default_base,
        metavar="BASE",
        help="Folder of the queue.  [default: $POSTROOM_BASE or your own queue]",
    )(function)


def base_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add -b/--base, and BASE as an optional argument; the function gets it as `base`."""

    @base_option
    @click.argument("base_word", metavar="[BASE]", required=False)
    @functools.wraps(function)
    def wrapped(*arguments: Any, base: str, base_word: str | None, **options: Any) -> Any:
        if base_word is not None:
            base = positional_base(base_word)
        return function(*arguments, base=base, **options)

    return wrapped


def base_is_named() -> bool:
    """Return whether -b/--base was given on the command line."""
    return click.get_current_context().get_parameter_source("base") is ParameterSource.COMMANDLINE


def positional_base(word: str) -> str:
    """Return a base that was named as an argument; naming it twice is an error."""
    if base_is_named():
        raise click.UsageError(f"the base is named twice: remove {word!r} or -b")
    return word


def split_base(base: str, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Split words into the base and names: the first word is the base if it is a folder's path."""
    if words and not base_is_named() and _is_base(words[0]):
        return words[0], words[1:]
    return base, words


def _is_base(word: str) -> bool:
    """What is named has a plain name, so a path, or a folder that is a base, is the base."""
    return "/" in word or word in (".", "..") or os.path.exists(Base(word).format)


# Values


def _option_type(metavar: str, parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make one of our parsers a type of click's: its errors then name the option."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except PostroomError as error:
            raise click.BadParameter(str(error)) from None

    convert.__name__ = metavar
    return convert


duration = _option_type("TIME", parse_duration)
array = _option_type("ARRAY", parse_array)
limited_array = _option_type("ARRAY", parse_limited_array)
moment = _option_type("WHEN", lambda text: parse_moment(text, time.time()))


def at_least(seconds: float) -> Callable[[str], float]:
    """Return the type of a duration with a minimum."""

    def parse(text: str) -> float:
        value = parse_duration(text)
        if value < seconds:
            raise PostroomError(f"{text!r} is too short: the least is {seconds:g}s")
        return value

    return _option_type("TIME", parse)


def make_folder(path: str) -> None:
    """Make a folder that the user has named, and those above it."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise PostroomError(
            f"{path!r} cannot be a folder: {error.strerror}; choose one that you may write to"
        ) from None


def as_json(function: F) -> F:
    """Add --json."""
    return click.option("--json", "json_", is_flag=True, help="Print JSON, for scripts.")(function)
