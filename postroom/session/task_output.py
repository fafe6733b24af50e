"""The output of tasks, on its way into the log, line by line."""

from __future__ import annotations

import os
from typing import IO

from ..store.journal import Journal

# A line longer than this is cut in pieces.
LONGEST = 1 << 16


class TaskOutput:
    """The guardian's end of a worker's stdout and stderr; reading never waits."""

    def __init__(self, pipe: IO[bytes], journal: Journal, agent_id: str) -> None:
        self.pipe = pipe
        self._journal = journal
        self._agent_id = agent_id
        self._rest = b""
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Log what there is now; False: there is nothing now, or the pipe has ended."""
        try:
            data = os.read(self.pipe.fileno(), LONGEST)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._log(line)
        return bool(data)

    def close(self) -> None:
        """Log what is left."""
        while self.read():
            pass
        if self._rest:
            self._log(self._rest)
        self.pipe.close()

    def _log(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        self._journal.log("info", text, agent=self._agent_id, stream="output")
