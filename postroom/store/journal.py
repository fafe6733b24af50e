"""One log and one journal for every process of a base: JSON lines, appended in one write each.

The journal has a line for every change of state; nothing depends on it. Neither file may stop the
work: a line that cannot be written is dropped, and counted in the next one that can. A Master
writes the lines about results when it has time: with its next letter, when it waits, or at its end.
If it is killed before that, the result is there and the line is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections import deque
from typing import Any, TypeAlias

from .base import Base
from .files import Clock, SystemClock

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode

Waiting: TypeAlias = deque[tuple[float, dict[str, Any]]]


class Journal:
    """Writes lines for one process; each names the role of that process."""

    def __init__(self, base: Base, role: str, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._role = _encode(role)
        self._log = _Appender(base.log)
        self._events = _Appender(base.events)
        self._waiting: Waiting = deque()
        # Lines are written even if the owner is never closed.
        weakref.finalize(self, _write, self._waiting, self._events, self._role)

    def log(self, level: str, text: str, **fields: Any) -> None:
        """Write a message for people: level is "debug", "info", "warning" or "error"."""
        line = {"level": level, "text": text, **fields}
        self._log.append(_line(self._clock.wall(), self._role, line))

    def event(self, event: str, **fields: Any) -> None:
        """Record a state change."""
        self.event_soon(event, **fields)
        self.catch_up()

    def event_soon(self, event: str, **fields: Any) -> None:
        """Record a state change later: with the next one, or at `catch_up`."""
        self._waiting.append((self._clock.wall(), {"event": event, **fields}))

    def catch_up(self) -> None:
        """Write the lines that wait."""
        _write(self._waiting, self._events, self._role)


def _write(waiting: Waiting, events: _Appender, role: str) -> None:
    # Several threads may do this at once; each stops when nothing is left.
    with contextlib.suppress(IndexError):
        while True:
            at, fields = waiting.popleft()
            events.append(_line(at, role, fields))


def _line(at: float, role: str, fields: dict[str, Any]) -> str:
    """A line of the log or the journal, without its end."""
    said = ",".join(
        [f'"{key}":{repr(v) if type(v) is int else _encode(v)}' for key, v in fields.items()]
    )
    return f'{{"at":{at:.6f},"role":{role},"pid":{os.getpid()},{said}'


class NullJournal(Journal):
    """Writes nothing: for readers."""

    def __init__(self) -> None:
        pass

    def log(self, level: str, text: str, **fields: Any) -> None:
        """Drop it."""

    def event_soon(self, event: str, **fields: Any) -> None:
        """Drop it."""

    def catch_up(self) -> None:
        """There is nothing."""


class _Appender:
    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._dropped = 0

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def append(self, line: str) -> None:
        """Complete a line and append it."""
        dropped = f',"dropped_before":{self._dropped}' if self._dropped else ""
        # ASCII: control characters of a job's output can't reach the terminal or break a line.
        data = f"{line}{dropped}}}\n".encode("ascii")
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                self._fd = os.open(self._path, flags, 0o600)
            if os.write(self._fd, data) == len(data):
                self._dropped = 0
                return
        except OSError:
            pass
        self._dropped += 1
