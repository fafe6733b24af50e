from __future__ import annotations

import os

import pytest

from postroom.errors import GpuError
from postroom.gpus.cards import simulated
from postroom.gpus.cards.inventory import Card, Usage
from postroom.gpus.ledger import card_cache
from postroom.gpus.ledger.card_cache import CardCache, memory_by_process


def test_the_driver_is_asked_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = simulated.cards("1x24G"), simulated.cards("2x24G")
    with CardCache(first, lambda: second) as cache:
        assert cache.cards() == first
    monkeypatch.setattr(card_cache, "CACHE_S", -1.0)
    with CardCache(first, lambda: second) as cache:
        assert cache.cards() == second
    with CardCache(first) as cache:
        assert cache.cards() == first


def test_a_driver_that_fails_leaves_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Card]:
        raise GpuError("hangs")

    monkeypatch.setattr(card_cache, "CACHE_S", -1.0)
    cards = simulated.cards("1x24G")
    with CardCache(cards, fail) as cache:
        assert cache.cards() == cards


def test_memory_is_listed_with_the_ancestors_of_each_process() -> None:
    (card,) = simulated.cards("24G")
    (used,) = memory_by_process(card._replace(processes=(Usage(os.getpid(), "me", "x", 7),)))
    assert used.lineage[:2] == (os.getpid(), os.getppid())
    assert used.used_mib == 7
