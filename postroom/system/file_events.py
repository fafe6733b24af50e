"""Waiting for changes of files: by events, and by looking again after a limited time.

An event is only a hint to look again: Linux drops events when its queue overflows, and network
filesystems send none. So look again after a limited time, and after the watch is set up: watch,
then list, then wait. For a moment after something moved, files are polled as well, so that a chain
of short jobs does not stall even without events.

Mailboxes are watched with inotify(7) directly. watchdog's threads would take every event of a busy
one through the interpreter's lock, in the middle of the work: 0.3 ms each, where a plain `poll`
takes 0.05. Where jobs are submitted it is the other way round: events are rare, folders come and
go, and a scheduler lets watchdog follow them (`FolderWatcher`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

# After something moved, `ready` is called this often, for this long, even if no event comes.
HOT_S = 0.004
POLL_S = 0.001
# ... and first without sleeping, if the last wait was short: to let a CPU sleep and wake takes as
# long as a short job. But if other processes want the CPU, spinning only delays the result.
SPIN_S = 0.0005
# A wait up to this long counts as short. It is longer than SPIN_S: otherwise a process that slept
# once, and was woken late, would go on sleeping although results are nearly there.
SHORT_S = 0.002
# Do not spin if more than this share of recent time went to waiting for a CPU: other processes want
# it. Linux's own threads, which run now and then, stay below this share.
CROWDED_SHARE = 0.02
CROWDED_S = 0.02
# Then try again after so long, and each time that it is still crowded, after twice as long. What a
# process waits for a CPU tells nothing while it sleeps in between: a CPU of a virtual machine takes
# a tenth of a millisecond to wake up, which counts as waiting, too.
TRY_AGAIN_S = 0.1
TRY_AGAIN_MOST_S = 3.0
# Without events (no inotify left, or none at all) poll at this interval.
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
        # If jobs take longer than waking up, leave the CPU to them.
        self._spin_s = SPIN_S if spin else 0.0
        self._pid = os.getpid()
        self._events = self._wake_fd = self._schedule = -1
        self._watches: list[int] = []
        self._followed: dict[str, int] = {}  # folder: its watch
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        self.blind = False
        self._hot_until = 0.0
        self._short = True  # whether the last wait was
        self._queued_ns = 0  # how long the thread that waits here has had to wait for a CPU
        self._thread = -1
        self._ask_for_this_thread()
        self._asked_at = 0.0
        self._crowded = False
        self._try_at = 0.0  # when to spin again, and see
        self._try_s = TRY_AGAIN_S
        self._names: set[str] = set()
        self._anything = True

    def __del__(self) -> None:
        # A Master that is never closed must not leak descriptors. In a forked child the numbers may
        # belong to other files by now.
        if os.getpid() == self._pid:
            self.close()

    def expect_more(self, now: float) -> None:
        """Something moved: more is likely to come soon."""
        self._hot_until = now + HOT_S

    def wait(self, seconds: float, ready: Callable[[], bool]) -> bool:
        """Wait until `ready`, an event, or the time is up; True: look at everything again.

        An event that only says that the content of a file changed ends the wait, but gives no
        reason to list folders again.
        """
        if self._events < 0 and not self.blind:
            self._watch()
            return True
        began = now = time.monotonic()
        until = now + (min(seconds, BLIND_S) if self.blind else seconds)
        hot_until = min(self._hot_until, until)
        # Take the events that came before this wait, so that any later one ends it.
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

    def _ask_for_this_thread(self) -> None:
        """From now on, ask how long this thread waits for a CPU.

        `/proc/self` would tell of the main thread, which may do something else, or sleep.
        """
        self._thread = threading.get_native_id()
        if self._schedule >= 0:
            os.close(self._schedule)
            self._schedule = -1
        with contextlib.suppress(OSError):  # not every Linux has it
            path = "/proc/thread-self/schedstat"
            self._schedule = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._queued_ns = self._read_queued_ns()

    def _read_queued_ns(self) -> int:
        # Nanoseconds running, nanoseconds waiting for a CPU, number of time slices.
        return int(os.pread(self._schedule, 100, 0).split()[1])

    def _is_crowded(self, now: float) -> bool:
        """Whether other processes want this CPU: then sleeping gets the result sooner."""
        since = now - self._asked_at
        if since >= CROWDED_S and self._thread != threading.get_native_id():
            self._ask_for_this_thread()
            self._asked_at = now
        elif since >= CROWDED_S and self._schedule >= 0 and now >= self._try_at:
            queued_ns = self._read_queued_ns()
            spun, waited_ns = not self._crowded, queued_ns - self._queued_ns
            self._crowded = spun and waited_ns > CROWDED_SHARE * since * 1e9
            if self._crowded:
                self._try_at = now + self._try_s
                self._try_s = min(2 * self._try_s, TRY_AGAIN_MOST_S)
            elif spun:
                self._try_s = TRY_AGAIN_S
            self._queued_ns, self._asked_at = queued_ns, now
        return self._crowded

    def take_names(self) -> set[str] | None:
        """The names in watched folders that changed since the last call; None: any may have."""
        names = None if self._anything or self.blind else self._names
        self._names, self._anything = set(), False
        return names

    def wake(self) -> None:
        """End a wait from another thread: anything may have changed."""
        self._anything = True
        os.eventfd_write(self._wake_fd, 1)

    def nudge(self) -> None:
        """End a wait from another thread: nothing has changed that a listing would show."""
        os.eventfd_write(self._wake_fd, 1)

    def notify(self, name: str) -> None:
        """End a wait from another thread: something of this name has changed."""
        self._names.add(name)
        os.eventfd_write(self._wake_fd, 1)

    def follow(self, folders: Collection[str]) -> None:
        """Watch these folders as well, for now: what is created in them ends a wait."""
        if self._events < 0 or self._followed.keys() == set(folders):
            return
        libc = ctypes.CDLL(None, use_errno=True)
        for folder in self._followed.keys() - set(folders):
            libc.inotify_rm_watch(self._events, self._followed.pop(folder))
        for folder in set(folders) - self._followed.keys():
            watch = libc.inotify_add_watch(self._events, os.fsencode(folder), _CREATE)
            if watch >= 0:
                self._followed[folder] = watch

    def rest(self) -> None:
        """Stop watching, some time before `close`.

        To close an inotify descriptor, Linux waits until no event can be in progress: some 10 ms,
        on a busy machine 100. After this, `close` need not wait.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        for watch in self._watches:
            libc.inotify_rm_watch(self._events, watch)
        self._watches = []

    def close(self) -> None:
        """Stop watching."""
        for fd in (self._events, self._wake_fd, self._schedule):
            if fd >= 0:
                os.close(fd)
        self._events = self._wake_fd = self._schedule = -1
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
        """Take the events, or None; True: more than the content of files has changed."""
        happened = self._poll.poll(timeout * 1000)
        if not happened:
            return None
        listed = False
        for fd, _ in happened:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                listed |= self._anything or bool(self._names)
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


def listen(path: str) -> int | None:
    """A descriptor that can be read when there are new names in a folder, or a file is changed.

    None: no events here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), _MOVED_TO | _CREATE | _MODIFY) < 0:
        os.close(fd)
        return None
    return fd


class FolderWatcher:
    """Calls a function when something is created below a folder, with the name of the entry in it.

    Without inotify it does nothing: the folder is listed every second anyway.
    """

    def __init__(self, folder: str, notify: Callable[[str], None]) -> None:
        self._folder = folder
        self._notify = notify
        self._observer: BaseObserver | None = None

    def __enter__(self) -> FolderWatcher:
        import logging

        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        # Its threads may complain about being stopped; keep that off the user's terminal.
        logging.getLogger("watchdog").addHandler(logging.NullHandler())
        folder, notify = self._folder, self._notify

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                # Only new names: checking a lock is an event too, and every call leads to a check,
                # so this would never end.
                if event.event_type in ("created", "moved"):
                    inside = os.path.relpath(os.fsdecode(event.dest_path or event.src_path), folder)
                    notify(inside.split(os.sep)[0])

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
