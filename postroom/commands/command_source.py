"""Where the lines of a batch come from: a file, standard input, the command line, a generator.

A feed is read in a thread of its own, a little ahead of what the slots can run, so that a generator
is asked for no more than is soon needed, and may take as long as it likes over each line.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TextIO

from ..errors import PostroomError

# How far a feed is read ahead of what was taken from it.
AHEAD = 64


class CommandSourceError(PostroomError):
    """A line, or what makes the lines, is not as it should be."""


@dataclass(frozen=True)
class CommandLine:
    """One command, and what is asked for it."""

    command: str
    name: str = ""
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    retries: int | None = None
    memory: str = ""
    priority: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)  # of a sweep, for the table
    repeat: int = 0  # how often the same line stands before it

    @cached_property
    def key(self) -> str:
        """What makes it the same job when the batch is repeated."""
        known = json.dumps([self.command, self.cwd, self.env, self.repeat], sort_keys=True)
        return hashlib.sha256(known.encode()).hexdigest()[:20]


def line_from(value: Any) -> CommandLine:
    """Make a line of what a yielder yields: a command, or a dict with the fields of a Line."""
    if isinstance(value, CommandLine):
        return value
    if isinstance(value, str):
        return CommandLine(value)
    if not isinstance(value, dict):
        raise CommandSourceError(f"a line is a string or a dict with a command, not {value!r}")
    fields = dict(value)
    if "timeout" in fields:
        fields["timeout_s"] = fields.pop("timeout")
    unknown = sorted(set(fields) - set(CommandLine.__dataclass_fields__) - {"repeat"})
    if unknown or not isinstance(fields.get("command"), str):
        what = f"has the unknown field {unknown[0]!r}" if unknown else "has no command"
        raise CommandSourceError(f"a line {what}: {value!r}")
    fields["env"] = {str(name): str(text) for name, text in fields.get("env", {}).items()}
    return CommandLine(**fields)


def read_lines(file: TextIO) -> Iterator[CommandLine]:
    """Read the lines of a file as they come; blank ones and comments are none."""
    for text in file:
        command = text.strip()
        if command and not command.startswith("#"):
            yield CommandLine(command)


def read_yielder(path: str) -> Iterator[CommandLine]:
    """Run a Python file and read what its `yielder()` yields."""
    folder = os.path.dirname(os.path.abspath(path))
    with open(path, encoding="utf-8") as file:
        source = file.read()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # what stands beside it may be imported
    room: dict[str, Any] = {"__name__": "yielder", "__file__": os.path.abspath(path)}
    # The user's own program, which was named on the command line to be run.
    exec(compile(source, path, "exec"), room)  # noqa: S102
    yielder = room.get("yielder")
    if not callable(yielder):
        raise CommandSourceError(f"{path} defines no function yielder() that yields commands")
    for value in yielder():
        yield line_from(value)


class Numbering:
    """Completes lines, and tells those that are the same from each other."""

    def __init__(self, complete: Callable[[CommandLine], CommandLine]) -> None:
        self._complete = complete
        self._seen: dict[str, int] = {}

    def number(self, line: CommandLine) -> CommandLine:
        """The line with what it leaves open, and how often it has come before."""
        whole = self._complete(line)
        repeat = self._seen.get(whole.key, 0)
        self._seen[whole.key] = repeat + 1
        return replace(whole, repeat=repeat)


class Source(Protocol):
    """Where a batch takes its lines from."""

    ended: bool  # no more will come
    error: str  # why no more will come, if that was not foreseen

    def take(self) -> CommandLine | None:
        """The next line, if one is there."""


class Listed:
    """Lines that are all there, and numbered."""

    def __init__(self, lines: Sequence[CommandLine]) -> None:
        self._lines = iter(lines)
        self.ended = False
        self.error = ""

    def take(self) -> CommandLine | None:
        """The next line."""
        line = next(self._lines, None)
        self.ended = line is None
        return line


class Feed:
    """Lines that come in their own time, read in a thread."""

    def __init__(
        self,
        lines: Iterable[CommandLine],
        *,
        complete: Callable[[CommandLine], CommandLine] = lambda line: line,
        ahead: int = AHEAD,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue: queue.Queue[CommandLine | None] = queue.Queue(ahead)
        self._numbering = Numbering(complete)
        self._wake = wake
        self.ended = False
        self.error = ""
        threading.Thread(target=self._read, args=[lines], daemon=True).start()

    def _read(self, lines: Iterable[CommandLine]) -> None:
        try:
            for line in lines:
                self._queue.put(line)
                self._wake()
        except CommandSourceError as error:
            self.error = str(error)
        except BaseException as error:
            self.error = _told(error)
        self._queue.put(None)
        self._wake()

    def take(self) -> CommandLine | None:
        """The next line, if one is there; `ended` says whether more will come."""
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
