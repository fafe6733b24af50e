"""What a queued job asks of whoever decides when and where it runs.

It travels in the job's own parcel, among its arguments, so that it is there when the job is: no job
that is to wait can be sent before somebody has read that it must.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import PostroomError
from .job_ids import JobId

MOST_PRIORITY = 1_000_000


@dataclass(frozen=True)
class SchedulingOptions:
    """When and where one job wants to run."""

    priority: int = 0  # higher goes first
    held: bool = False  # waits until it is released
    after: tuple[JobId, ...] = ()  # begins when these have ended well; cancelled if one has not
    after_any: tuple[JobId, ...] = ()  # begins when these have ended, however
    gpus: int = 1  # how many cards the session that runs it must have
    memory_mib: int = 0  # how much memory each card of that session must have

    def encode(self) -> dict[str, Any]:
        """As plain JSON, without what is as usual."""
        fields: dict[str, Any] = {
            "priority": self.priority,
            "held": self.held,
            "after": [str(job) for job in self.after],
            "after_any": [str(job) for job in self.after_any],
            "gpus": self.gpus,
            "memory_mib": self.memory_mib,
        }
        usual = {"priority": 0, "held": False, "after": [], "after_any": []}
        usual |= {"gpus": 1, "memory_mib": 0}
        return {name: value for name, value in fields.items() if value != usual[name]}

    @classmethod
    def decode(cls, fields: Any) -> SchedulingOptions:
        """Read what `encode` made; what makes no sense is a ValueError."""
        if not isinstance(fields, dict):
            raise ValueError("wishes are no object")
        try:
            scheduling = cls(
                priority=_number(fields.get("priority", 0), -MOST_PRIORITY),
                held=bool(fields.get("held", False)),
                after=tuple(JobId.parse(text) for text in fields.get("after", ())),
                after_any=tuple(JobId.parse(text) for text in fields.get("after_any", ())),
                gpus=_number(fields.get("gpus", 1), 0),
                memory_mib=_number(fields.get("memory_mib", 0), 0),
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(f"wishes that make no sense: {error}") from None
        return scheduling


def check_priority(priority: int) -> int:
    """A priority in its bounds, or an error that says them."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise PostroomError(f"a priority is between -{MOST_PRIORITY} and {MOST_PRIORITY}")
    return priority


def _number(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value <= 1 << 40:
        raise ValueError(f"{value!r} is no number that makes sense here")
    return value
