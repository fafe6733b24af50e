"""What `postroom run --notify` does: a batch's own view, which also tells somebody how it goes."""

from __future__ import annotations

import subprocess

import click

from ..commands.job_folder import JobFolder
from ..jobs import Finished
from ..parcel.sheets import Outcome
from ..queue.notify import MOST_S, Envelope, check_target, compose, start
from ..queue.run_reader import RunReader, SheetCache
from ..store.base import Base
from ..store.files import LocalFiles
from .runner import Batch
from .runner import BatchView as BatchView


class BatchNotices:
    """Shows what another view shows; tells a target of the first failure, and of the end."""

    def __init__(self, target: str, base: Base, view: BatchView) -> None:
        self._target = check_target(target) if target else ""
        self._base = base
        self._view = view
        self._failed = self._told = False
        self._run = ""
        self._sending: list[subprocess.Popen[bytes]] = []

    def finished(self, job: Finished, folder: JobFolder) -> None:
        """One job has ended."""
        self._view.finished(job, folder)
        self._failed |= job.outcome not in (Outcome.OK, Outcome.CANCELLED)

    def update(self, batch: Batch) -> None:
        """Called after every round: with a failure on its own, not with the end."""
        self._view.update(batch)
        self._run = batch.pool.run
        if self._failed and not self._told and batch.outstanding:
            self._told = True
            self._tell("failed")

    def tell_end(self) -> None:
        """The batch is over: say so, and see that what is on its way arrives."""
        self._see_off()  # the end must not come before the first failure
        if self._target and self._run:
            self._tell("done")
        self._see_off()

    def _see_off(self) -> None:
        for process in self._sending:
            _, said = process.communicate(timeout=MOST_S + 10)
            if process.returncode:
                click.echo(f"not told: {said.decode(errors='replace').strip()}", err=True)
        self._sending.clear()

    def _tell(self, event: str) -> None:
        if self._target:
            reader = RunReader(LocalFiles(), self._base, self._run, SheetCache(), SheetCache())
            reader.refresh()
            message = compose(self._base, reader, [(0, max(reader.asked, 1))], event)
            self._sending.append(start(Envelope(self._target, message)))
