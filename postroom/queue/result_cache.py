"""A cache of a run's results in one file, so that months of results are not read each time.

Results never change, so the cache stays valid. It is never the truth: what it lacks is read from
the results, and a cache that cannot be read is ignored.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field

from ..errors import BadFileError
from ..parcel.sheets import Outcome
from ..store.base import Base
from ..store.files import Files

VERSION = 1
LIMIT = 64 << 20


@dataclass
class ResultCache:
    """The results of one run that were read."""

    changed_ns: int = 0  # the folder's time when all in it was read; 0: never
    counts: dict[int, int] = field(default_factory=dict)  # first job of a parcel: number of jobs
    failures: dict[int, dict[int, str]] = field(default_factory=dict)  # first job: {job: outcome}
    ended_at: dict[int, float] = field(default_factory=dict)  # first job: when it was written

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> ResultCache:
        """Read what `encode` made; bad data is a ValueError."""
        try:
            fields = json.loads(data)
            if fields["version"] != VERSION:
                raise ValueError(f"is not of version {VERSION}")
            known = {outcome.value for outcome in Outcome}
            failures = {
                int(first): {int(job): outcome for job, outcome in jobs.items()}
                for first, jobs in fields["failures"].items()
            }
            if not known.issuperset(o for jobs in failures.values() for o in jobs.values()):
                raise ValueError("names an unknown outcome")
            return cls(
                changed_ns=int(fields["changed_ns"]),
                counts={int(first): int(count) for first, count in fields["counts"].items()},
                failures=failures,
                ended_at={int(first): float(at) for first, at in fields["ended_at"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"is not a result cache: {error}") from None


def read_result_cache(files: Files, base: Base, run: str) -> ResultCache:
    """The cache of a run; an empty one when there is none that can be read."""
    with contextlib.suppress(OSError, BadFileError, ValueError):
        return ResultCache.decode(files.read(base.result_cache(run), LIMIT))
    return ResultCache()


def write_result_cache(files: Files, base: Base, run: str, cache: ResultCache) -> None:
    """Save the cache of a run; where that fails, the results are read again next time."""
    temporary = base.temporary()
    with contextlib.suppress(OSError):
        files.write_new(temporary, [cache.encode()])
        files.move(temporary, base.result_cache(run))
