"""A cache of a run's results in one file, so that months of results are not read each time.

Results never change, so the cache stays valid. It is never the truth: what it lacks is read from
the results, and a cache that cannot be read is ignored.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import BadFileError
from ..parcel.sheets import Outcome
from ..store.base import Base
from ..store.files import Files, replace_file
from ..store.records import JsonRecord

LIMIT = 64 << 20


@dataclass
class ResultCache(JsonRecord):
    """The results of one run, as far as they were read."""

    CALLED: ClassVar[str] = "a result cache"
    INDENT: ClassVar[int | None] = None  # one file may list a million jobs

    changed_ns: int = 0  # the folder's time of change when all in it were read; 0: never
    counts: dict[int, int] = field(default_factory=dict)  # first job of a parcel: how many
    failures: dict[int, dict[int, str]] = field(default_factory=dict)  # first: job, outcome
    ended_at: dict[int, float] = field(default_factory=dict)  # first: when it came

    def check(self) -> None:
        """Listings look outcomes up by their names."""
        named = {outcome for jobs in self.failures.values() for outcome in jobs.values()}
        unknown = named.difference(outcome.value for outcome in Outcome)
        if unknown:
            raise ValueError(f"{min(unknown)!r} is not an outcome")


def read_result_cache(files: Files, base: Base, run: str) -> ResultCache:
    """What was written down of a run; nothing when nothing was, or nothing that can be read."""
    path = base.result_cache(run)
    with contextlib.suppress(OSError, BadFileError):
        return ResultCache.decode(path, files.read(path, LIMIT))
    return ResultCache()


def write_result_cache(files: Files, base: Base, run: str, cache: ResultCache) -> None:
    """Save the cache of a run; where that fails, the results are read again next time."""
    with contextlib.suppress(OSError):
        replace_file(files, base.temporary(), base.result_cache(run), cache.encode())
