"""Forking without exec: the child becomes a process of its own and loses no signal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def fork_unheard() -> int:
    """Fork; signals to the child wait until it has handlers of its own, and calls `hear_signals`.

    The handlers of the parent would swallow them, or raise in the middle of the fork.
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
