"""What is known of a base's pilots, for listings and for the page: one record, several printers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..store.base import Base
from ..store.files import LocalFiles, is_locked
from ..store.pilot_records import (
    PilotGroup,
    PilotRecord,
    PilotState,
    read_demand,
    read_groups,
    read_look,
    read_pilots,
)


@dataclass
class PilotRow:
    """One pilot, as people see it."""

    pilot: str
    group: str
    engine: str
    state: str
    engine_id: str
    node: str
    left_s: float | None
    jobs: int
    why: str
    submitted_at: float
    ended_at: float
    log: str


@dataclass
class GroupRow:
    """One group, as people see it."""

    name: str
    engine: str
    state: str  # "on", "drained", "paused"
    why: str
    living: int
    serving: int
    most: int
    least: int
    waiting: int  # jobs that could run there
    gpus: int
    time_s: float | None
    options: list[str] = field(default_factory=list)


@dataclass
class PilotView:
    """All groups and pilots of a base."""

    groups: list[GroupRow]
    pilots: list[PilotRow]
    kept: bool  # whether their keeper lives


def view_pilots(base: Base, *, ended: int = 5) -> PilotView:
    """Read it; of the pilots that have ended, the last few."""
    files = LocalFiles()
    now = time.time()
    groups = read_groups(files, base).groups
    look = read_look(files, base)
    demand = read_demand(files, base, now)
    records = list(read_pilots(files, base).values())
    over = [record for record in records if record.state is PilotState.ENDED]
    over = sorted(over, key=lambda record: record.ended_at)[-ended:] if ended else []
    living = [record for record in records if record.state is not PilotState.ENDED]
    kept = not groups or is_locked(files, base.pilot_keeper_lock)
    rows = [_row(base, record, look.pilots.get(record.pilot, {}), now) for record in living + over]
    if not kept:  # nobody else would say so
        for row in rows[: len(living)]:
            if not is_locked(files, base.agent_lock(row.pilot)):
                row.state, row.why = "dead", "its stand-in is dead"
    serving = {row.pilot for row in rows if row.state == PilotState.SERVING.value}
    return PilotView(
        [
            _group(name, group, living, serving, look.errors.get(name, ""), demand.get(name, 0))
            for name, group in groups.items()
        ],
        rows,
        kept,
    )


def _row(base: Base, record: PilotRecord, seen: dict[str, str], now: float) -> PilotRow:
    state, why = record.state.value, record.why
    if record.state is PilotState.SUBMITTED:
        state, why = seen.get("state", state), seen.get("why", "") or why
    ended = record.state is PilotState.ENDED
    return PilotRow(
        record.pilot,
        record.group,
        record.engine,
        state,
        record.engine_id or seen.get("engine_id", ""),
        record.node or seen.get("node", ""),
        max(0.0, record.ends_at - now) if record.ends_at and not ended else None,
        record.jobs,
        why,
        record.submitted_at,
        record.ended_at,
        base.pilot_log(record.pilot),
    )


def _group(
    name: str,
    group: PilotGroup,
    living: list[PilotRecord],
    serving: set[str],
    error: str,
    waiting: int,
) -> GroupRow:
    mine = [record for record in living if record.group == name]
    state = "paused" if group.paused else "drained" if group.drained else "on"
    return GroupRow(
        name,
        group.engine,
        state,
        group.paused or (f"unknown: {error}" if error else ""),
        len(mine),
        sum(record.pilot in serving for record in mine),
        group.most,
        group.least,
        waiting,
        group.gpus,
        group.time_s,
        list(group.options),
    )
