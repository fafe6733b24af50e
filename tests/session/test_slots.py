"""From what a user types to a slot: which GPU, and how a worker is pinned to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.errors import CardHeld, GpuError
from postroom.session.slots import choose_gpus, open_slot
from postroom.store.base import Base, create_base


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


def test_a_session_on_the_cpu_sees_no_gpu_and_leases_none(base: Base) -> None:
    slot, lease = open_slot(base, "cpu", preload="", say=print)
    assert (slot.gpu, slot.agent_id, slot.preload, lease) == ("cpu", "cpu", [], None)
    assert slot.environment["CUDA_VISIBLE_DEVICES"] == ""


def test_a_gpu_is_leased_and_pinned(base: Base) -> None:
    slot, lease = open_slot(base, "0,1", say=print)
    assert lease is not None
    assert (slot.agent_id, slot.gpus, slot.memory_mib) == ("0-1", 2, 24 << 10)
    assert len(lease.fds) == 1
    with pytest.raises(CardHeld):
        open_slot(create_base(f"{base.root}-2"), "1", say=print)
    lease.release()


def test_a_session_that_shares_leases_nothing(base: Base) -> None:
    slot, lease = open_slot(base, "0", shares=True, say=print)
    assert lease is None and slot.shares


def test_without_a_gpu_sessions_run_on_the_cpu(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.gpus.cards.inventory.cards", list)
    said: list[str] = []
    slot, _ = open_slot(base, "0", say=said.append)
    assert slot.gpu == "cpu"
    assert choose_gpus(2, say=said.append) == ["0", "1"]
    assert len(said) == 2


def test_more_gpus_than_there_are_is_an_error_that_names_them() -> None:
    assert choose_gpus(3, say=print) == ["0", "1", "2"]
    with pytest.raises(GpuError, match="this machine has 4"):
        choose_gpus(5, say=print)
