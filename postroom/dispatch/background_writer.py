"""Writes the next large parcels while the Master sends letters and collects results.

A parcel of 16 MB takes some 4 ms to check and to write. An agent that asks for its next letter
meanwhile would wait that long, and two agents with jobs of 10 ms would wait for the next parcel.
Here the files are written by threads. What decides, the record in the append log, is written by the
thread that the Master runs in, in the order of the jobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from ..store.append_log import AppendLogWriter, ParcelFile
from ..system.background import Background
from .job_writer import Batch, pack_batch

# More would only wait for memory.
THREADS = 2


@dataclass(frozen=True)
class Writing:
    """Jobs whose parcel is being written."""

    batch: Batch
    file: Future[ParcelFile]
    append_log: AppendLogWriter

    def drop(self) -> Batch:
        """Give it up: its file is removed, if it is or will be written. Returns its jobs."""
        self.file.add_done_callback(self._remove)
        return self.batch

    def _remove(self, file: Future[ParcelFile]) -> None:
        if file.exception() is None:
            with contextlib.suppress(OSError):
                self.append_log.remove_file(file.result())


class BackgroundWriter:
    """Threads that write parcels to files of their own; they start with the first parcels."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._threads = Background(THREADS, "postroom parcels")

    def begin(self, append_log: AppendLogWriter, batch: Batch, *, called: int) -> Writing:
        """Write jobs, the first of which errors call by a number; then `wake` is called."""

        def write() -> ParcelFile:
            return append_log.write_file(pack_batch(batch, called=called))

        file = self._threads.begin(write)
        file.add_done_callback(lambda _: self._wake())
        return Writing(batch, file, append_log)

    def close(self) -> None:
        """Wait for what is being written, and end the threads."""
        self._threads.close()
