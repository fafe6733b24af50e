"""How many pilots a group should have: decided from what is known, with no disk, engine or clock.

A pilot that works keeps its place, and every job that waits gets one that is idle, coming or new.
At most `most` live, whatever has become of the others: one whose end nobody has confirmed lives.
Of those that nobody needs any more, only pending ones are cancelled, and only after a while: what
has begun to start ends by itself when it has been idle for long enough.

If pilots die before they are ready, the next is started alone and later; after three in a row none
is, until somebody has read why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..store.pilot_records import PilotGroup, PilotRecord, PilotState

MOST_FAULTS = 3
# After one death before it was ready, the next pilot waits this long; after two, three times that.
PAUSE_S = 5.0
# Jobs may come again: pending pilots that are too many are cancelled after so long.
SURPLUS_S = 10.0

_COMING = (PilotState.SUBMITTED, PilotState.STARTING)


@dataclass(frozen=True)
class ScalingPlan:
    """What to do for one group now."""

    start: int = 0
    cancel: tuple[str, ...] = ()  # pending pilots, by their ids
    surplus: bool = False  # more are pending than are needed
    pause: str = ""  # why no more are started, until somebody resumes the group
    wanted: int = 0


def plan(
    group: PilotGroup,
    pilots: Sequence[PilotRecord],
    waiting: int,
    now: float,
    surplus_since: float | None,
) -> ScalingPlan:
    """Decide; `pilots` are all of the group, `surplus_since`: since when plans say `surplus`."""
    living = [pilot for pilot in pilots if pilot.state is not PilotState.ENDED]
    serving = [pilot for pilot in living if pilot.state is PilotState.SERVING]
    coming = [pilot for pilot in living if pilot.state in _COMING]
    working = sum(not pilot.idle_since for pilot in serving)
    wanted = min(group.most, max(group.least, working + waiting))
    faults = _faults(group, pilots)
    pause = faults[-1].why if len(faults) >= MOST_FAULTS else ""
    if group.drained or group.paused or pause:
        return ScalingPlan(pause="" if group.paused else pause, wanted=wanted)
    missing = wanted - len(serving) - len(coming)
    if missing < 0:
        waits = [pilot for pilot in coming if pilot.state is not PilotState.STARTING]
        newest = sorted(waits, key=lambda pilot: -pilot.submitted_at)[:-missing]
        due = surplus_since is not None and now >= surplus_since + SURPLUS_S
        cancel = tuple(pilot.pilot for pilot in newest) if due else ()
        return ScalingPlan(cancel=cancel, surplus=bool(newest), wanted=wanted)
    start = min(missing, group.most - len(living), group.pending - len(coming))
    if faults and start > 0:
        # Alone, and later: the next may die as the last one did.
        since = now - faults[-1].ended_at
        start = 1 if not coming and since >= PAUSE_S * 3 ** (len(faults) - 1) else 0
    return ScalingPlan(start=max(start, 0), wanted=wanted)


def _faults(group: PilotGroup, pilots: Sequence[PilotRecord]) -> list[PilotRecord]:
    """The last pilots that died before they were ready, since one was ready or was forgiven."""
    ready_at = max((pilot.ready_at for pilot in pilots), default=0.0)
    since = max(ready_at, group.forgiven_at)
    found = [pilot for pilot in pilots if pilot.fault and pilot.ended_at > since]
    return sorted(found, key=lambda pilot: pilot.ended_at)
