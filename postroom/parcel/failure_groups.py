"""Equal errors of many jobs as one: how many jobs, what they say, where it happened."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..text.safe_text import printable
from .sheets import Failure

MOST_NUMBERS = 5  # of jobs, in a line

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_LIBRARIES = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}


@dataclass
class FailureGroup:
    """The jobs that failed in one place with one kind of error."""

    first: Failure
    place: str  # `file:line` of the kernel; "": no traceback says so
    numbers: list[int] = field(default_factory=list)
    messages: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        jobs = ", ".join(map(str, self.numbers[:MOST_NUMBERS]))
        more = ", ..." if len(self.numbers) > MOST_NUMBERS else ""
        others = f" (and {len(self.messages) - 1} other texts)" if len(self.messages) > 1 else ""
        where = f" at {self.place}" if self.place else ""
        word = "jobs" if len(self.numbers) > 1 else "job"
        failure = self.first
        text = f"{len(self.numbers)} {failure.outcome.value}: {failure.text}{others}{where}"
        return printable(f"{text} ({word} {jobs}{more})")


def group_failures(failures: Mapping[int, Failure]) -> list[FailureGroup]:
    """Failures by their error and the line of the kernel that raised it; the most frequent first.

    The texts may differ, as in "no file 17.npy".
    """
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    for number, failure in sorted(failures.items()):
        place = place_of(failure.traceback)
        # With no place, only the text tells one error from another.
        key = (failure.outcome.value, failure.kind, place or failure.message)
        group = groups.setdefault(key, FailureGroup(failure, place))
        group.numbers.append(number)
        group.messages.add(failure.message)
    return sorted(groups.values(), key=lambda group: -len(group.numbers))


def place_of(traceback: str) -> str:
    """`file:line` of the innermost line of a traceback that is the user's own, not a library's."""
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if not _is_library(frame[0])]
    return ":".join((own or frames)[-1]) if frames else ""


def _is_library(path: str) -> bool:
    return (
        path.startswith("<")
        or "/site-packages/" in path
        or "/dist-packages/" in path
        or any(path.startswith(f"{folder}/") for folder in _LIBRARIES)
    )


def described(groups: Sequence[FailureGroup], most: int) -> list[str]:
    """A line for each group, the rest as one."""
    lines = [str(group) for group in groups[:most]]
    rest = groups[most:]
    if rest:
        lines.append(f"... and {sum(len(group.numbers) for group in rest)} with other errors")
    return lines
