"""How many pilots: decided from records alone; then whole histories, with pilots that die."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from postroom.pilots.scaling import MOST_FAULTS, PAUSE_S, SURPLUS_S, plan
from postroom.store.pilot_records import PilotGroup, PilotRecord, PilotState

NOW = 1_000_000.0


def pilot(number: int, state: PilotState, **fields: object) -> PilotRecord:
    made = PilotRecord(
        f"slurm-{number}", "slurm", "slurm", state, f"x-{number}", NOW - 100 + number
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def group(**fields: object) -> PilotGroup:
    return PilotGroup("slurm", **{"most": 4, **fields})  # type: ignore[arg-type]


def serving(number: int, *, idle: bool = False) -> PilotRecord:
    since = NOW - 5 if idle else 0.0
    return pilot(number, PilotState.SERVING, ready_at=NOW - 50, idle_since=since)


def pending(number: int) -> PilotRecord:
    return pilot(number, PilotState.SUBMITTED)


def died(number: int, at: float = NOW - 1) -> PilotRecord:
    why = "Invalid account"
    return pilot(number, PilotState.ENDED, ended_at=at, fault=True, why=why)


@pytest.mark.parametrize(
    ("pilots", "waiting", "start"),
    [
        ([], 0, 0),
        ([], 1, 1),
        ([], 100, 4),
        ([serving(1)], 1, 1),
        ([serving(1, idle=True)], 1, 0),
        ([serving(1, idle=True)], 3, 2),
        ([pending(1), pending(2)], 2, 0),
        ([pending(1), serving(2)], 9, 2),
        # One that drains takes no jobs, and still counts: the maximum holds.
        ([pilot(1, PilotState.DRAINING), serving(2), serving(3), serving(4)], 9, 0),
        ([pilot(1, PilotState.ENDED, ready_at=1.0, ended_at=NOW), serving(2)], 9, 3),
    ],
)
def test_every_waiting_job_gets_a_pilot_that_is_idle_coming_or_new(
    pilots: list[PilotRecord], waiting: int, start: int
) -> None:
    assert plan(group(), pilots, waiting, NOW, None).start == start


def test_some_stay_though_no_job_waits_and_few_are_pending_at_once() -> None:
    assert plan(group(least=2), [], 0, NOW, None).start == 2
    assert plan(group(most=100, pending=3), [], 50, NOW, None).start == 3
    assert plan(group(most=100, pending=3), [pending(1)], 50, NOW, None).start == 2


def test_pending_pilots_that_nobody_needs_are_cancelled_after_a_while_the_newest_first() -> None:
    pilots = [pending(1), pending(2), pending(3), serving(4)]
    early = plan(group(), pilots, 1, NOW, None)
    assert (early.cancel, early.surplus) == ((), True)
    due = plan(group(), pilots, 1, NOW, NOW - SURPLUS_S)
    assert due.cancel == ("slurm-3", "slurm-2")
    starting = [replace(one, state=PilotState.STARTING) for one in pilots[:3]]
    assert plan(group(), starting, 0, NOW, NOW - 60).cancel == ()


def test_a_group_that_is_drained_or_paused_starts_none() -> None:
    assert plan(group(drained=True), [], 9, NOW, None).start == 0
    assert plan(group(paused="why"), [], 9, NOW, None).start == 0


def test_after_deaths_before_it_was_ready_one_is_tried_alone_and_later_then_none() -> None:
    assert plan(group(), [died(1)], 9, NOW, None).start == 0
    assert plan(group(), [died(1, NOW - PAUSE_S)], 9, NOW, None).start == 1
    assert plan(group(), [died(1, NOW - 99), pending(2)], 9, NOW, None).start == 0
    assert plan(group(), [died(1, NOW - 99), died(2, NOW - PAUSE_S)], 9, NOW, None).start == 0
    dead = [died(number, NOW - 99) for number in range(MOST_FAULTS)]
    decided = plan(group(), dead, 9, NOW, None)
    assert (decided.start, decided.pause) == (0, "Invalid account")
    # One that was ready since, or somebody who has read why, ends that.
    well = pilot(9, PilotState.ENDED, ready_at=NOW - 50, ended_at=NOW - 1)
    assert plan(group(), [*dead, well], 9, NOW, None).start == 4
    assert plan(group(forgiven_at=NOW - 50), dead, 9, NOW, None).start == 4


@pytest.mark.parametrize("seed", range(20))
def test_two_hundred_pilots_die_as_they_like_and_every_job_is_done(seed: int) -> None:
    """Simulated: jobs of random length; nodes come late, pilots end at any time."""
    rng = random.Random(seed)
    many = group(most=200, pending=50)
    jobs, done, now = 3000, 0, NOW
    pilots: dict[int, PilotRecord] = {}
    ends: dict[int, float] = {}  # when the job of a pilot ends
    surplus: float | None = None
    number = most = 0
    while done < 3000:
        now += 1.0
        assert now < NOW + 20_000
        for key, one in list(pilots.items()):
            fate = rng.random()
            if one.state is PilotState.ENDED:
                continue
            if one.state is PilotState.SUBMITTED and fate < 0.1:
                one = replace(one, state=PilotState.SERVING, ready_at=now, idle_since=now)
            elif one.state is PilotState.SERVING and fate < 0.01:
                jobs += key in ends  # its job is requeued
                ends.pop(key, None)
                one = replace(one, state=PilotState.ENDED, ended_at=now)
            elif one.state is PilotState.SERVING and one.idle_since and now - one.idle_since > 60:
                one = replace(one, state=PilotState.ENDED, ended_at=now)
            elif ends.get(key, now + 1) <= now:
                done += 1
                del ends[key]
                one = replace(one, idle_since=now)
            if one.state is PilotState.SERVING and one.idle_since and jobs:
                jobs -= 1
                ends[key] = now + rng.expovariate(1 / 30)
                one = replace(one, idle_since=0.0)
            pilots[key] = one
        decided = plan(many, list(pilots.values()), jobs, now, surplus)
        surplus = (surplus or now) if decided.surplus else None
        for name in decided.cancel:
            key = int(name.removeprefix("slurm-"))
            pilots[key] = replace(pilots[key], state=PilotState.ENDED, ended_at=now)
        for _ in range(decided.start):
            number += 1
            pilots[number] = replace(pending(number), submitted_at=now)
        living = [one for one in pilots.values() if one.state is not PilotState.ENDED]
        assert len(living) <= 200
        assert sum(one.state is PilotState.SUBMITTED for one in living) <= 50
        most = max(most, len(living))
    assert most > 100
