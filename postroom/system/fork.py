"""Forking without exec: the child becomes a process of its own and loses no signal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection
from typing import IO

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def fork_unheard() -> int:
    """Fork; signals to the child wait until it has its own handlers and calls `hear_signals`.

    The parent's handlers would swallow them, or raise in the middle of the fork.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def hear_signals() -> None:
    """Unblock signals; those that have arrived are handled first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def settle_in(keep: Collection[int]) -> None:
    """Separate a forked child from its parent: of the open descriptors, keep only these."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def fork_process(
    body: Callable[[], int | None], *, keep: Collection[int], failed: Callable[[], None]
) -> ForkedProcess:
    """Run a function in a forked process, which ends with the exit code that it returns.

    `failed` is called when it raises. The caller must have one thread only.
    """
    pid = fork_unheard()
    if pid:
        return ForkedProcess(pid)
    code = 1
    try:
        settle_in(keep)
        code = body() or 0
    except BaseException:
        with contextlib.suppress(BaseException):
            failed()
    finally:
        os._exit(code)


class ForkedProcess:
    """A forked child, with the methods of `subprocess.Popen`."""

    stdout: IO[bytes] | None = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, once it has one."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for its end."""
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # another part of this process has reaped it
                pid, status = self.pid, signal.SIGKILL
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def terminate(self) -> None:
        """Make it end its running command, and itself."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it; what it leaves is swept."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
