"""The keeper: a process that holds a lease for the shell that called `postroom gpu get`.

`get` prints the id of a card and exits, but the lease belongs to the calling shell. So `get` leaves
a small process behind, the keeper, which has the lock. The keeper exits when that shell and every
process that the shell has started since are gone.

Which shell? In `ID=$(postroom gpu get)` our parent may be a subshell that exits at once. The owner
is the process that reads our answer: the nearest ancestor with the other end of our stdout open.

What has the shell started? While it lives, the keeper notes its descendants five times a second.
When one of these dies, Linux gives its children to init or another reaper. The keeper then looks
once for children that were born since its last note, by session, start time and new parent. It
misses a process that leaves the session and loses its parent between two notes. `postroom gpu run`
has no such gap, since the command itself inherits the lock, and is the better way.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from ...errors import GpuError
from ...system import processes
from ...system.absence import absent_is_fine
from ...system.processes import Process
from .protocol import Lease

TICK_S = 0.2
PIPELINE_LIMIT = 8
_INITS = ("init", "systemd", "tini", "dumb-init", "docker-init", "catatonit")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def caller(fd: int = 1) -> Process:
    """Return who owns the lease: the nearest ancestor that reads our output, or our parent.

    Raises GpuError when the parent has ended before we could see it.
    """
    above = processes.ancestors()
    parent = above[0] if above else os.getppid()
    owner = _destination(os.getpid(), fd, above, PIPELINE_LIMIT)
    if owner is None and _is_orphan(parent):
        raise GpuError(
            "nobody to hold a GPU for: the program that called `postroom gpu get` has ended, or "
            "has left it alone (setsid); use `postroom gpu run -- CMD`"
        )
    return processes.identify(owner or parent) or processes.myself()


def _is_orphan(parent: int) -> bool:
    """Whether init, or another reaper, is our parent because the real one has ended.

    A reaper is never in our session. If we lead a session of our own (`setsid`, ssh), the parent
    may be a real one, unless it is an init.
    """
    seen = processes.stat(parent)
    if seen is None:
        return True
    if os.getsid(0) == os.getpid():
        return parent == 1 or seen.command in _INITS
    return seen.session != os.getsid(0)


def _destination(pid: int, fd: int, above: list[int], limit: int) -> int | None:
    """Return the nearest ancestor of ours that reads the output of a process, or None.

    In `ID=$(postroom gpu get | tail -1)` a sibling is between: tail reads ours, the shell tail's.
    """
    pipe = _pipe(pid, fd)
    if pipe is None or limit == 0:
        return None
    for ancestor in above:
        if _reads(ancestor, pipe):
            return ancestor
    for ancestor in above:
        for sibling in _children(ancestor):
            if sibling not in above and sibling != os.getpid() and _reads(sibling, pipe):
                return _destination(sibling, 1, above, limit - 1)
    return None


def _pipe(pid: int, fd: int) -> str | None:
    """Return the name of the pipe that a process writes to, or None if it is not a pipe."""
    with absent_is_fine():
        name = os.readlink(f"/proc/{pid}/fd/{fd}")
        return name if name.startswith("pipe:") else None
    return None


def _reads(pid: int, pipe: str) -> bool:
    """Whether a process has a pipe open for reading."""
    with absent_is_fine():
        for name in os.listdir(f"/proc/{pid}/fd"):
            with absent_is_fine():
                path = f"/proc/{pid}/fd/{name}"
                # The mode of the link shows how the descriptor was opened: r--, -w- or rw-.
                if os.readlink(path) == pipe and os.lstat(path).st_mode & stat.S_IRUSR:
                    return True
    return False


class OwnerProcesses:
    """The owner of a lease and the processes that it has started since."""

    def __init__(self, head: Process) -> None:
        self.head = head
        self._fds: dict[int, int] = {}  # pid: pidfd, which never means another process
        self._sessions: set[int] = set()
        self._just_died = False  # one has just died, and others are alive
        self._ended: list[int] = []  # the pidfds of the dead whose orphans were not looked for yet
        self._ended_ticks = 0
        self._since_ticks = self._noted_ticks = _now_ticks()
        self._adopt(head.pid, head.started_ticks)

    def step(self, wait_s: float) -> bool:
        """Note the processes, then wait for a death or `wait_s`; False when all are gone."""
        try:
            return self._step(wait_s)
        except OSError:  # no descriptor is free: nobody is taken for gone
            time.sleep(wait_s)
            return True

    def _step(self, wait_s: float) -> bool:
        pids = {fd: pid for pid, fd in self._fds.items()}
        if not self._ended:
            self._note_descendants()
            pids = {fd: pid for pid, fd in self._fds.items()}
            if self._just_died:
                # A script may start a thousand programs: do not look after each death.
                time.sleep(wait_s)
            poll = select.poll()
            for fd in pids:
                poll.register(fd, select.POLLIN)
            self._ended = [fd for fd, _ in poll.poll(wait_s * 1000)]
            self._ended_ticks = _now_ticks()
        if self._ended:
            self._adopt_orphans(self._ended_ticks)
        for fd in self._ended:
            del self._fds[pids[fd]]
            os.close(fd)
        self._just_died = bool(self._ended)
        self._ended = []
        return bool(self._fds)

    def _adopt(self, pid: int, started_ticks: int | None = None) -> None:
        if pid in self._fds or pid == os.getpid():
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        # Read after the descriptor is open, so that it cannot be another process.
        seen = processes.stat(pid)
        if seen is None or (started_ticks or seen.started_ticks) != seen.started_ticks:
            os.close(fd)
            return
        self._fds[pid] = fd
        self._sessions.add(seen.session)

    def _note_descendants(self) -> None:
        self._noted_ticks = _now_ticks()
        pending = list(self._fds)
        while pending:
            for child in _children(pending.pop()):
                seen = processes.stat(child)
                # A process from before the request does not use the card.
                if child in self._fds or seen is None or seen.started_ticks < self._since_ticks:
                    continue
                self._adopt(child, seen.started_ticks)
                pending.append(child)

    def _adopt_orphans(self, until_ticks: int) -> None:
        """Find the processes that were started between the last note and a death."""
        # An orphan gets the reaper that became our own parent when `get` exited. Children of others
        # do not count: the next script of the same parent would, too.
        reaper = os.getppid()
        for seen in _all_processes():
            if (
                seen.session in self._sessions
                and self._noted_ticks - 2 <= seen.started_ticks <= until_ticks
                and seen.parent == reaper
                and seen.state not in "ZX"
            ):
                self._adopt(seen.pid, seen.started_ticks)


def keep(lease: Lease, owner: Process) -> None:
    """Start a keeper that has the lease until the owner and its descendants are gone.

    Nothing else changes in this process, except that it closes its own copy of the lock.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        raise GpuError(
            "`postroom gpu get` needs Linux 5.3: use `postroom gpu run -- CMD`"
        ) from None
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(told)
            _become_keeper(lease, owner, tell)
        finally:
            os._exit(0)
    os.close(tell)
    with open(told, "rb") as file:
        kept = file.read(1)  # the lease names the keeper now; empty: the keeper is dead
    for fd in lease.fds:
        os.close(fd)
    lease.fds = ()
    if not kept:
        os.waitpid(pid, 0)
        raise GpuError("the keeper of the lease died at its start, so no GPU is held: try again")


def _leave_terminal(kept: set[int]) -> None:
    """Keep nothing open but some descriptors: nobody waits for us, nothing reaches us."""
    os.setsid()  # a Ctrl-C in the terminal, or its hang-up, must not reach us
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nowhere, fd)


def note_end(lease: Lease, path: str, settle: Callable[[], None]) -> None:
    """Leave a process behind that writes down when a lease ends; it does not hold it.

    It is for a program that is about to become another one, and cannot do it itself. If it is
    killed, the next request of this user clears the lease away, and when it ended is not known.
    """
    pid = os.fork()
    if pid == 0:
        try:
            for fd in lease.fds:
                os.close(fd)
            if os.fork():  # so it is nobody's child: the command may wait for all of its own
                os._exit(0)
            _leave_terminal(set())
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            fcntl.flock(fd, fcntl.LOCK_SH)
            os.close(fd)
            settle()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _become_keeper(lease: Lease, owner: Process, tell: int) -> None:
    _leave_terminal({*lease.fds, tell})
    with suppress(_Dismissed):
        signal.signal(signal.SIGTERM, _on_dismissed)
        owned = OwnerProcesses(owner)
        lease.amend(keeper=processes.myself())
        os.write(tell, b".")
        os.close(tell)
        while owned.step(TICK_S):
            pass
    lease.release()


class _Dismissed(Exception):
    """The owner releases the lease."""


def _on_dismissed(number: int, frame: object) -> None:
    # An exception ends the wait; after a handler that returns, Python continues it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Dismissed


def dismiss(keeper: Process) -> bool:
    """Tell a keeper to release its lease; False if it is gone already."""
    try:
        fd = os.pidfd_open(keeper.pid)
    except ProcessLookupError:
        return False
    try:
        if processes.alive(keeper) is not True:
            return False
        signal.pidfd_send_signal(fd, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def _children(pid: int) -> list[int]:
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        # Linux was built without that file: read all processes instead, which is slower.
        return [seen.pid for seen in _all_processes() if seen.parent == pid]
    found: list[int] = []
    with absent_is_fine():
        for task in os.listdir(f"/proc/{pid}/task"):
            with absent_is_fine(), open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _all_processes() -> Iterator[processes.Stat]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            seen = processes.stat(int(name))
            if seen is not None:
                yield seen


def _now_ticks() -> int:
    """Return the time in the units of a process's start time: clock ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)
