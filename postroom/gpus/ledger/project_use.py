"""What the projects of a queue have run, by hour: only its user, and root, can read it."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, TypeAlias

_VERSION = 1
MOST_ROWS = 10_000

# By hour and project: how many jobs ended, how many of them failed, and how long they ran.
ProjectHours: TypeAlias = dict[tuple[int, str], tuple[int, int, float]]


def encode_projects(hours: ProjectHours) -> dict[str, Any]:
    """Return it as values for JSON; of too many the newest hours."""
    rows = sorted(hours.items())[-MOST_ROWS:]
    return {"version": _VERSION, "rows": [[*key, *row] for key, row in rows]}


def decode_projects(value: Any) -> ProjectHours:
    """Read it; anything that makes no sense is left out."""
    found: ProjectHours = {}
    with suppress(ValueError, TypeError, KeyError, OverflowError):
        if value["version"] == _VERSION:
            for hour, project, jobs, failed, run_s in value["rows"]:
                if math.isfinite(run_s):
                    found[int(hour), str(project)] = int(jobs), int(failed), float(run_s)
    return found
