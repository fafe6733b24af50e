"""Somebody who removes every run that is over, as soon as it is, and is killed at it."""

from __future__ import annotations

import contextlib

from postroom.errors import BadFileError
from postroom.store.append_log import logged_until
from postroom.store.removal import remove_run, sweep
from postroom.store.runs import list_runs

from .processes import Process
from .roles import Machine


class Cleaner:
    """Cleans again and again; two of them may be at it."""

    def __init__(self, machine: Machine, number: int) -> None:
        self._machine = machine
        self.name = f"cleaner {number}"

    def __call__(self, process: Process) -> None:
        machine, base = self._machine, self._machine.base
        files = machine.files(process)
        while True:
            process.sleep(machine.rng.choice((0.0, 0.01, 0.1)))
            with contextlib.suppress(OSError):
                sweep(files, base, now=0.0)
            for run in list_runs(files, base):
                with contextlib.suppress(OSError, BadFileError):
                    jobs = logged_until(files, base.append_log(run))
                    if jobs:  # an empty one was made a moment ago
                        remove_run(files, base, run, jobs=jobs)
