"""`postroom run --notify`: a view of a batch that also sends notifications."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import click

from ..commands.job_folder import JobFolder
from ..jobs import Finished
from ..parcel.sheets import Outcome
from ..queue.notify import MOST_S, Envelope, check_target, compose, start
from ..queue.run_reader import RunReader, SheetCache
from ..store.base import Base
from ..store.files import LocalFiles
from ..text.safe_text import printable
from .runner import Batch, BatchView

SILENT_S = 2.0  # what takes longer is worth a word


class BatchNotices:
    """Wraps another view; notifies targets of the first failure, and of the end."""

    def __init__(self, targets: Sequence[str], base: Base, view: BatchView) -> None:
        self._targets = [check_target(target) for target in targets]
        self._base = base
        self._view = view
        self._failed = self._notified = False
        self._run = ""
        self._sending: list[subprocess.Popen[bytes]] = []

    def finished(self, job: Finished, folder: JobFolder) -> None:
        """Note how one job ended."""
        self._view.finished(job, folder)
        self._failed |= job.outcome not in (Outcome.OK, Outcome.CANCELLED)

    def update(self, batch: Batch) -> None:
        """Notify of the first failure, unless the batch ends with it."""
        self._view.update(batch)
        self._run = batch.pool.run
        if self._failed and not self._notified and batch.outstanding:
            self._notified = True
            self._notify("failed")

    def tell_end(self) -> None:
        """Notify of the end, and wait until all notifications are sent."""
        self._wait_until_sent()  # the end must not arrive before the first failure
        if self._run:
            self._notify("done")
        self._wait_until_sent()

    def _wait_until_sent(self) -> None:
        for process in self._sending:
            try:
                _, said = process.communicate(timeout=SILENT_S)
            except subprocess.TimeoutExpired:
                click.echo(f"sending a notification; this takes {MOST_S} s at most", err=True)
                _, said = process.communicate(timeout=MOST_S + 10)
            if process.returncode:
                text = said.decode(errors="replace").strip()
                click.echo(printable(f"notification failed: {text}"), err=True)
        self._sending.clear()

    def _notify(self, event: str) -> None:
        reader = RunReader(LocalFiles(), self._base, self._run, SheetCache(), SheetCache())
        reader.refresh()
        message = compose(self._base, reader, [(0, max(reader.asked, 1))], event)
        self._sending += [start(Envelope(target, message)) for target in self._targets]
