"""A plain kernel in a session that shares its card: booked, measured, and known the next time."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.gpus.cards.simulated import Claim
from postroom.gpus.ledger.protocol import open_ledger
from postroom.gpus.memory.profiles import Kind, Profiles
from postroom.session.booked_task import call_booked


@pytest.fixture(autouse=True)
def _cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x24G")
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path))


def reserved() -> list[int | None]:
    """What is held of the card, while a kernel that takes 3 GB of it runs."""
    with Claim("FAKE-0", 3000):
        return [entry.memory_mib for entry in open_ledger().holders()]


def test_a_kernel_that_knows_nothing_of_cards_is_booked_for() -> None:
    assert call_booked("kernels:fit", reserved) == [None]  # alone: nobody knows what it needs
    Profiles().forget("kernels:fit")
    assert open_ledger().holders() == []


def test_its_error_is_its_own_and_holds_nothing() -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        call_booked("kernels:fit", fail)
    assert open_ledger().holders() == []
    assert Profiles().learned(Kind("kernels:fit")).at_least_mib == 24 * 1024
