from __future__ import annotations

import json
import os

import pytest

from postroom.gpus.cards import simulated
from postroom.gpus.cards.inventory import Usage
from postroom.gpus.ledger.card_cache import available_cards
from postroom.gpus.ledger.card_overview import CardState, overview
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
