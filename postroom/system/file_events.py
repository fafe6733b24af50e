"""Waiting for files: sleep on the kernel's events, and look again after a bounded time anyway.

An event is a hint to look again, never the news itself: the kernel drops what overflows its queue,
and network filesystems send nothing. So whoever waits here lists again after a bounded time, and
after the watch is set up: watch, then list, then wait. For a moment after something moved, files
are polled as well, so that even without events a chain of short jobs does not stall.

Mailboxes are watched with inotify(7) directly. watchdog's threads would take every event of a busy
one through the interpreter's lock, in the middle of the work: 0.3 ms a hop, where a plain `poll`
takes 0.05. Where jobs are handed in, it is the other way round: events are rare, folders come and
go, and a standing Master leaves it to watchdog to follow them (`FolderWatcher`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

# While things move, `ready` is asked this often, for this long, even if no event comes.
HOT_S = 0.004
POLL_S = 0.001
# ... and first without sleeping, if the last wait was short: to put a core to sleep and wake it
# takes as long as a short job, but where others want the core, spinning only delays the answer.
SPIN_S = 0.0005
# A wait up to this long counts as short. It is more than the time that is spun for: whoever once
# slept, and was woken late, would else go on sleeping through answers that are nearly there.
SHORT_S = 0.002
# Whoever has waited for a core for this share of some time does not spin: others want it, too. The
# kernel's own threads, which come now and then, do not count for so much.
CROWDED_SHARE = 0.02
CROWDED_S = 0.02
# Without events (no inotify left, a system that has none) polling goes on at this pace.
BLIND_S = 0.05

_MODIFY, _ATTRIB, _OVERFLOW = 0x2, 0x4, 0x4000
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_WATCHED = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_EVENTS_SIZE = 1 << 16


class Waiter:
    """Waits for something to happen in some folders or files."""

    def __init__(self, paths: Sequence[str], *, spin: bool = True) -> None:
        self._paths = paths
        # Where jobs take longer than waking up does, the core is better left to them.
        self._spin_s = SPIN_S if spin else 0.0
        self._pid = os.getpid()
        self._events = self._bell = self._schedule = -1
        self._watches: list[int] = []
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self.blind = False
        self._hot_until = 0.0
        self._short = True  # whether the last wait was
        self._queued_ns = 0  # how long this process has had to wait for a core
        with contextlib.suppress(OSError):  # not every kernel tells
            self._schedule = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._asked_at = 0.0
        self._crowded = False
        self._names: set[str] = set()
        self._anything = True

    def __del__(self) -> None:
        # Whoever forgets to close a Master must not run out of descriptors. In a fork, the numbers
        # may stand for something else by now.
        if os.getpid() == self._pid:
            self.close()

    def expect_more(self, now: float) -> None:
        """Something moved: more is likely to come at once."""
        self._hot_until = now + HOT_S

    def wait(self, seconds: float, ready: Callable[[], bool]) -> bool:
        """Wait until `ready`, an event, or the time is up; True: look at everything again.

        An event that only says that a file's content changed ends the wait, but is no reason to
        list folders again.
        """
        if self._events < 0 and not self.blind:
            self._watch()
            return True
        began = now = time.monotonic()
        until = now + (min(seconds, BLIND_S) if self.blind else seconds)
        hot_until = min(self._hot_until, until)
        # What came while nobody waited is taken first, so that all that follows ends the wait.
        if self._take_events(0.0):
            return True
        spins = self._short and not self._is_crowded(began)
        spin_until = began + self._spin_s if spins else began
        self._short = False
        while not ready():
            if now < hot_until and now < spin_until:
                timeout = 0.0
            elif now < hot_until:
                timeout = min(POLL_S, until - now)
            else:
                timeout = max(until - now, 0.0)
            if timeout and (listed := self._take_events(timeout)) is not None:
                self._short = time.monotonic() < began + SHORT_S
                return listed
            now = time.monotonic()
            if now >= until:
                return self.blind
        self._short = now < began + SHORT_S
        return False

    def _is_crowded(self, now: float) -> bool:
        """Whether others want this core, too: then the answer comes sooner from who sleeps."""
        since = now - self._asked_at
        if since >= CROWDED_S and self._schedule >= 0:
            # Nanoseconds at work, nanoseconds in the queue, and how often it was its turn.
            queued_ns = int(os.pread(self._schedule, 100, 0).split()[1])
            self._crowded = queued_ns - self._queued_ns > CROWDED_SHARE * since * 1e9
            self._queued_ns, self._asked_at = queued_ns, now
        return self._crowded

    def take_names(self) -> set[str] | None:
        """The names in watched folders that have changed since last asked; None: any may have."""
        names = None if self._anything or self.blind else self._names
        self._names, self._anything = set(), False
        return names

    def wake(self) -> None:
        """End a wait from another thread: anything may have changed."""
        self._anything = True
        os.eventfd_write(self._bell, 1)

    def ring(self, name: str) -> None:
        """End a wait from another thread: something of this name has changed."""
        self._names.add(name)
        os.eventfd_write(self._bell, 1)

    def rest(self) -> None:
        """Hear no more events, since the end is near.

        To close a descriptor that watches, the kernel waits until nobody can be in the middle of
        an event: some 10 ms, on a busy machine 100. Whoever stops watching in time need not wait.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        for watch in self._watches:
            libc.inotify_rm_watch(self._events, watch)
        self._watches = []

    def close(self) -> None:
        """Stop watching."""
        for fd in (self._events, self._bell, self._schedule):
            if fd >= 0:
                os.close(fd)
        self._events = self._bell = self._schedule = -1
        self.blind = True

    def _watch(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        watches = [libc.inotify_add_watch(fd, os.fsencode(path), _WATCHED) for path in self._paths]
        if fd < 0 or min(watches) < 0:
            self.blind = True
            if fd >= 0:
                os.close(fd)
            return
        self._events = fd
        self._watches = watches
        self._poll.register(fd, select.POLLIN)

    def _take_events(self, timeout: float) -> bool | None:
        """Take what has happened, or None; True: more than the content of files."""
        happened = self._poll.poll(timeout * 1000)
        if not happened:
            return None
        listed = False
        for fd, _ in happened:
            if fd == self._bell:
                os.eventfd_read(fd)
                listed = True
                continue
            data = os.read(fd, _EVENTS_SIZE)
            at = 0
            while at < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                if mask & ~_MODIFY:
                    listed = True
                    self._names.add(os.fsdecode(data[at - length : at].rstrip(b"\0")))
                    self._anything |= bool(mask & _OVERFLOW)
        return listed


def listen(folder: str) -> int | None:
    """A descriptor that can be read when names in a folder have changed; None: no events here."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(folder), _MOVED_TO | _CREATE) < 0:
        os.close(fd)
        return None
    return fd


class FolderWatcher:
    """Rings when something happens anywhere below a folder, with the name of the part it was in.

    Without inotify it stays silent: who listens looks around every second anyway.
    """

    def __init__(self, folder: str, ring: Callable[[str], None]) -> None:
        self._folder = folder
        self._ring = ring
        self._observer: BaseObserver | None = None

    def __enter__(self) -> FolderWatcher:
        import logging

        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        # Its threads may complain of being stopped; that is nothing for a user's terminal.
        logging.getLogger("watchdog").addHandler(logging.NullHandler())
        folder, ring = self._folder, self._ring

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                # Only new names: a look at a lock is an event, too, and whoever hears the bell
                # looks, so that it would ring for ever.
                if event.event_type in ("created", "moved"):
                    inside = os.path.relpath(os.fsdecode(event.dest_path or event.src_path), folder)
                    ring(inside.split(os.sep)[0])

        observer = Observer()
        with contextlib.suppress(OSError):
            observer.schedule(Handler(), folder, recursive=True)
            observer.start()
            self._observer = observer
        return self

    def __exit__(self, *_: object) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
