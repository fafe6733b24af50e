"""The guardian's part in running commands: it starts a minder, and passes bytes to it and back.

The worker of a warm session cannot fork safely, because torch has threads and the GPU has state. So
its guardian forks the minder, and passes on the worker's attempts and the minder's words unread.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable

from ..commands.minder import MinderContext, fork_minder
from ..system.fork import ForkedProcess


class CommandRelay:
    """One minder at a time, and whether it runs a command."""

    def __init__(
        self,
        context: MinderContext,
        selector: selectors.BaseSelector,
        *,
        ended: Callable[[bytes], None],
    ) -> None:
        self._context = context
        self._selector = selector
        self._ended = ended  # called with the minder's line, or LOST when it died
        self._socket: socket.socket | None = None
        self._minder: ForkedProcess | None = None
        self.busy = False

    def give(self, attempt: bytes) -> None:
        """Have a command run by the minder, which is started first where there is none."""
        if self._socket is None:
            self._minder, self._socket = fork_minder(self._context)
            self._selector.register(self._socket, selectors.EVENT_READ, self._hear)
        self.busy = True
        with contextlib.suppress(OSError):  # it has just died: its socket will say so
            self._socket.sendall(attempt + b"\n")

    def stop(self) -> None:
        """End the running command and all that it has started: now, and without blame."""
        if self._minder is not None:
            self._minder.terminate()

    def _hear(self, minder: socket.socket) -> None:
        try:
            word = minder.recv(4096)
        except ConnectionError:
            word = b""
        if not word:
            self.close()
            word = LOST if self.busy else b""
        if word:
            self.busy = False
            self._ended(word)

    def close(self) -> None:
        """Let the minder go; one that runs a command stays with it."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = self._minder = None


LOST = b"lost\n"
