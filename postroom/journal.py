"""One log and one journal for every process of a base: JSON lines, appended in one write each.

The journal records every state change; it is a record, never the truth. Neither may stop the work:
a line that cannot be written is dropped, and counted in the next one that can.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .base import Base
from .files import Clock, SystemClock

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


class Journal:
    """Writes lines for one process, which signs them with its role."""

    def __init__(self, base: Base, role: str, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._role = role
        self._log = _Appender(base.log)
        self._events = _Appender(base.events)

    def log(self, level: str, text: str, **fields: Any) -> None:
        """Say something to a person: level is "debug", "info", "warning" or "error"."""
        self._log.append(self._line(level=level, text=text, **fields))

    def event(self, event: str, **fields: Any) -> None:
        """Record a state change."""
        self._events.append(self._line(event=event, **fields))

    def _line(self, **fields: Any) -> dict[str, Any]:
        return {
            "at": round(self._clock.wall(), 6),
            "role": self._role,
            "pid": os.getpid(),
            **fields,
        }


class Silence(Journal):
    """Writes nothing: for those who only look."""

    def __init__(self) -> None:
        pass

    def log(self, level: str, text: str, **fields: Any) -> None:
        """Drop it."""

    def event(self, event: str, **fields: Any) -> None:
        """Drop it."""


class _Appender:
    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._dropped = 0

    def append(self, line: dict[str, Any]) -> None:
        if self._dropped:
            line["dropped_before"] = self._dropped
        # ASCII: control characters of a job's output can't reach the terminal or break a line.
        data = _encode(line).encode("ascii") + b"\n"
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
