"""A worker that runs only commands: forked from the guardian, and the minder of its own commands.

It keeps nothing warm, so it starts at once. It imports nobody else's code, so it need not die with
its guardian: it finishes the running command, publishes how that ended, takes its mailbox down, and
only then the agent's lock is free. Its inbox publishes short commands together, with no word to the
guardian: that makes 700 short commands a second possible.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
from typing import Any

from ..commands.minder import Minder, MinderContext
from ..store.files import SystemClock
from ..store.journal import Journal
from ..system.fork import SIGNALS, ForkedProcess, fork_process, hear_signals
from .worker import GuardianLink, work


def fork_worker(
    context: MinderContext, settings: dict[str, Any], line: socket.socket
) -> ForkedProcess:
    """Start a worker in a process of one thread, which has all modules that it needs."""

    def begin() -> int:
        journal = Journal(context.base, f"worker {context.agent}", clock=SystemClock())
        guardian = GuardianLink(line.detach())
        run_command = Minder(context).perform
        return work(context.base, context.agent, settings, guardian, journal, run_command)

    return context.fork("worker", begin, keep=line.fileno())


def fork_session(gpu: str, base: str, log: int, **options: Any) -> ForkedProcess:
    """Start a whole session, as `python -m postroom.session` does, in a process of one thread."""
    from .__main__ import serve

    def begin() -> int:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        hear_signals()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        return serve(gpu, base, **options)

    return fork_process(begin, keep={log}, failed=traceback.print_exc)
