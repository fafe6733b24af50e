"""The guardian's side of commands: its minder, what it is asked to do, and how that ends.

The worker asks, the minder does, and the guardian passes words between them: forking is safe here
only, in a process of one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
from collections.abc import Callable

from ..commands.minder import MinderContext, fork_minder


class CommandRelay:
    """One minder at a time, and whether it has a command in hand."""

    def __init__(
        self,
        post: MinderContext,
        selector: selectors.BaseSelector,
        *,
        ended: Callable[[str], None],
    ) -> None:
        self._post = post
        self._selector = selector
        self._ended = ended  # called with the minder's word, or "lost" when it died
        self._line: socket.socket | None = None
        self.pid: int | None = None
        self.busy = False

    def give(self, errand: bytes) -> None:
        """Have an errand carried out, by the minder that is there or by a new one."""
        if self._line is None:
            self.pid, self._line = fork_minder(self._post)
            self._selector.register(self._line, selectors.EVENT_READ, self._hear)
        self.busy = True
        with contextlib.suppress(OSError):  # it has just died: its line will say so
            self._line.sendall(errand)

    def stop(self) -> None:
        """End the command in hand, and all that it has started: now, and without blame."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def _hear(self, line: socket.socket) -> None:
        try:
            data = line.recv(4096)
        except ConnectionError:
            data = b""
        if data:
            self.busy = False
            self._ended(str(json.loads(data)["ended"]))
            return
        self.close()
        if self.busy:
            self.busy = False
            self._ended("lost")

    def close(self) -> None:
        """Let the minder go; one with a command in hand stays with it."""
        if self._line is not None:
            self._selector.unregister(self._line)
            self._line.close()
            self._line = None
            self.pid = None
