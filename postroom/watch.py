"""Waiting for files: poll hot for a moment after something moved, then sleep on events.

An event is a hint to look again, never the news itself: watchdog drops overflows silently, and
network filesystems send nothing. So whoever waits here lists again after a bounded time, and after
the watch is set up: watch, then list, then wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

# watchdog's threads add a third of a millisecond to every hop: while things move, poll.
HOT_S = 0.004
POLL_S = 0.00005
# Without events (no inotify left, a network filesystem that refuses) polling goes on at this pace.
BLIND_S = 0.05


class Waiter:
    """Waits for something to happen in some folders or files."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._observer: Any = None
        self.blind = False
        self._event = threading.Event()
        self._hot_until = 0.0

    def stir(self, now: float) -> None:
        """Something moved: more is likely to come at once."""
        self._hot_until = now + HOT_S

    def wait(self, seconds: float, ready: Callable[[], bool]) -> bool:
        """Wait until `ready`, an event, or the time is up; True: look at everything again."""
        while time.monotonic() < self._hot_until:
            if ready():
                return False
            time.sleep(POLL_S)
        if self._observer is None and not self.blind:
            self._watch()
            return True
        if ready():
            return False
        if self.blind:
            time.sleep(min(seconds, BLIND_S))
            return True
        happened = self._event.wait(seconds)
        self._event.clear()
        return happened

    def wake(self) -> None:
        """End a wait from another thread."""
        self._event.set()

    def close(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None

    def _watch(self) -> None:
        # Imported late: a run that never idles never needs it.
        from watchdog.events import (
            FileCreatedEvent,
            FileDeletedEvent,
            FileModifiedEvent,
            FileMovedEvent,
            FileSystemEvent,
            FileSystemEventHandler,
        )
        from watchdog.observers import Observer

        event = self._event

        class Ring(FileSystemEventHandler):
            def on_any_event(self, _: FileSystemEvent) -> None:
                event.set()

        kinds: list[type[FileSystemEvent]] = [
            FileCreatedEvent,
            FileDeletedEvent,
            FileModifiedEvent,
            FileMovedEvent,
        ]
        observer = Observer()
        try:
            for path in self._paths:
                observer.schedule(Ring(), path, event_filter=kinds)
            observer.start()
        except OSError:
            self.blind = True
            return
        self._observer = observer
