"""Holding a lease for a shell that cannot hold it itself: what `postroom gpu get` leaves behind.

`get` prints a card's number and ends, but the lease belongs to the shell that asked. So a small
process, the keeper, has the lock, and ends when that shell and whatever it has started since are
gone.

Which shell? In `ID=$(postroom gpu get)` our parent may be a subshell that is dead the next moment.
The one that lives on is the one that our answer reaches: the nearest ancestor that has the other
end of our stdout open.

What has it started? While the shell lives, its descendants are noted a few times a second. When one
of those noted dies, its children are handed to init or another reaper, where the one look that
follows finds those that were born since the last note, by session, time of birth and new parent. A
process that leaves the session and loses its parent between two notes escapes: `postroom gpu run`,
whose lock is inherited by the command itself, has no such gap, and is the better way.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import suppress

from ...errors import GpuError
from ...system import processes
from ...system.processes import Process
from .protocol import Lease

TICK_S = 0.2
PIPELINE_LIMIT = 8
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def caller(fd: int = 1) -> Process:
    """Return the process that lives on with our answer: the ancestor that what we write reaches."""
    above = processes.ancestors()
    parent = above[0] if above else os.getppid()
    owner = _destination(os.getpid(), fd, above, PIPELINE_LIMIT)
    return processes.identify(owner or parent) or processes.myself()


def _destination(pid: int, fd: int, above: list[int], limit: int) -> int | None:
    """Follow a process's output to the nearest ancestor of ours that reads it, or None.

    In `ID=$(postroom gpu get | tail -1)` it goes by a sibling: tail reads ours, the shell tail's.
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
    """Return the name of the pipe that a process writes to, or None when it is no pipe."""
    with suppress(OSError):
        name = os.readlink(f"/proc/{pid}/fd/{fd}")
        return name if name.startswith("pipe:") else None
    return None


def _reads(pid: int, pipe: str) -> bool:
    """Say whether a process has a pipe open for reading."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = f"/proc/{pid}/fd/{name}"
                # The mode of the link shows how the descriptor was opened: r--, -w- or rw-.
                if os.readlink(path) == pipe and os.lstat(path).st_mode & stat.S_IRUSR:
                    return True
    return False


class OwnerProcesses:
    """A process and what it has started since: alive until the last of them is gone."""

    def __init__(self, head: Process) -> None:
        self.head = head
        self._fds: dict[int, int] = {}  # pid: pidfd, which stays true when the pid is used again
        self._sessions: set[int] = set()
        self._just_died = False  # one has just died, and others live
        self._since_ticks = self._noted_ticks = _now_ticks()
        self._adopt(head.pid, head.started_ticks)

    def step(self, wait_s: float) -> bool:
        """Note the family as it is now, wait for a death or for `wait_s`; False: all are gone."""
        self._note()
        if not self._fds:
            return False
        if self._just_died:
            # A script that starts a thousand programs is looked after by and by, not at each death.
            time.sleep(wait_s)
        poll = select.poll()
        pids = {fd: pid for pid, fd in self._fds.items()}
        for fd in pids:
            poll.register(fd, select.POLLIN)
        ended = [fd for fd, _ in poll.poll(wait_s * 1000)]
        now_ticks = _now_ticks()
        for fd in ended:
            del self._fds[pids[fd]]
            os.close(fd)
        if ended:
            self._adopt_orphans(now_ticks)
        self._just_died = bool(ended)
        return bool(self._fds)

    def _adopt(self, pid: int, started_ticks: int | None = None) -> None:
        if pid in self._fds or pid == os.getpid():
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        # Looked at once the descriptor is open: now it can't become another process.
        seen = processes.stat(pid)
        if seen is None or (started_ticks or seen.started_ticks) != seen.started_ticks:
            os.close(fd)
            return
        self._fds[pid] = fd
        self._sessions.add(seen.session)

    def _note(self) -> None:
        self._noted_ticks = _now_ticks()
        pending = list(self._fds)
        while pending:
            for child in _children(pending.pop()):
                seen = processes.stat(child)
                # What ran before the lease was asked for does not use the card.
                if child in self._fds or seen is None or seen.started_ticks < self._since_ticks:
                    continue
                self._adopt(child, seen.started_ticks)
                pending.append(child)

    def _adopt_orphans(self, until_ticks: int) -> None:
        """Find what was born between the last note and a death."""
        # An orphan goes to the reaper to which we went ourselves, when `get` ended. Nobody else's
        # children count: the script that follows a script is a child of the same parent, too.
        reaper = os.getppid()
        for seen in _everybody():
            if (
                seen.session in self._sessions
                and self._noted_ticks - 2 <= seen.started_ticks <= until_ticks
                and seen.parent == reaper
                and seen.state not in "ZX"
            ):
                self._adopt(seen.pid, seen.started_ticks)


def keep(lease: Lease, owner: Process) -> None:
    """Leave a keeper behind that has the lease until the owner and its offspring are gone.

    This process stays as it was, except that its copy of the lock is closed.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        raise GpuError(
            "this kernel cannot watch a shell (it takes Linux 5.3): use `postroom gpu run -- CMD`"
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
        file.read(1)  # the keeper is in the record, or dead
    for fd in lease.fds:
        os.close(fd)
    lease.fds = ()


def _become_keeper(lease: Lease, owner: Process, tell: int) -> None:
    os.setsid()  # a Ctrl-C in the terminal, or its end, is not meant for us
    os.chdir("/")
    kept = {*lease.fds, tell}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nowhere, fd)
    with suppress(_Dismissed):
        signal.signal(signal.SIGTERM, _let_go)
        family = OwnerProcesses(owner)
        lease.amend(keeper=processes.myself())
        os.write(tell, b".")
        os.close(tell)
        while family.step(TICK_S):
            pass
    lease.release()


class _Dismissed(Exception):
    """The owner gives the lease back."""


def _let_go(number: int, frame: object) -> None:
    # Raised, so that it ends the wait: after a handler that returns, Python goes on waiting.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Dismissed


def dismiss(keeper: Process) -> bool:
    """Tell a keeper to let go; False when it is gone already."""
    try:
        fd = os.pidfd_open(keeper.pid)
    except OSError:
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
        # A kernel without that file: slower, but it knows as much.
        return [seen.pid for seen in _everybody() if seen.parent == pid]
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _everybody() -> Iterator[processes.Stat]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            seen = processes.stat(int(name))
            if seen is not None:
                yield seen


def _now_ticks() -> int:
    """Return the time in the units of a process's start time: clock ticks since boot."""
    import time

    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)
