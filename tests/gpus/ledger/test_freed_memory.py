"""A card is granted when its last holder's lock is free, and used when its memory is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom.errors import CardHeld
from postroom.gpus.cards import inventory, simulated
from postroom.gpus.cards.inventory import Card, Usage
from postroom.gpus.ledger import freed_memory
from postroom.gpus.ledger.freed_memory import not_freed
from postroom.gpus.ledger.protocol import LeaseRequest, Ledger

Python = Callable[..., subprocess.Popen[str]]

HOLDER = """
from postroom.gpus.cards.simulated import Claim
lease = ledger.acquire(LeaseRequest(cards=("FAKE-0",)))
claim = Claim("FAKE-0", 20000)
print("holds", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "cards"
    folder.mkdir()
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(folder))
    return str(folder)


def card(used_mib: int, *processes: Usage) -> Card:
    return simulated.cards("24G")[0]._replace(used_mib=used_mib, processes=processes)


def test_only_memory_that_no_living_process_accounts_for_is_waited_for() -> None:
    living, ending = Usage(7, "me", "x", 20000), Usage(8, "?", "?", 20000)
    assert not_freed(card(20000, living), None) == 0
    assert not_freed(card(20000, ending), None) == 20000
    assert not_freed(card(20000), None) == 20000
    assert not_freed(card(600), None) == 0, "a desktop"
    assert not_freed(card(20000), None, staying_mib=19000) == 0


def test_a_share_waits_only_for_what_it_lacks() -> None:
    assert not_freed(card(20000), 4000) == 0
    assert not_freed(card(20000), 8000) == 8000 - 4576
    assert not_freed(card(20000, Usage(7, "me", "x", 20000)), 8000) == 0


def end_a_holder(python: Python) -> None:
    holder = python(HOLDER)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holds\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()


@pytest.mark.parametrize("memory_mib", [None, 8000])
def test_a_lease_is_had_when_the_memory_of_the_killed_holder_is_free(
    ledger: Ledger, stage: str, python: Python, memory_mib: int | None
) -> None:
    simulated.script(stage, {"FAKE-0": {"late_free_s": 600}})
    end_a_holder(python)
    told: list[str] = []

    def free_it(why: str) -> None:
        told.append(why)
        simulated.script(stage, {})

    request = LeaseRequest(cards=("FAKE-0",), memory_mib=memory_mib)
    with ledger.acquire(request, 0, waiting=free_it):
        assert inventory.find("0").used_mib == 0
    (why,) = told
    assert "of card 0 is not free yet, although its last holder has ended" in why


def test_what_does_not_become_free_is_waited_for_once(
    ledger: Ledger, stage: str, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freed_memory, "LIMIT_S", 0.05)
    simulated.script(stage, {"FAKE-0": {"late_free_s": 600}})
    end_a_holder(python)
    told: list[str] = []
    for _ in range(2):
        with ledger.acquire(LeaseRequest(cards=("FAKE-0",)), 0, waiting=told.append):
            pass
    assert [("going on without" in why) for why in told] == [False, True]


def test_a_wait_for_memory_that_nobody_wants_any_more_gives_the_card_back(
    ledger: Ledger, stage: str, python: Python
) -> None:
    simulated.script(stage, {"FAKE-0": {"late_free_s": 600}})
    end_a_holder(python)
    with pytest.raises(CardHeld, match="nobody waits"):
        ledger.acquire(LeaseRequest(cards=("FAKE-0",)), wanted=lambda: False)
    assert ledger.holders() == []
