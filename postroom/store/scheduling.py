"""When and where a queued job may run: its scheduling options.

They are among the arguments in the job's own parcel, so the scheduler has them as soon as it has
the job: it cannot send a job before it has read that the job must wait.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..errors import PostroomError
from .job_ids import JobId
from .records import from_fields, to_fields

MOST_PRIORITY = 1_000_000
PROJECT_GROUP = "project"  # of jobs that were submitted one by one, with a limit


@dataclass(frozen=True)
class SchedulingOptions:
    """When and where one job may run."""

    priority: int = 0  # higher goes first
    held: bool = False  # waits until it is released
    after: tuple[JobId, ...] = ()  # begins when these have ended well; cancelled if one fails
    after_any: tuple[JobId, ...] = ()  # begins when these have ended, however
    gpus: int = 1  # how many the session that runs it must have
    memory_mib: int = 0  # how much memory each GPU of that session must have
    shares: bool = (
        False  # it takes that part of one GPU, or what it is known to need, beside others
    )
    where: str = ""  # "local", "slurm" or "ray": only there; "": anywhere
    require: str = ""  # which kinds of GPUs will do: see `will_do`
    begin_at: float = 0.0  # not before this moment, wall clock
    lasts_s: float = 0.0  # how long it can take, with its grace; 0: nobody knows
    group: str = ""  # of these jobs together, at most `group_limit` run at once
    group_limit: int = 0  # 0: as many as there are agents
    group_failures: int = 0  # after how many failures of the group the rest is held; 0: never

    def encode(self) -> dict[str, Any]:
        """As JSON values, without the defaults."""
        given = to_fields(self)
        return {name: value for name, value in given.items() if value != _DEFAULTS[name]}

    @classmethod
    def decode(cls, fields: Any) -> SchedulingOptions:
        """Read what `encode` made; anything else is a ValueError."""
        options = from_fields(cls, fields)
        for number, least in (
            (options.priority, -MOST_PRIORITY),
            (options.gpus, 0),
            (options.memory_mib, 0),
            (options.group_limit, 0),
            (options.group_failures, 0),
        ):
            if not least <= number <= 1 << 40:
                raise ValueError(f"{number} is out of range")
        return options


_DEFAULTS = to_fields(SchedulingOptions())


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([GT])(?:i?B)?", re.IGNORECASE)


def will_do(require: str, gpu_name: str, memory_mib: int) -> bool:
    """Whether a GPU is of a kind that is asked for: `A100|24G` is an A100, or one with 24 GiB.

    Between bars are alternatives; all words of one must fit: part of the name, or the least memory.
    """
    return not require or any(
        all(_fits(word, gpu_name.casefold(), memory_mib) for word in words.split())
        for words in require.split("|")
    )


def _fits(word: str, gpu_name: str, memory_mib: int) -> bool:
    if size := _SIZE.fullmatch(word):
        mib = float(size[1]) * (1024 if size[2].upper() == "G" else 1024 * 1024)
        # Cards have a little less than their name says: 23.7 GiB are called 24G.
        return memory_mib >= 0.95 * mib
    return word.casefold() in gpu_name


def check_require(require: str) -> str:
    """Return what kinds of GPUs will do, or raise an error."""
    if require and not all(words.split() for words in require.split("|")):
        raise PostroomError(f"{require!r} names no kind of GPU: write 'A100|H100' or '24G'")
    return require


def check_priority(priority: int) -> int:
    """Return a priority, or raise an error that states the limits."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise PostroomError(f"a priority must be between -{MOST_PRIORITY} and {MOST_PRIORITY}")
    return priority
