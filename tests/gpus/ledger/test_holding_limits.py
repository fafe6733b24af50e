"""Limits hold in the simulated line, and whoever is over one keeps nothing from the others."""

from __future__ import annotations

import pytest

from postroom.gpus.ledger.fair_share import Account
from postroom.gpus.ledger.ledger_rules import LedgerRules, Limit
from postroom.gpus.ledger.waiting import Situation, refusal
from postroom.system import processes

from .line import Line

ONE, OTHER = 1001, 1002
HOUR = 3600.0


def line_with(limit: Limit) -> Line:
    return Line(rules=LedgerRules(users={processes.user_name(ONE): limit}, path="rules.toml"))


def why(line: Line) -> str:
    situation = Situation(line.available(), line.facts())
    return refusal(line.waiting[0], line.state(), situation)


def held_by(line: Line, uid: int) -> int:
    return sum(len(entry.cards) for entry in line.held.values() if entry.uid == uid)


def test_who_may_hold_two_cards_never_holds_three() -> None:
    line = line_with(Limit(cards=2))
    line.ask(ONE, 600.0, jobs=20)
    for _ in range(40):
        line.run(line.now - 1_800_000_000.0 + 120.0)
        assert held_by(line, ONE) <= 2
        assert held_by(line, ONE) == 2 or not line.waiting
    assert len(line.ended) >= 12


def test_who_is_over_waits_with_that_reason_and_keeps_no_card_back() -> None:
    line = line_with(Limit(cards=2))
    line.accounts[OTHER] = Account(1e6, line.now)  # so all requests of the first are before it
    line.ask(ONE, HOUR, jobs=5)
    line.ask(OTHER, HOUR, jobs=5)
    line.grant_all()
    assert (held_by(line, ONE), held_by(line, OTHER)) == (2, 2)
    assert (
        why(line) == f"user {processes.user_name(ONE)} holds 2 cards, and may hold 2 (rules.toml)"
    )


def test_users_who_have_used_alike_share_at_once() -> None:
    line = Line()
    line.ask(ONE, HOUR, jobs=5)
    line.ask(OTHER, HOUR, jobs=5)
    line.grant_all()
    assert (held_by(line, ONE), held_by(line, OTHER)) == (2, 2)


def test_memory_of_all_leases_together_is_limited() -> None:
    line = line_with(Limit(memory_mib=30_000))
    line.ask(ONE, HOUR, jobs=1)  # a whole card of 24,000 MiB
    line.ask(ONE, HOUR, jobs=3, memory_mib=4_000)
    line.grant_all()
    assert len(line.held) == 2
    assert "holds 28000 MiB of GPU memory, and may hold 30000 MiB" in why(line)


def test_who_has_held_a_card_too_long_gets_no_other_before_it_is_released() -> None:
    line = line_with(Limit(hours=2))
    line.ask(ONE, 5 * HOUR)
    line.run(3 * HOUR)
    (second,) = line.ask(ONE, 60.0)
    line.run(4 * HOUR)
    assert "may for 2 h at a stretch: release it first" in why(line)
    line.run(6 * HOUR)
    assert second in {entry.lease_id for entry, _ in line.ended}


def test_a_group_is_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    of = {ONE: {"students"}, OTHER: {"students"}, 1003: {"staff"}}
    monkeypatch.setattr("postroom.gpus.ledger.ledger_rules._groups_of", of.__getitem__)
    line = Line(rules=LedgerRules(groups={"students": Limit(cards=3)}))
    for uid in of:
        line.ask(uid, HOUR, jobs=4)
    line.grant_all()
    assert held_by(line, ONE) + held_by(line, OTHER) <= 3
    assert sum(held_by(line, uid) for uid in of) == 4
