"""Removes finished runs: each folder is renamed into `trash/`, then deleted there.

The folder with the jobs goes first. From then on the run does not exist, and nobody can append to
it: every writer of its append log checks afterwards that the log is still there. If somebody
appended just before the rename, the folder is put back. If the cleaning is killed in between, the
next one does the rest.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from ..store.append_log import logged_until
from ..store.base import Base
from ..store.files import Files
from ..store.mailbox import is_plain_name
from ..store.runs import list_firsts
from .base_state import BaseState
from .run_reader import RunReader

# Somebody may be about to submit more jobs to a run that has just changed.
QUIET_S = 60.0
# Only folders older than this are leftovers; newer ones may belong to a run that is being made.
LEFT_S = 86_400.0
_ASKED = ".asked"


def find_over(
    base_state: BaseState, *, now: float, older_than_s: float, project: str = ""
) -> list[RunReader]:
    """The runs whose jobs all ended long enough ago, and that no other job waits for."""
    awaited = {
        job.run
        for reader in base_state.readers.values()
        if reader.pending
        for scheduling in reader.with_options().values()
        for job in (*scheduling.after, *scheduling.after_any)
    }
    return [
        reader
        for reader in base_state.readers.values()
        if not reader.pending
        and project in ("", reader.project)
        and reader.run not in awaited
        and now - _ended_at(reader) >= max(older_than_s, QUIET_S)
    ]


def _ended_at(reader: RunReader) -> float:
    return max(reader.changed_at, reader.asked_at, reader.info.created_at)


def remove_run(files: Files, base: Base, reader: RunReader) -> bool:
    """Remove one run with its results and logs; False: somebody still uses it."""
    run = reader.run
    if reader.info.embedded:
        lock = files.try_lock(base.wanted(run))
        if lock is None:
            return False
        lock.release()
    place = f"{base.trash}/{run}{_ASKED}"
    try:
        files.move(base.run_folder(run), place)
    except FileNotFoundError:
        return False
    logged = reader.asked if reader.info.append_log else 0
    firsts = [] if reader.info.append_log else reader.firsts
    if list_firsts(files, place) != firsts or logged_until(files, f"{place}/jobs.log") != logged:
        files.move(place, base.run_folder(run))
        return False
    _remove_others(files, base, run)
    return True


def sweep(files: Files, base: Base, *, now: float) -> None:
    """Finish an interrupted cleaning."""
    for name in files.names(base.trash):
        if name.endswith(_ASKED):
            _remove_others(files, base, name.removesuffix(_ASKED))
    present = {run for folder in _other_folders(base, "") for run in files.names(folder)}
    for run in filter(is_plain_name, present):
        if not files.exists(base.run_folder(run)) and now - _touched_at(base, run) > LEFT_S:
            _remove_others(files, base, run)


def _touched_at(base: Base, run: str) -> float:
    times = [0.0]
    for folder in _other_folders(base, run):
        with contextlib.suppress(OSError):
            times.append(os.stat(folder).st_mtime)
    return max(times)


def _other_folders(base: Base, run: str) -> list[str]:
    return [base.result_folder(run), base.attempts(run), base.job_folders(run)]


def _remove_others(files: Files, base: Base, run: str) -> None:
    """Remove the other folders of a run, and last its jobs, which mark an unfinished cleaning."""
    for number, folder in enumerate(_other_folders(base, run)):
        place = f"{base.trash}/{run}.{number}"
        with contextlib.suppress(OSError):
            files.move(folder, place)
        shutil.rmtree(place, ignore_errors=True)
    files.remove(base.result_cache(run))
    shutil.rmtree(f"{base.trash}/{run}{_ASKED}", ignore_errors=True)
