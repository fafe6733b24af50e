"""Who writes files by hand is seen and named."""

from __future__ import annotations

from postroom.gpus.ledger.irregular import irregularities
from postroom.gpus.ledger.ledger_rules import Cap, Limit

from .line import Line


def test_a_user_who_takes_what_another_holds_is_named() -> None:
    line = Line()
    line.ask(1001, 60.0, jobs=2)
    line.grant_all()
    held = list(line.held.values())
    assert irregularities(held, [], {}) == []
    thief = held[0]._replace(uid=1002, user="mallory", granted_at=(held[0].granted_at or 0) + 5)
    (found,) = irregularities([*held, thief], [], {})
    assert found.startswith("user mallory (pid 0) took card card-") and "user1001 holds" in found


def test_a_user_who_holds_more_than_the_limit_is_named() -> None:
    line = Line()
    line.ask(1001, 60.0, jobs=3)
    line.grant_all()
    cap = Cap("user eve", frozenset([1001]), Limit(cards=2))
    (found,) = irregularities(list(line.held.values()), [], {1001: (cap,)})
    assert found == "user eve holds 3 cards, and may hold 2"
