"""Where the commands of a batch come from: a file, standard input, the command line, a generator.

A feed is read in a thread of its own, a little ahead of what the slots can run. So a generator is
asked only for what is needed soon, and may take as long as it likes over each command.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Protocol

from ..errors import PostroomError
from ..store.scheduling import SchedulingOptions
from .spec import CommandSpec

# How far a feed is read ahead of what was taken from it.
AHEAD = 64
# What a yielder may say of a command, with its priority.
_SAID = {"command", "name", "cwd", "env", "timeout_s", "retries", "memory", "arguments"}


class CommandSourceError(PostroomError):
    """A command cannot be read, or the generator of commands is wrong."""


def line_from(value: Any) -> CommandSpec:
    """Read what a yielder yields: a command, or a dict with a command and what is asked for it."""
    if isinstance(value, CommandSpec):
        return value
    if isinstance(value, str):
        return CommandSpec(value)
    if not isinstance(value, dict):
        raise CommandSourceError(f"a line is a string or a dict with a command, not {value!r}")
    fields = dict(value)
    if "timeout" in fields:
        fields["timeout_s"] = fields.pop("timeout")
    priority = fields.pop("priority", 0)
    unknown = sorted(set(fields) - _SAID)
    if unknown or not isinstance(fields.get("command"), str):
        what = f"has the unknown field {unknown[0]!r}" if unknown else "has no command"
        raise CommandSourceError(f"a line {what}: {value!r}")
    fields["env"] = {str(name): str(text) for name, text in fields.get("env", {}).items()}
    return CommandSpec(**fields, scheduling=SchedulingOptions(priority=priority))


def read_lines(file: IO[str]) -> Iterator[CommandSpec]:
    """Read the commands of a file as they come, without blank lines and comments."""
    for number, text in enumerate(file, 1):
        if "\0" in text:
            where = f" of {file.name}" if isinstance(getattr(file, "name", None), str) else ""
            raise CommandSourceError(
                f"line {number}{where} holds a zero byte: this is not a file of commands"
            )
        command = text.strip()
        if command and not command.startswith("#"):
            yield CommandSpec(command)


def read_yielder(path: str) -> Iterator[CommandSpec]:
    """Run a Python file and read what its `yielder()` yields."""
    folder = os.path.dirname(os.path.abspath(path))
    with open(path, encoding="utf-8") as file:
        source = file.read()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # it may import the files beside it
    module: dict[str, Any] = {"__name__": "yielder", "__file__": os.path.abspath(path)}
    # The user's own program, named on the command line to be run.
    exec(compile(source, path, "exec"), module)  # noqa: S102
    yielder = module.get("yielder")
    if not callable(yielder):
        raise CommandSourceError(f"{path} defines no function yielder() that yields commands")
    for value in yielder():
        yield line_from(value)


class Numbering:
    """Fills in what a batch says for all its commands, and numbers equal ones."""

    def __init__(self, complete: Callable[[CommandSpec], CommandSpec]) -> None:
        self._complete = complete
        self._seen: dict[str, int] = {}

    def number(self, line: CommandSpec) -> CommandSpec:
        """The whole command, with how often the same one has come before."""
        whole = self._complete(line)
        repeat = self._seen.get(whole.key, 0)
        self._seen[whole.key] = repeat + 1
        return whole.but(repeat=repeat) if repeat else whole


class Source(Protocol):
    """Where a batch takes its commands from."""

    ended: bool  # no more will come
    error: str  # why no more will come, if something went wrong

    def take(self) -> CommandSpec | None:
        """The next command, if one is there."""


class Listed:
    """Commands that are all known, and numbered."""

    def __init__(self, lines: Sequence[CommandSpec]) -> None:
        self._lines = iter(lines)
        self.ended = False
        self.error = ""

    def take(self) -> CommandSpec | None:
        """The next command."""
        line = next(self._lines, None)
        self.ended = line is None
        return line


class Feed:
    """Commands that are read in a thread, as they come."""

    def __init__(
        self,
        lines: Iterable[CommandSpec],
        *,
        complete: Callable[[CommandSpec], CommandSpec] = lambda line: line,
        ahead: int = AHEAD,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue: queue.Queue[CommandSpec | None] = queue.Queue(ahead)
        self._numbering = Numbering(complete)
        self._wake = wake
        self.ended = False
        self.error = ""
        threading.Thread(target=self._read, args=[lines], daemon=True).start()

    def _read(self, lines: Iterable[CommandSpec]) -> None:
        try:
            for line in lines:
                self._queue.put(line)
                self._wake()
        except PostroomError as error:
            self.error = str(error)
        except BaseException as error:
            self.error = _told(error)
        self._queue.put(None)
        self._wake()

    def take(self) -> CommandSpec | None:
        """The next command, if one is there; `ended` says whether more will come."""
        try:
            line = None if self.ended else self._queue.get_nowait()
        except queue.Empty:
            return None
        if line is None:
            self.ended = True
            return None
        return self._numbering.number(line)


def _told(error: BaseException) -> str:
    """The traceback of a user's own generator, without our part of it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(error.with_traceback(trace)))
