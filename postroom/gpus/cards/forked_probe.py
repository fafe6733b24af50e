"""Forks the child process for NVML: this takes a third of the time of a new Python.

Only a process with one thread and no code of a user may fork it, as `postroom gpu get` does.
Elsewhere a fork is not safe: in a process with threads it may inherit locks that nobody will
release, and a user's program may have initialised the driver already.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time
from typing import NoReturn

END_S = 0.5


class ForkedProbe:
    """A fork of this process that calls NVML."""

    def __init__(self) -> None:
        asked, self.ask = os.pipe()
        self.answer, answers = os.pipe()
        self.error, errors = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _become_probe(asked, answers, errors)
        for fd in (asked, answers, errors):
            os.close(fd)

    def end(self) -> None:
        """Kill it; do not wait for one that hangs in the driver."""
        os.kill(self._pid, 9)
        deadline = time.monotonic() + END_S
        # Its pipes close when it dies, and stay open while it hangs.
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([self.error], [], [], left_s)[0] and not os.read(self.error, 65536):
                os.waitpid(self._pid, 0)
                break
        for fd in (self.ask, self.answer, self.error):
            os.close(fd)


def _become_probe(*pipes: int) -> NoReturn:
    try:
        # First to numbers above 2, since 0, 1 and 2 may be among the pipes.
        for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 3) for fd in pipes]):
            os.dup2(fd, place)
        # Close all else: a child that hangs must not keep the lock of a lease.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - until the end
        from . import nvml_probe

        nvml_probe.main()
    except BaseException as error:  # the parent reports it
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)
