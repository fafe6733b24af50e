"""One log and one journal for every process of a base: JSON lines, appended in one write each.

The journal records every state change; it is a record, never the truth. Neither may stop the work:
a line that cannot be written is dropped, and counted in the next one that can.
"""

from __future__ import annotations

import json
import os
from collections import deque
from typing import Any

from .base import Base
from .files import Clock, SystemClock

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class Journal:
    """Writes lines for one process, which signs them with its role."""

    def __init__(self, base: Base, role: str, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._role = f'"role":{_encode(role)}'
        self._log = _Appender(base.log)
        self._events = _Appender(base.events)
        self._waiting: deque[tuple[float, dict[str, Any]]] = deque()

    def log(self, level: str, text: str, **fields: Any) -> None:
        """Say something to a person: level is "debug", "info", "warning" or "error"."""
        line = self._line(self._clock.wall(), {"level": level, "text": text, **fields})
        self._log.append(line)

    def event(self, event: str, **fields: Any) -> None:
        """Record a state change."""
        self.event_soon(event, **fields)
        self.catch_up()

    def event_soon(self, event: str, **fields: Any) -> None:
        """Record a state change when there is time for it: with the next, or when told to."""
        self._waiting.append((self._clock.wall(), {"event": event, **fields}))

    def catch_up(self) -> None:
        """Write what had to wait."""
        while self._waiting:
            self._events.append(self._line(*self._waiting.popleft()))

    def _line(self, at: float, fields: dict[str, Any]) -> str:
        said = ",".join(
            [f'"{key}":{repr(v) if type(v) is int else _encode(v)}' for key, v in fields.items()]
        )
        return f'{{"at":{at:.6f},{self._role},"pid":{os.getpid()},{said}'


class Silence(Journal):
    """Writes nothing: for those who only look."""

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

    def append(self, line: str) -> None:
        """Append what is a line but for its end."""
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
