"""What tasks print: the worker adds it to the output of the running job.

    print, logging ──► JobStream ──► KernelOutput ──► runs/<run>/output.<agent>
    subprocesses, C code ──► pipe ──► TaskOutput (guardian) ──┘   or the log, if no job runs

The worker knows which job prints. What does not pass through Python's streams comes to the guardian
through a pipe, and belongs to the job that is running when it is read.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import IO, Any

from ..store.base import Base
from ..store.files import LocalFiles
from ..store.journal import Journal
from ..store.kernel_output import add_output
from .timeouts import job_in_hand

# A line longer than this is cut in pieces.
LONGEST = 1 << 16


class KernelOutput:
    """The output of the job that is running in this worker."""

    def __init__(self, base: Base, agent_id: str) -> None:
        self._base = base
        self._agent_id = agent_id
        self.job: tuple[str, int, int] | None = None  # run, number, attempt
        self.unfinished: dict[str, bytes] = {}  # by stream: the beginning of a line
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._forked)

    def install(self) -> None:
        """Take the place of this process's stdout and stderr."""
        # Also where programs find them that put back what they have replaced.
        sys.stdout = sys.__stdout__ = self._text_stream("o", 1)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self._text_stream("e", 2)  # type: ignore[misc]

    def _text_stream(self, name: str, fd: int) -> io.TextIOWrapper:
        # Straight through: what is unfinished when a job ends is known here.
        stream: Any = JobStream(self, name, fd)
        return io.TextIOWrapper(
            stream, encoding="utf-8", errors="backslashreplace", write_through=True
        )

    def write(self, stream: str, data: bytes) -> None:
        """Take what is printed, and add whole lines to the output of the job."""
        with self._lock:
            data = self.unfinished.pop(stream, b"") + data
            end = data.rfind(b"\n") + 1 if len(data) <= LONGEST else len(data)
            if end < len(data):
                self.unfinished[stream] = data[end:]
            if end:
                self._add(stream, data[:end])

    def flush(self) -> None:
        """Add the beginnings of lines, too."""
        with self._lock:
            while self.unfinished:
                self._add(*self.unfinished.popitem())

    def _add(self, stream: str, data: bytes) -> None:
        if self.job is None:
            os.write(1 if stream == "o" else 2, data)  # no job has begun: it is for the log
        else:
            add_output(self._base, self._agent_id, self.job, stream, data)

    def _forked(self) -> None:
        self._lock = threading.RLock()  # its holder may not exist in a fork
        self.unfinished = {}  # its parent prints it


class JobStream(io.BufferedIOBase):
    """The bytes of stdout or stderr in a worker."""

    def __init__(self, output: KernelOutput, name: str, fd: int) -> None:
        self._output = output
        self._name = name
        self._fd = fd

    def writable(self) -> bool:
        """It is for writing."""
        return True

    def fileno(self) -> int:
        """The descriptor that subprocesses inherit."""
        return self._fd

    def write(self, data: Any) -> int:
        """Print some bytes."""
        self._output.write(self._name, bytes(data))
        return len(data)

    def flush(self) -> None:
        """Add what is printed to the output of the job, also if the line is not finished."""
        self._output.flush()


class TaskOutput:
    """The guardian's end of a worker's stdout and stderr; reading never waits."""

    def __init__(self, pipe: IO[bytes], base: Base, journal: Journal, agent_id: str) -> None:
        self.pipe = pipe
        self._base = base
        self._journal = journal
        self._agent_id = agent_id
        self._rest = b""
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Take what there is now; False: there is nothing now, or the pipe has ended."""
        try:
            data = os.read(self.pipe.fileno(), LONGEST)
        except BlockingIOError:
            return False
        text = self._rest + data
        end = text.rfind(b"\n") + 1
        if len(text) - end > LONGEST:
            end = len(text)
        self._rest = text[end:]
        self._add(text[:end])
        return bool(data)

    def close(self) -> None:
        """Take what is left."""
        while self.read():
            pass
        self._add(self._rest)
        self.pipe.close()

    def _add(self, data: bytes) -> None:
        if not data:
            return
        found = job_in_hand(LocalFiles(), self._base, self._agent_id)
        if found is not None:
            job = found.letter.run, found.hand.job, found.letter.attempt
            add_output(self._base, self._agent_id, job, "e", data)
            return
        for line in data.removesuffix(b"\n").split(b"\n"):
            text = line.decode(errors="replace")
            self._journal.log("info", text, agent=self._agent_id, stream="output")
