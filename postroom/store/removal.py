"""Removes finished runs, each as a whole and for good: `postroom clean`, and retention.

    job_pool/<run>  --closed-->  job_pool/<run>/closed  --moved-->  trash/<run>  --deleted-->  gone

A process that appends to a run, or submits a job that waits for one of its jobs, holds
`wanted.lock`, shared (`runs.appending`). To remove the run, a process takes that lock exclusively,
looks at the run once more and writes `closed` into it. From then on the run takes no more jobs, and
nothing is ever put back. It is moved to `trash/` in one rename; its results and logs are deleted
before its jobs, and the file `closed` last of all. So a removal that is killed anywhere is finished
by the next one, and any number of them may be at work at the same time. Files are deleted one by
one: a process that has other things to do stops after a few, and goes on later.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator

from ..errors import BadFileError
from .append_log import logged_until
from .base import CLOSED, SUFFIX, Base
from .files import Files
from .mailbox import is_plain_name
from .runs import count_jobs, gaps, list_firsts, list_runs, read_run_info
from .taken import read_taken

# Only folders older than this are leftovers; newer ones may belong to a run that is being made.
LEFT_S = 86_400.0


def remove_run(
    files: Files,
    base: Base,
    run: str,
    *,
    jobs: int,
    in_use: Callable[[], Collection[str]] = tuple,
) -> bool:
    """Remove a run that has `jobs` jobs, with its results and logs; False: it is in use.

    What is `in_use` is asked when nobody can append to the run or begin to wait for it any more.
    """

    def over() -> bool:
        return ended_jobs(files, base, run) == jobs and run not in in_use()

    if not close_run(files, base, run, over):
        return False
    _finish(files, base, run)
    return True


def close_run(files: Files, base: Base, run: str, over: Callable[[], bool]) -> bool:
    """Close a run for good if it is over, and move it to the trash; False: it stays."""
    lock = None
    with contextlib.suppress(FileNotFoundError):
        lock = files.try_lock(base.wanted(run))
    if lock is None:
        return False
    try:
        if not files.exists(base.closed(run)):
            if not over():
                return False
            files.write_new(base.closed(run), [b""], sync=True)
        files.sync_folder(base.run_folder(run))
        files.move(base.run_folder(run), base.trashed(run))
        return True
    except FileNotFoundError:
        return False  # another cleaner has moved it
    finally:
        lock.release()


def ended_jobs(files: Files, base: Base, run: str) -> int | None:
    """How many jobs a run holds; None: not all of them have results.

    All is read from disk, jobs first.
    """
    try:
        submitted = logged_until(files, base.append_log(run))
        spans = [
            (first, first + count_jobs(files, base.result(run, first)))
            for first in list_firsts(files, base.result_folder(run))
        ]
        spans += read_taken(files, base, run).ranges
    except BadFileError:
        return None
    return None if gaps(submitted, spans) else submitted


def sweep(files: Files, base: Base, *, now: float) -> list[OSError]:
    """Finish what interrupted cleanings have left; return what could not be deleted, and why."""
    errors: list[OSError] = []
    for run in list_runs(files, base):
        if files.exists(base.closed(run)):
            close_run(files, base, run, lambda: False)
    for name in files.names(base.trash):
        try:
            _sweep_one(files, base, name)
        except OSError as error:
            errors.append(error)
    _remove_leftovers(files, base, now)
    return errors


def trashed_runs(files: Files, base: Base) -> list[str]:
    """The closed runs in the trash, of which something is left."""
    return [
        name
        for name in files.names(base.trash)
        if is_plain_name(name) and files.exists(f"{base.trashed(name)}/{CLOSED}")
    ]


def _sweep_one(files: Files, base: Base, name: str) -> None:
    if is_plain_name(name) and files.exists(f"{base.trashed(name)}/{CLOSED}"):
        _finish(files, base, name)
    elif _is_part(name) or (is_plain_name(name) and not files.names(f"{base.trash}/{name}")):
        files.remove_tree(f"{base.trash}/{name}")


def _finish(files: Files, base: Base, run: str) -> None:
    for _ in deleting(files, base, run):
        pass


def deleting(files: Files, base: Base, run: str) -> Iterator[None]:
    """Delete a closed run that is in the trash, step by step.

    Its jobs go last: they mark an unfinished removal.
    """
    # Before anything is deleted: a power loss must not bring the jobs back without their results.
    files.sync_folder(base.job_pool)
    files.sync_folder(base.trash)
    for number, folder in enumerate(_other_folders(base, run)):
        place = f"{base.trash}/{run}.{number}"
        yield from _emptying(files, place)
        with contextlib.suppress(FileNotFoundError):
            files.move(folder, place)
        yield from _emptying(files, place)
    files.remove(base.result_cache(run))
    place = base.trashed(run)
    with contextlib.suppress(FileNotFoundError):
        for name in files.names(place):
            if name != CLOSED:
                files.remove_tree(f"{place}/{name}")
                yield
        files.sync_folder(place)
        files.remove(f"{place}/{CLOSED}")
    files.remove_tree(place)


def _emptying(files: Files, place: str) -> Iterator[None]:
    """Delete a folder, step by step."""
    for name in files.names(place):
        files.remove_tree(f"{place}/{name}")
        yield
    files.remove_tree(place)


def _is_part(name: str) -> bool:
    """Whether a name in the trash is that of a closed run's results, attempts or logs."""
    run, dot, number = name.partition(".")
    return bool(dot) and is_plain_name(run) and number in ("0", "1", "2")


def _remove_leftovers(files: Files, base: Base, now: float) -> None:
    """Delete old results and logs of runs that are not there, and old files in `tmp/`.

    If its process is alive, but was stopped for a day, it gets an error when it continues.
    """
    for name in files.names(base.tmp):
        with contextlib.suppress(OSError):
            status = os.lstat(path := f"{base.tmp}/{name}")
            # By its time of change, which a link renews. The folders belong to workers and runs.
            if stat.S_ISREG(status.st_mode) and now - status.st_ctime > LEFT_S:
                files.remove(path)
    present = {run for folder in _other_folders(base, "") for run in files.names(folder)}
    for run in filter(is_plain_name, present):
        old = now - _touched_at(*_other_folders(base, run)) > LEFT_S
        if old and not files.exists(base.run_folder(run)):
            for folder in _other_folders(base, run):
                files.remove_tree(folder)
            files.remove(base.result_cache(run))


def remove_unused_data(files: Files, base: Base, *, now: float) -> int:
    """Delete the shared data that no run refers to, and nobody has asked for lately."""
    lock = files.try_lock(base.data_lock)
    if lock is None:
        return 0  # a run is begun just now, and may refer to any of it
    removed = 0
    try:
        used = {read_run_info(files, base, run).shared for run in list_runs(files, base)}
        for name in files.names(os.path.dirname(base.data(""))):
            path = base.data(stem := name.removesuffix(SUFFIX))
            if stem != name and stem not in used and now - _touched_at(path) > LEFT_S:
                files.remove(path)
                removed += 1
    except (FileNotFoundError, NotADirectoryError, BadFileError):
        pass  # there is a run of which nobody knows what it refers to
    finally:
        lock.release()
    return removed


def _touched_at(*paths: str) -> float:
    times = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            times.append(os.stat(path).st_mtime)
    return max(times)


def _other_folders(base: Base, run: str) -> list[str]:
    return [base.result_folder(run), base.attempts(run), base.job_folders(run)]
