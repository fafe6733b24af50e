"""How much space a base takes, by kind and by run: measured a little at a time, and remembered.

A run that is over never changes again, so it is measured once. What is known is in
`log/usage.json`, where every process finds it; a process that has time measures more
(`surveying`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..errors import BadFileError
from .append_log import logged_until
from .base import Base
from .files import Clock, Files, replace_file
from .records import JsonRecord
from .runs import RunInfo, count_covered, count_jobs, list_firsts, list_runs, read_run_info
from .taken import read_taken

KINDS = ("arguments", "results", "shared data", "snapshots", "logs", "trash")
_LIMIT = 64 << 20
_NOT_OVER = -1


@dataclass(frozen=True)
class RunUsage:
    """The space that one run takes, in bytes."""

    embedded: bool
    program: str
    jobs: int = _NOT_OVER  # how many it has, when it is over
    ended_at: float = 0.0  # when its last result came
    arguments: int = 0
    results: int = 0
    snapshots: int = 0
    logs: int = 0

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.arguments + self.results + self.snapshots + self.logs

    @property
    def is_over(self) -> bool:
        """Whether every job had a result when it was measured."""
        return self.jobs != _NOT_OVER


@dataclass(frozen=True)
class BaseUsage(JsonRecord):
    """The space that a base takes, as far as it was measured."""

    CALLED: ClassVar[str] = "the space that a base takes"
    INDENT: ClassVar[int | None] = None

    at: float = 0.0  # when the last survey ended; 0: there was none
    runs: dict[str, RunUsage] = field(default_factory=dict)
    shared_data: int = 0
    logs: int = 0  # of no run
    trash: int = 0

    def by_kind(self) -> dict[str, int]:
        """Bytes of each kind."""
        runs = self.runs.values()
        return dict(
            zip(
                KINDS,
                (
                    sum(run.arguments for run in runs),
                    sum(run.results for run in runs),
                    self.shared_data,
                    sum(run.snapshots for run in runs),
                    sum(run.logs for run in runs) + self.logs,
                    self.trash,
                ),
                strict=True,
            )
        )


def read_usage(files: Files, base: Base) -> BaseUsage:
    """What is known; nothing, if nobody has measured yet."""
    try:
        return BaseUsage.decode(base.usage, files.read(base.usage, _LIMIT))
    except (FileNotFoundError, BadFileError):
        return BaseUsage()


def surveying(
    files: Files, base: Base, clock: Clock, *, store: bool = True
) -> Generator[None, None, BaseUsage]:
    """Measure a base, step by step: each step looks at one file or one run."""
    known = read_usage(files, base)
    runs: dict[str, RunUsage] = {}
    for run in list_runs(files, base):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, BadFileError):
            before = known.runs.get(run)
            over = before is not None and before.is_over
            if before is not None and over and _logged(files, base, run) == before.jobs:
                runs[run] = before
            else:
                runs[run] = yield from _measuring(files, base, run, known.runs.get(run))
        yield
    shared_data, _ = yield from _summing(files, f"{base.root}/data")
    logs, _ = yield from _summing(files, f"{base.root}/log")
    trash = 0
    for folder in (base.trash, base.tmp, base.rejected):
        trash += (yield from _summing(files, folder))[0]
    found = BaseUsage(clock.wall(), runs, shared_data, logs, trash)
    if store and replace(found, at=0.0) != replace(known, at=0.0):
        with contextlib.suppress(OSError):  # it is only a cache
            replace_file(files, base.temporary(), base.usage, found.encode())
    return found


def _logged(files: Files, base: Base, run: str) -> int:
    return logged_until(files, base.append_log(run))


def _measuring(
    files: Files, base: Base, run: str, before: RunUsage | None
) -> Generator[None, None, RunUsage]:
    info: RunInfo = read_run_info(files, base, run)
    jobs = _logged(files, base, run)  # jobs first: a run that grows meanwhile is not over
    spans = []
    for first in list_firsts(files, base.result_folder(run)):
        spans.append((first, first + count_jobs(files, base.result(run, first))))
        yield
    covered = count_covered([*spans, *read_taken(files, base, run).ranges])[0]
    arguments = snapshots = 0
    changed_at = info.created_at
    for name, nbytes, at in files.sizes(base.run_folder(run)):
        if name.endswith((".tar", ".env")):
            snapshots += nbytes
        else:
            arguments += nbytes
        changed_at = max(changed_at, at if name.endswith(".log") else 0.0)
        yield
    results, came_at = yield from _summing(files, base.result_folder(run))
    logs = 0
    for folder in (base.attempts(run), base.job_folders(run)):
        logs += (yield from _summing(files, folder))[0]
    return RunUsage(
        info.embedded and not info.queue,
        info.program,
        jobs if covered >= jobs else _NOT_OVER,
        max(changed_at, came_at),
        arguments,
        results,
        snapshots,
        logs,
    )


def _summing(files: Files, folder: str) -> Generator[None, None, tuple[int, float]]:
    """The bytes of a folder, and when the last file in it was changed."""
    total, changed_at = 0, 0.0
    for _, nbytes, at in files.sizes(folder):
        total += nbytes
        changed_at = max(changed_at, at)
        yield
    return total, changed_at


def run_for(work: Iterator[None], clock: Clock, seconds: float) -> bool:
    """Go on with some work for a while; False: it is done."""
    until = clock.monotonic() + seconds
    return any(clock.monotonic() >= until for _ in work)
