"""A worker for commands only: forked from the guardian, and the minder of its own commands.

With nothing to keep warm there is nothing to load, so it is there at once; and since it imports no
code of others, it need not die with its guardian: it finishes the command in hand, publishes how
that ended, takes its mailbox down, and only then the agent's lock is free.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import traceback
from collections.abc import Callable
from typing import IO, Any

from ..commands.attempt import AttemptEnd, CommandAttempt
from ..commands.minder import Minder, MinderContext
from ..store.files import SystemClock
from ..store.journal import Journal
from ..system import cgroups
from ..system.fork import SIGNALS, fork_unheard, hear_signals, settle_in
from .worker import GuardianLink, work


class ForkedWorker:
    """A forked worker, seen from its guardian as `subprocess.Popen` shows others."""

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
            except ChildProcessError:  # somebody swept it away
                pid, status = self.pid, signal.SIGKILL
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def terminate(self) -> None:
        """Have it end the command in hand, and itself."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it; what it leaves is swept."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkedGuardianLink(GuardianLink):
    """The line to a guardian that only says stop: commands are run right here."""

    def __init__(self, own: socket.socket, post: MinderContext) -> None:
        super().__init__(own.detach())
        self._minder = Minder(post, None)

    def ask(self, errand: CommandAttempt, lingers: Callable[[], None]) -> AttemptEnd | None:
        """Run a command, and tell how it ended: the desk publishes it."""
        return self._minder.perform(errand, lingers)


def fork_session(gpu: str, base: str, log: int, **scheduling: Any) -> ForkedWorker:
    """Start a whole session, as `python -m postroom.session` does, in a process of one thread."""
    from .__main__ import serve

    pid = fork_unheard()
    if pid:
        return ForkedWorker(pid)
    code = 1
    try:
        settle_in({log})
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        hear_signals()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        os.umask(0o077)
        code = serve(gpu, base, **scheduling)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def fork_worker(post: MinderContext, settings: dict[str, Any], line: socket.socket) -> ForkedWorker:
    """Start a worker in a process of one thread, which has all modules that it needs."""
    lock = os.dup(post.lock_fd)
    pid = fork_unheard()
    if pid:
        os.close(lock)
        return ForkedWorker(pid)
    journal = Journal(post.base, f"worker {post.agent}", clock=SystemClock())
    try:
        settle_in({lock, line.fileno(), *post.lease_fds})
        cgroups.enter(post.cgroup)
        work(post.base, post.agent, settings, ForkedGuardianLink(line, post), journal)
    except BaseException:
        with contextlib.suppress(BaseException):
            journal.log("error", traceback.format_exc())
        os._exit(1)
    os._exit(0)
