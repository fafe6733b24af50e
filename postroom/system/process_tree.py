"""Process trees: how to find all processes of a session again, and end them.

Killing a process group leaves double-forked children behind. So a session marks the environment of
everything it starts, adopts processes that lose their parent, and ends a tree by killing until no
process is left that carries the mark or descends from the session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection

from .absence import absent_is_fine
from .processes import Stat, stat

MARK = "POSTROOM_SESSION"
# In a session that shares GPUs: the guardian's pid. Its ancestors hold no GPU for it.
SHARES = "POSTROOM_SHARES"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# How long to look again at processes that are just being started.
_START_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Flags of a process in /proc/PID/stat (include/linux/sched.h).
_EXITING, _FORKED_NO_EXEC, _KERNEL_THREAD = 0x4, 0x40, 0x200000
# A process in an uninterruptible system call outlives even SIGKILL for a while.
_PATIENCE_S = 10.0


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that all of them can be found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies; call first thing in a child."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def mark_of(base_root: str, agent_id: str) -> str:
    """The mark that the processes of one session have in their environment.

    It holds the folder's inode: a new base in the place of one that was moved has other sessions.
    """
    inode = os.stat(base_root).st_ino if os.path.isdir(base_root) else 0
    return f"{os.path.realpath(base_root)}:{inode}:{agent_id}"


def base_of_mark(mark: str) -> str:
    """The base that a mark names."""
    return mark.rsplit(":", 2)[0]


def marked(mark: str, *, starting: bool = True) -> list[int]:
    """Every living process of this user that carries the mark, but this one.

    A process that is just being started cannot show its own environment yet: it is looked at again,
    unless `starting` ones are found by descent.
    """
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    look_at = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
    give_up_at = time.monotonic() + _START_S
    while look_at:
        unsure = set()
        for pid in look_at:
            before = stat(pid) if starting else None
            with absent_is_fine(), open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read()
                if wanted in environ.split(b"\0"):
                    found.append(pid)
                elif before is not None and _is_starting(before, bool(environ)):
                    unsure.add(pid)
        look_at = unsure if time.monotonic() < give_up_at else set()
        if look_at:
            time.sleep(0.001)
    return found


def _is_starting(before: Stat, had_environ: bool) -> bool:
    """Whether a process was before or within its exec when its environment was read."""
    if not had_environ:
        now = stat(before.pid)
        if now is None or now.state in "ZX" or now.flags & (_EXITING | _KERNEL_THREAD):
            return False
        return not now.environ_end or now.environ_end > now.environ_start
    if not before.flags & _FORKED_NO_EXEC:
        return False
    # It showed the environment of the process that forked it. If that is alive, it answers for it.
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - before.started_ticks / _TICKS_PER_S
    return age_s < _START_S and _command_line(before.pid) != _command_line(before.parent)


def _command_line(pid: int) -> bytes:
    with absent_is_fine(), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def holders(path: str) -> list[int]:
    """Every living process of this user that has a file open, but this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with absent_is_fine():
                folder = f"/proc/{name}/fd"
                if any(_is_at(f"{folder}/{fd}", path) for fd in os.listdir(folder)):
                    found.append(int(name))
    return found


def _is_at(link: str, path: str) -> bool:
    # A container may have the file at another path. Only a file of that name is looked at: one on
    # a network disk may hang.
    with absent_is_fine():
        same_name = os.path.basename(os.readlink(link)) == os.path.basename(path)
        return same_name and os.path.samefile(link, path)
    return False


def below(ancestor: int) -> list[int]:
    """Every living descendant of a process."""
    if ancestor == os.getpid() and not _has_children():
        return []
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        process = stat(int(name)) if name.isdigit() else None
        if process is not None and process.state != "Z":
            children.setdefault(process.parent, []).append(process.pid)
    found, new = [], [ancestor]
    while new:
        new = [child for pid in new for child in children.get(pid, [])]
        found += new
    return found


def parent_of(pid: int) -> int | None:
    """The parent of a process; None when it is gone."""
    process = stat(pid)
    return None if process is None else process.parent


def sweep(mark: str, *, held: str = "", own_but: Collection[int] | None = None) -> int:
    """Kill everything that carries the mark, until nothing does; return how many there were.

    With `held`, also kill all that have this file open. With `own_but`, also kill all descendants
    of this process but these: a guardian does, for those that dropped the mark. Only then are dead
    children reaped: elsewhere others wait for them.
    """
    own = own_but is not None
    if own and not reap():
        return 0  # a subreaper's descendants end up as its children: there are none
    killed: set[int] = set()
    give_up_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at:
        found = {*marked(mark, starting=not own), *(below(os.getpid()) if own else ())}
        left = found.difference(own_but or ()) or set(holders(held) if held else ())
        if own:
            reap()
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.002)
    return len(killed)


def reap() -> bool:
    """Reap dead children, so that none stays a zombie; True: some are alive."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def reap_orphans(child: int) -> None:
    """Reap dead children until one child of our own is next, which somebody else waits for."""
    with contextlib.suppress(ChildProcessError):
        while True:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is None or seen.si_pid == child:
                return
            os.waitpid(seen.si_pid, os.WNOHANG)


def _has_children() -> bool:
    """Whether we have children, dead ones that were not reaped included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
