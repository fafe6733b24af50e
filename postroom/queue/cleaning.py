"""Which runs `postroom clean` removes, and why others stay. `store.removal` has the rules."""

from __future__ import annotations

from collections.abc import Collection

from ..store.base import Base
from ..store.files import Files
from .base_state import BaseState
from .notices import noticed_runs
from .run_reader import RunReader

# Somebody may be about to submit more jobs to a run that has just changed.
QUIET_S = 60.0


def find_over(
    base_state: BaseState,
    *,
    now: float,
    older_than_s: float,
    project: str = "",
    kept: Collection[str] = (),
    abandoned: bool = False,
) -> list[RunReader]:
    """The runs whose jobs all ended long enough ago; `kept` are those that stay all the same.

    With `abandoned`, also those of which nobody sends the rest, because their program is gone.
    """
    return [
        reader
        for reader in base_state.readers.values()
        if (not reader.pending or (abandoned and base_state.is_abandoned(reader.run)))
        and project in ("", reader.project)
        and reader.run not in kept
        and now - _ended_at(reader) >= max(older_than_s, QUIET_S)
    ]


def runs_in_use(base_state: BaseState, files: Files, base: Base) -> set[str]:
    """The runs that jobs of other runs wait for, and those with a message that is still due.

    Raises OtherVersionError if nobody knows: a run of another version may wait for any of them.
    """
    for error in base_state.other_versions:
        raise error
    return noticed_runs(files, base).union(
        job.run
        for reader in base_state.readers.values()
        if reader.pending
        for scheduling in reader.with_options().values()
        for job in (*scheduling.after, *scheduling.after_any)
    )


def _ended_at(reader: RunReader) -> float:
    return max(reader.changed_at, reader.asked_at, reader.info.created_at)
