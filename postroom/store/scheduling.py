"""When and where a queued job may run: its scheduling options.

They are among the arguments in the job's own parcel, so the scheduler has them as soon as it has
the job: it cannot send a job before it has read that the job must wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import PostroomError
from .job_ids import JobId
from .records import from_fields, to_fields

MOST_PRIORITY = 1_000_000


@dataclass(frozen=True)
class SchedulingOptions:
    """When and where one job may run."""

    priority: int = 0  # higher goes first
    held: bool = False  # waits until it is released
    after: tuple[JobId, ...] = ()  # begins when these have ended well; cancelled if one fails
    after_any: tuple[JobId, ...] = ()  # begins when these have ended, however
    gpus: int = 1  # how many the session that runs it must have
    memory_mib: int = 0  # how much memory each GPU of that session must have
    where: str = ""  # "local", "slurm" or "ray": only there; "": anywhere

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
        ):
            if not least <= number <= 1 << 40:
                raise ValueError(f"{number} is out of range")
        return options


_DEFAULTS = to_fields(SchedulingOptions())


def check_priority(priority: int) -> int:
    """Return a priority, or raise an error that states the limits."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise PostroomError(f"a priority must be between -{MOST_PRIORITY} and {MOST_PRIORITY}")
    return priority
