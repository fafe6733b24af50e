"""Reservations hold in the simulated line, and in a ledger of real files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from postroom.errors import CardHeld, GpuError
from postroom.gpus.cards.inventory import Card
from postroom.gpus.ledger.folder_ledger import FolderLedger
from postroom.gpus.ledger.protocol import LeaseRequest
from postroom.gpus.ledger.reservations import Reservation, room, windows

from .line import START, Line

TALK, OTHER = 1001, 1002
MINUTE, HOUR = 60.0, 3600.0


def reserve(count: int, start_s: float, end_s: float, uid: int = TALK) -> Reservation:
    name = f"r{start_s:.0f}"
    return Reservation(name, uid, f"user{uid}", count, START + start_s, START + end_s)


def test_reserved_cards_are_free_when_their_time_comes_and_no_card_idles_before() -> None:
    line = Line(reservations=[reserve(2, HOUR, 2 * HOUR)])
    line.ask(OTHER, 10 * MINUTE, jobs=400, limited=True)
    line.run(HOUR)
    assert line.card_s(OTHER) == 4 * HOUR  # ten minutes fit before it
    line.ask(TALK, HOUR, jobs=2)
    line.grant_all()
    assert sum(entry.uid == TALK for entry in line.held.values()) == 2
    line.run(2 * HOUR)
    assert line.card_s(TALK) == 2 * HOUR
    line.run(3 * HOUR)
    assert line.card_s(OTHER, since_s=2 * HOUR) == 4 * HOUR


def test_what_does_not_fit_before_a_reservation_is_not_begun_on_its_cards() -> None:
    line = Line(reservations=[reserve(3, HOUR, 2 * HOUR)])
    line.ask(OTHER, 90 * MINUTE, jobs=2, limited=True)  # too long
    line.ask(OTHER, 5 * MINUTE, jobs=2)  # nobody knows how long
    line.ask(OTHER, 30 * MINUTE, jobs=5, limited=True)
    line.grant_all()
    lasting = [entry.lasts_s for entry in line.held.values()]
    assert sorted(one or 0.0 for one in lasting) == [30 * MINUTE] * 3 + [90 * MINUTE]
    line.run(HOUR)
    assert len({e.cards for e in line.held.values() if e.uid == OTHER}) == 1


def test_an_active_reservation_is_its_users_alone_and_ends_with_its_time() -> None:
    line = Line(reservations=[reserve(4, 0, HOUR)])
    line.ask(OTHER, MINUTE, jobs=4, limited=True)
    line.run(HOUR - 1)
    assert not line.held
    line.run(HOUR + 1)
    assert len(line.held) == 4


def test_who_has_a_card_already_keeps_it_and_other_cards_are_kept_instead() -> None:
    line = Line()
    line.ask(OTHER, 9 * HOUR, jobs=2)
    line.grant_all()
    line.reservations = [reserve(2, HOUR, 2 * HOUR)]
    line.ask(OTHER, 9 * HOUR, jobs=2)
    line.run(HOUR)
    assert len(line.held) == 2
    line.ask(TALK, HOUR, jobs=2)
    line.run(HOUR + 1)
    assert len(line.held) == 4


def test_a_reservation_that_is_not_used_counts_as_used() -> None:
    line = Line(reservations=[reserve(2, 0, HOUR)])
    line.now = START + HOUR / 2
    assert line.facts().used([])[TALK] == pytest.approx(HOUR, rel=0.01)


def test_two_reservations_do_not_get_the_same_card() -> None:
    line = Line()
    both = [reserve(2, 0, HOUR), reserve(2, MINUTE, HOUR, uid=OTHER)]
    found = windows(both, line.available(), [], now=START)
    assert len({window.uuid for window in found}) == 4
    assert room(both, START, START + MINUTE, cards=4)[0] == 2
    assert room(both, START, START + HOUR, cards=4)[0] == 0
    assert room(both, START + HOUR, START + 2 * HOUR, cards=4)[0] == 4


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"version":1}',
        b'{"version":2,"id":"a","count":1,"start":0,"end":9,"name":""}',
        b'{"version":1,"id":"a","count":0,"start":0,"end":9,"name":""}',
        b'{"version":1,"id":"a","count":4,"start":0,"end":1e12,"name":""}',
        b'{"version":1,"id":"a","count":4,"start":NaN,"end":9,"name":""}',
    ],
)
def test_a_file_that_is_no_reservation_keeps_no_card(text: bytes) -> None:
    assert Reservation.decode(text, TALK, made_at=0.0) is None


def test_a_ledger_of_files_keeps_reserved_cards(tmp_path: Path) -> None:
    cards = [Card(n, f"uuid-{n}", "Simulated", 24_000, "simulated") for n in range(2)]
    ledger = FolderLedger(str(tmp_path), cards=lambda: cards)
    now = time.time()
    mine = ledger.reserve(1, now + 100, now + 200, "demo")
    assert [one.reservation_id for one in ledger.reservations()] == [mine.reservation_id]
    with pytest.raises(GpuError, match=r"2 cards cannot be reserved: 1 of 2 are left then"):
        ledger.reserve(2, now + 150, now + 300)
    for lease in [ledger.try_acquire(LeaseRequest(count=2))]:  # its own user may
        lease.release()
    if os.geteuid() == 0:
        # As if another user had made it: the owner of the file is whose it is.
        other = tmp_path / "postroom-1234"
        other.mkdir(mode=0o755)
        os.rename(f"{ledger.own_folder()}/reserve-{mine.reservation_id}", other / "reserve-x")
        for path in (other, other / "reserve-x"):
            os.chown(path, 1234, 1234)
        with pytest.raises(CardHeld, match=r"is reserved by user 1234 from .*say with --for"):
            ledger.try_acquire(LeaseRequest(count=2))
        ledger.try_acquire(LeaseRequest(count=2, lasts_s=50)).release()
        ledger.try_acquire(LeaseRequest(count=1)).release()
    else:
        (known,) = ledger.reservations()
        assert ledger.unreserve(mine.reservation_id) == known
    with pytest.raises(GpuError, match="there is no reservation"):
        ledger.unreserve("nothing")
