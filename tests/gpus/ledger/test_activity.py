"""Whether held cards compute: what is counted from one look to the next, and who is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroom.gpus.cards.inventory import Card
from postroom.gpus.ledger.activity import (
    GAP_S,
    HOUR_S,
    KEPT_HOURS,
    Activity,
    ActivityMeter,
    idle_since,
)
from postroom.gpus.ledger.protocol import LeaseEntry

from .line import START, Line


def held(*uids: int) -> list[LeaseEntry]:
    line = Line()
    for uid in uids:
        line.ask(uid, 9e9)
    line.grant_all()
    return sorted(line.held.values(), key=lambda entry: entry.uid)


def card(number: int, utilisation: int | None) -> Card:
    return Card(number, f"card-{number}", "card", 24_000, "fake", utilisation=utilisation)


def test_time_is_busy_idle_or_not_measured() -> None:
    meter = ActivityMeter()
    leases = held(1001, 1002)
    mine, other = leases[0].cards[0], leases[1].cards[0]
    for n in range(11):
        computes = 90 if n > 4 else 0
        meter.step(START + 10 * n, leases, [card(int(mine[-1]), computes)])
    assert meter.seen.rows[int(START // HOUR_S), 1001, mine] == (100.0, 100.0, 60.0)
    assert meter.seen.rows[int(START // HOUR_S), 1002, other] == (100.0, 0.0, 0.0)
    again = Activity.decode(json.loads(json.dumps(meter.seen.encode())))
    assert again == meter.seen


def test_nobody_knows_what_happened_while_nobody_looked() -> None:
    meter = ActivityMeter()
    leases = held(1001)
    uuid = leases[0].cards[0]
    seen = [card(int(uuid[-1]), 0)]
    for at in (START, START + GAP_S + 1, START + 9e6):
        meter.step(at, leases, seen)
    assert sum(row[0] for row in meter.seen.rows.values()) == 0.0
    assert idle_since(uuid, START, {1: [meter.seen]}, START + 9e6) == START + 9e6
    meter.step(START, leases, seen)  # the clock was set back
    assert sum(row[0] for row in meter.seen.rows.values()) == 0.0


def test_a_card_is_idle_since_it_was_last_seen_to_compute() -> None:
    meter, root = ActivityMeter(), ActivityMeter()
    for n in range(100):
        meter.step(START + 100 * n, [], [card(0, 50 if n <= 10 else 0)])
        root.step(START + 100 * n, [], [card(0, 50 if n <= 50 else 0)])
    now = START + 9900
    assert idle_since("card-0", START, {7: [meter.seen]}, now) == START + 1000
    assert idle_since("card-0", START + 2000, {7: [meter.seen]}, now) == START + 2000
    assert idle_since("card-0", START, {7: [meter.seen], 8: [root.seen]}, now) == START + 5000
    assert idle_since("card-0", START, {0: [meter.seen], 8: [root.seen]}, now) == START + 1000
    assert idle_since("card-0", START, {7: [meter.seen]}, now + GAP_S + 1) is None
    assert idle_since("card-1", START, {7: [meter.seen]}, now) is None


def test_old_hours_go() -> None:
    meter = ActivityMeter()
    leases = held(1001)
    meter.count_jobs(START, 2, 1)
    meter.step(START, leases, [])
    meter.step(START + KEPT_HOURS * HOUR_S, leases, [])
    assert len(meter.seen.rows) == 2
    meter.step(START + (KEPT_HOURS + 1) * HOUR_S, leases, [])
    assert len(meter.seen.rows) == 2
    assert not meter.seen.jobs


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"version": 2},
        {"version": 1, "hours": 1},
        {"version": 1, "hours": {"1": {"x y": [1, 1, 1]}}},
        {"version": 1, "hours": {"1": {"1 a": [1, float("nan"), 1]}}},
        {"version": 1, "hours": {}, "jobs": {"1": [-1, 0]}},
        {"version": 1, "hours": {}, "jobs": {}, "cards": {"a": [1]}},
    ],
)
def test_what_makes_no_sense_is_left_out(value: Any) -> None:
    assert Activity.decode(value) == Activity({}, {}, {})
