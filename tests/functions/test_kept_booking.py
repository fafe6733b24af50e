from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import postroom
from postroom.functions import kept_booking
from postroom.functions.kept_booking import KeptBooking
from postroom.gpus.cards import inventory
from postroom.gpus.ledger.protocol import open_ledger
from postroom.gpus.memory.booking import Booking, Need, book
from postroom.gpus.memory.profiles import Kind, Profiles
from postroom.testing import wait_until


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G")
    monkeypatch.setenv("POSTROOM_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("POSTROOM_PROFILES", str(tmp_path / "profiles"))


def leases() -> list[str]:
    return [entry.lease_id for entry in open_ledger().holders()]


def need(name: str) -> Need:
    return Need(Kind(name), memory_mib=1000, name=name)


def booked(what: Need) -> Callable[[], Booking]:
    def make() -> Booking:
        cards = inventory.cards()
        return book(what, ledger=open_ledger(), profiles=Profiles(), cards=cards)

    return make


def test_calls_in_a_row_share_a_booking_which_is_given_back_when_no_more_come() -> None:
    kept, seen = KeptBooking(), []
    for _ in range(3):
        with kept.use(need("a"), booked(need("a"))):
            seen += leases()
    assert len(seen) == 3 and len(set(seen)) == 1
    wait_until(lambda: not leases(), what="it is given back")


def test_another_need_and_an_error_give_it_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_booking, "IDLE_S", 1000.0)
    kept = KeptBooking()
    with kept.use(need("a"), booked(need("a"))):
        (first,) = leases()
    with kept.use(need("b"), booked(need("b"))):
        (second,) = leases()
    assert first != second
    with pytest.raises(ValueError), kept.use(need("b"), booked(need("b"))):
        raise ValueError
    assert leases() == []


def test_whoever_waits_for_the_memory_gets_it_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_booking, "MOST_S", 0.0)
    kept, seen = KeptBooking(), []
    for _ in range(2):
        with kept.use(need("a"), booked(need("a"))):
            seen += leases()
    assert len(set(seen)) == 2
    kept.close()


def test_a_short_known_call_in_a_session_that_shares_its_card_is_booked_once_for_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @postroom.job(memory="2G")
    def train() -> list[str]:
        return leases()

    apart = [train() for _ in range(3)]
    assert len({lease for (lease,) in apart}) == 3
    monkeypatch.setenv("POSTROOM_SESSION", "a session")
    monkeypatch.setenv("POSTROOM_SHARES", str(os.getpid()))
    together = [train() for _ in range(3)]
    assert len({lease for (lease,) in together}) == 1
    wait_until(lambda: not leases(), what="it is given back")
