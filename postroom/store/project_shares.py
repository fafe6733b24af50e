"""How much GPU time each project of a queue has used lately: `control/use.json`.

Projects whose jobs have the same priority share the GPUs as users do in the ledger's line: who has
used less goes first, and what was used fades in the same way (`gpus.ledger.fair_share`). The acting
Master counts the time of every letter, from sending it until the agent is free again, and writes
the file now and then. What is lost with a killed Master is a few seconds of use, no job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import BadFileError, PostroomError
from ..gpus.ledger.fair_share import Account
from ..gpus.ledger.ledger_rules import HALF_LIFE_S
from ..text.durations import parse_duration
from .base import Base
from .files import Files, replace_file
from .records import JsonRecord

# Says for a scheduler after which time what projects have used counts half as much.
VARIABLE = "POSTROOM_HALF_LIFE"
LEAST_HALF_LIFE_S = 60.0
# Projects take turns while what they have used differs by less than this.
ALIKE_S = 60.0
LIMIT = 16 << 20
# What has faded to less than this is forgotten.
_LEAST_S = 1.0


@dataclass
class ProjectShares(JsonRecord):
    """The accounts of all projects."""

    CALLED: ClassVar[str] = "what projects have used"

    accounts: dict[str, tuple[float, float]] = field(default_factory=dict)  # as `Account`
    half_life_s: float = HALF_LIFE_S  # what was used counts half as much after this time

    def check(self) -> None:
        """Refuse what cannot be computed with."""
        if not self.half_life_s >= LEAST_HALF_LIFE_S:
            raise ValueError(f"{self.half_life_s} s is too short a half-life")

    def add(self, project: str, seconds: float, now: float) -> None:
        """Count seconds for which a project has used GPUs."""
        before = Account(*self.accounts.get(project, (0.0, now)))
        after = before.plus(max(0.0, seconds), now, self.half_life_s)
        self.accounts[project] = after.seconds, after.at

    def used_s(self, now: float) -> dict[str, float]:
        """What each project has used, as it counts now."""
        half_life_s = self.half_life_s
        return {name: Account(*one).faded(now, half_life_s) for name, one in self.accounts.items()}

    def forget_faded(self, now: float) -> None:
        """Drop the projects that have used nothing for a long time."""
        used = self.used_s(now)
        self.accounts = {name: a for name, a in self.accounts.items() if used[name] >= _LEAST_S}


def half_life_s() -> float:
    """After which time what was used counts half as much, as this process is told."""
    text = os.environ.get(VARIABLE, "")
    try:
        found = parse_duration(text) if text else HALF_LIFE_S
    except PostroomError:
        found = 0.0
    if found < LEAST_HALF_LIFE_S:
        raise PostroomError(f"{VARIABLE}={text!r}: write a time from 1m on, such as 12h or 3d")
    return found


def levels(used_s: Mapping[str, float], projects: set[str]) -> dict[str, int]:
    """Sort projects: the lowest has its turn, and equal ones take turns.

    The runs of Python programs belong to no project, "": they take turns with the next project.
    """
    found = {name: int(used_s.get(name, 0.0) // ALIKE_S) for name in projects if name}
    return {"": min(found.values(), default=0), **found}


def read_use(files: Files, base: Base) -> ProjectShares:
    """What projects have used; a file that cannot be read says that nobody has used anything."""
    try:
        return ProjectShares.decode(base.project_shares, files.read(base.project_shares, LIMIT))
    except (FileNotFoundError, BadFileError):
        return ProjectShares()


def write_use(files: Files, base: Base, use: ProjectShares) -> None:
    """Write it, for the next Master and for listings; only the acting Master does this."""
    replace_file(files, base.temporary(), base.project_shares, use.encode())
