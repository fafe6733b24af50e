"""Trees of processes: how they are tied together, found again and ended, all of them.

Killing a process group leaves double-forked children behind. So a session marks the environment of
everything it starts, is the reaper of what loses its parent, and ends a tree by sweeping until
nothing that carries the mark is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

MARK = "POSTROOM_SESSION"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# A process in an uninterruptible system call outlives even SIGKILL for a while.
_PATIENCE_S = 10.0


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that none of them is lost sight of."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies; call first thing in a child."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Every living process of this user that carries the mark, but this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
    return found


def sweep(mark: str) -> int:
    """Kill everything that carries the mark, until nothing does; return how many there were."""
    killed: set[int] = set()
    give_up_at = time.monotonic() + _PATIENCE_S
    while (left := marked(mark)) and time.monotonic() < give_up_at:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        reap()
        time.sleep(0.002)
    reap()
    return len(killed)


def reap() -> None:
    """Take note of dead children, so that none stays behind as a zombie."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
