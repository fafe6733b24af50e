"""Whose turn it is: two users on four simulated cards, and the arithmetic of what fades."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from postroom.gpus.ledger.fair_share import Account, held_s, in_turn
from postroom.gpus.ledger.ledger_rules import LedgerRules, Limit
from postroom.gpus.ledger.reservations import Reservation
from postroom.gpus.ledger.waiting import Situation, claimed
from postroom.system import processes

from .line import START, Line

MANY, FEW, TALK = 1001, 1002, 1003
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


def test_five_jobs_are_not_last_behind_five_hundred_and_an_hour_is_shared_evenly() -> None:
    line = Line(cards=4)
    line.ask(MANY, 2 * MINUTE, jobs=500)
    line.grant_all()
    assert len(line.held) == 4  # nobody else waits: they have all cards
    five = line.ask(FEW, 24 * MINUTE, jobs=5)
    line.run(HOUR)
    assert {entry.lease_id for entry, _ in line.ended if entry.uid == FEW} == {*five}
    assert len(line.waiting) > 400
    used = line.card_s(MANY), line.card_s(FEW)
    assert sum(used) == 4 * HOUR  # and no card was idle
    assert used == pytest.approx((2 * HOUR, 2 * HOUR), rel=0.1)


def test_limits_and_reservations_hold_while_five_hundred_and_five_share_an_hour() -> None:
    """The same two users; one may hold three cards, and a third user has reserved one."""
    talk = Reservation("talk", TALK, "talk", 1, START + HOUR / 2, START + HOUR)
    rules = LedgerRules(users={processes.user_name(MANY): Limit(cards=3)})
    line = Line(cards=4, rules=rules, reservations=[talk])
    line.ask(MANY, 2 * MINUTE, jobs=500, limited=True)
    line.grant_all()
    line.ask(FEW, 12 * MINUTE, jobs=5, limited=True)
    for minute in range(1, 61):
        line.run(minute * MINUTE)
        held = Counter(entry.uid for entry in line.held.values() for _ in entry.cards)
        assert held[MANY] <= 3
        if minute >= 30:
            assert held[MANY] + held[FEW] <= 3, "one card is kept for the talk"
    line.ask(TALK, MINUTE)
    line.grant_all()
    assert any(entry.uid == TALK for entry in line.held.values())
    assert sum(entry.uid == FEW for entry, _ in line.ended) == 5, "the five are not last"
    assert line.card_s(MANY) + line.card_s(FEW) >= 3.4 * HOUR


@pytest.mark.parametrize("seed", [1, 4])
def test_users_who_always_wait_get_the_same_whatever_they_ask_for(seed: int) -> None:
    draw = random.Random(seed)
    line = Line(cards=4)
    for _ in range(8):
        line.ask(MANY, draw.uniform(1, 20) * MINUTE, jobs=20)
        line.ask(FEW, draw.uniform(1, 5) * MINUTE, jobs=40)
        line.ask(FEW, draw.uniform(1, 5) * MINUTE, jobs=4, count=2)
    line.run(3 * HOUR)
    assert {entry.uid for entry in line.waiting} == {MANY, FEW}
    used = line.card_s(MANY), line.card_s(FEW)
    assert used == pytest.approx((sum(used) / 2, sum(used) / 2), rel=0.1)


def test_a_request_for_all_cards_is_not_starved_by_small_ones() -> None:
    line = Line(cards=4)
    line.ask(MANY, 7 * MINUTE, jobs=300)
    line.run(5 * MINUTE)
    (large,) = line.ask(FEW, MINUTE, count=4)
    line.run(15 * MINUTE)
    assert large in {entry.lease_id for entry, _ in line.ended}


def test_who_has_used_much_gets_a_card_when_patience_is_over() -> None:
    line = Line(cards=1, rules=LedgerRules(patience_s=2 * HOUR))
    line.accounts[FEW] = Account(100 * DAY, START)  # a great deal
    line.ask(MANY, 10 * MINUTE, jobs=100)
    first, second = line.ask(FEW, 10 * MINUTE, jobs=2)
    line.run(1.9 * HOUR)
    assert not line.card_s(FEW)
    line.run(2.5 * HOUR)
    ended = {entry.lease_id for entry, _ in line.ended}
    # The second has waited as long, but its user has just had a card: it is not overdue at once.
    assert first in ended
    line.run(2.6 * HOUR)
    assert second in {entry.lease_id for entry, _ in line.ended} or second in line.held


def test_who_yields_has_what_nobody_else_wants_whoever_has_used_less() -> None:
    line = Line(cards=2)
    line.accounts[MANY] = Account(100 * DAY, START)
    first, *_ = line.ask(FEW, MINUTE, jobs=100, yields=True)
    (own,) = line.ask(FEW, MINUTE)  # the same user's, who does not yield here
    line.ask(MANY, MINUTE, jobs=10)
    line.run(6 * MINUTE)
    assert line.card_s(MANY) == 10 * MINUTE
    assert [entry.lease_id for entry, _ in line.ended if entry.uid == FEW] == [own, first]
    line.run(10 * MINUTE)
    # What is held goes to the first other user who asks.
    (lease, _) = line.held.values()
    assert not claimed(lease, line.state(), Situation(line.available(), line.facts())).why
    line.run(11 * MINUTE - 1)
    line.ask(MANY, MINUTE)
    (lease, _) = line.held.values()
    claim = claimed(lease, line.state(), Situation(line.available(), line.facts()))
    assert claim.why and claim.waited_for


def test_what_was_used_fades_and_what_is_held_counts() -> None:
    assert Account(100.0, 0.0).faded(3 * DAY, 3 * DAY) == 50.0
    assert Account(100.0, 0.0).plus(10.0, 3 * DAY, 3 * DAY) == (60.0, 3 * DAY)
    assert held_s(2, 60.0, 3 * DAY) == pytest.approx(120.0, rel=1e-3)
    # Held for ever, it counts for a bounded time: nobody has to wait for longer than that fades.
    assert held_s(1, 1e9, DAY) == pytest.approx(DAY / 0.6931, rel=1e-3)


def test_one_users_requests_stay_in_their_order() -> None:
    line = Line()
    mine = line.ask(MANY, 1.0, jobs=5)
    theirs = line.ask(FEW, 1.0, jobs=5)
    order = [e.lease_id for e in in_turn(line.waiting, [], {}, now=START, patience_s=HOUR)]
    assert [one for one in order if one in mine] == mine
    assert [one for one in order if one in theirs] == theirs
    assert order[:4] == [mine[0], theirs[0], mine[1], theirs[1]]  # alike: they take turns
