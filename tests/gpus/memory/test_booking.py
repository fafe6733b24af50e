"""Room for a command: booked, watched with its descendants, learned from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.gpus.cards import inventory
from postroom.gpus.ledger.protocol import Ledger
from postroom.gpus.memory.booking import Booking, Need, book
from postroom.gpus.memory.command_kind import kind_of_command
from postroom.gpus.memory.packing import CONTEXT_MIB
from postroom.gpus.memory.profiles import Kind, Profiles
from tests.gpus.ledgerkit import wait_until

# A command whose child takes the memory, as a shell's does.
CHILD = """
import subprocess, sys
code = '''
import os, sys
from postroom.gpus.cards.simulated import Claim
with Claim(os.environ["POSTROOM_GPU"], int(sys.argv[1])):
    sys.stdin.read()
'''
subprocess.run([sys.executable, "-c", code, sys.argv[1]])
"""


@pytest.fixture(autouse=True)
def _cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cards").mkdir()
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path / "cards"))
    monkeypatch.setenv("POSTROOM_PROFILES", str(tmp_path / "profiles"))


def booked(ledger: Ledger, kind: Kind, memory_mib: int | None = None, **options: Any) -> Booking:
    need = Need(kind, memory_mib, name=kind.type, **options)
    return book(need, ledger=ledger, profiles=Profiles(), cards=inventory.cards())


def test_a_command_is_measured_with_its_descendants(
    ledger: Ledger, start: Callable[..., Any]
) -> None:
    kind = kind_of_command("python fit.py --width 64")
    with booked(ledger, kind) as booking:
        assert booking.measuring
        assert booking.reserved_mib is None
        child = start(
            *(sys.executable, "-c", CHILD, "3000"),
            env=os.environ | booking.environment,
            stdin=-1,
            pass_fds=booking.lease.fds if booking.lease is not None else (),
        )
        meter = booking.watch(child.pid)
        wait_until(lambda: meter.peak_mib == 3000, show=lambda: meter.samples)
        child.stdin.close()
        assert child.wait() == 0
        assert booking.finish(ok=True).endswith("eight fit on one card")
    assert ledger.holders() == []
    with booked(ledger, kind) as booking:
        assert not booking.measuring
        assert booking.reserved_mib is not None
        assert 3000 < booking.reserved_mib < 3200


def test_policies_spread_or_pack(ledger: Ledger) -> None:
    kind = Kind("t")
    with booked(ledger, kind, 4096) as first:
        with booked(ledger, kind, 4096) as other:
            assert other.cards != first.cards
        with booked(ledger, kind, 4096, pack=True) as other:
            assert other.cards == first.cards
            assert other.reserved_mib == 4096 + CONTEXT_MIB


def test_a_booking_that_is_given_up_leaves_nothing(ledger: Ledger) -> None:
    booking = booked(ledger, Kind("t"))
    booking.watch()
    booking.close()
    assert ledger.holders() == []
    with booked(ledger, Kind("t")) as again:
        assert again.measuring


def test_after_running_out_of_memory_more_is_asked_for(ledger: Ledger) -> None:
    kind = Kind("t")
    with booked(ledger, kind, 2048) as booking:
        booking.watch()
        booking.finish(ok=False, out_of_memory=True)
    with booked(ledger, kind, 2048) as booking:
        assert booking.reserved_mib is None
        assert booking.measuring


def test_who_runs_out_before_anybody_measures_it_is_learned_from_too(ledger: Ledger) -> None:
    """Else a command that fails at once is tried on the same card again and again."""
    kind, profiles = Kind("t"), Profiles()
    (card, *_) = inventory.cards()
    for alone, learned_mib in ((False, 0), (True, card.memory_mib)):
        booking = Booking(Need(kind), [card], profiles=profiles)
        booking.finish(ok=False, out_of_memory=True, alone=alone)
        assert profiles.learned(kind).at_least_mib == learned_mib
