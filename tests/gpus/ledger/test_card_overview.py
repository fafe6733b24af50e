from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from postroom.errors import CardHeld
from postroom.gpus.cards import simulated
from postroom.gpus.cards.inventory import Card, Usage
from postroom.gpus.ledger.card_cache import available_cards
from postroom.gpus.ledger.card_overview import CardState, overview
from postroom.gpus.ledger.folder_ledger import FolderLedger
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.system import processes


@pytest.mark.usefixtures("folder")
def test_each_card_has_the_state_that_the_ledger_and_the_driver_give_it() -> None:
    ledger = open_ledger()
    cards = simulated.cards("7x24G")
    cards[3] = cards[3]._replace(processes=(Usage(1, "root", "miner", 900),), used_mib=900)
    cards[4] = cards[4]._replace(problem="lost: gone")
    ledger.quarantine("FAKE-5", "too hot")
    ledger.manage([f"FAKE-{index}" for index in range(6)])
    whole = ledger.acquire(LeaseRequest(cards=("FAKE-1",)), cards=cards)
    share = ledger.acquire(LeaseRequest(cards=("FAKE-2",), memory_mib=500), cards=cards)
    with whole, share:
        found = overview(ledger, cards)
        assert [status.state for status in found] == [
            CardState.IDLE,
            CardState.HELD,
            CardState.SHARED,
            CardState.FOREIGN,
            CardState.SICK,
            CardState.QUARANTINED,
            CardState.UNMANAGED,
        ]
        assert [status.reserved_mib for status in found[:3]] == [0, 24 * 1024, 500]
        assert found[5].reason.startswith("too hot (")
        encoded = json.loads(json.dumps([status.encode() for status in found]))
        assert encoded[1]["leases"][0]["pid"] == os.getpid()
        assert encoded[3]["foreign"][0]["command"] == "miner"
    handed_out = available_cards(cards, ledger, lambda card: card.index)
    assert [card.uuid for card in handed_out] == ["FAKE-0", "FAKE-1", "FAKE-2", "FAKE-3"]


@pytest.mark.usefixtures("folder")
def test_a_pid_of_another_container_excuses_nobody_but_its_own_user() -> None:
    ledger = open_ledger()
    (card,) = simulated.cards("1x24G")
    inside = processes.myself()._replace(pid=1, pid_namespace="pid:[1]")  # here, 1 is above all
    with ledger.acquire(LeaseRequest(memory_mib=500, owner=inside), cards=[card]) as lease:
        uses = (
            Usage(os.getpid(), "nobody", "miner", 900),
            Usage(4712, lease.entry.user, "train", 400),
        )
        (found,) = overview(ledger, [card._replace(processes=uses)])
        assert [process.command for process in found.foreign] == ["miner"]


def test_a_process_without_a_lease_is_named_and_nothing_is_packed_onto_it(tmp_path: Path) -> None:
    stranger = Usage(os.getppid(), "bob", "python", 20_000)
    dying = Usage(4_000_000, "?", "?", 20_000)
    used = [
        Card(n, f"FAKE-{n}", "Simulated", 24_000, "fake", used_mib=20_000, processes=(process,))
        for n, process in enumerate((stranger, dying))
    ]
    ledger = FolderLedger(str(tmp_path), cards=lambda: used)
    with pytest.raises(CardHeld) as refused:
        ledger.try_acquire(LeaseRequest(memory_mib=8_000))
    assert f"user bob, pid {os.getppid()} (python, 19.5G)" in str(refused.value)
    assert "pid 4000000 (19.5G), which is ending or in another container" in str(refused.value)
    used.append(Card(2, "FAKE-2", "Simulated", 24_000, "fake", used_mib=0))
    for request in (LeaseRequest(memory_mib=8_000), LeaseRequest()):
        with ledger.try_acquire(request) as lease:
            assert lease.cards == ("FAKE-2",)
