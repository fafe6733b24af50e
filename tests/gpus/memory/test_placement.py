"""Placing many jobs of one owner: large before small, urgent before all, and none starves."""

from __future__ import annotations

from postroom.gpus.ledger.allocation import AvailableCard, CardAllocator, CardShare
from postroom.gpus.memory.placement import PlacementRequest, place_jobs

CARDS = ("a", "b")


def allocator(*held: CardShare) -> CardAllocator:
    available = [AvailableCard(uuid, 24, rank) for rank, uuid in enumerate(CARDS)]
    return CardAllocator(available, held, most_drained=len(available))


def asks(*sizes: int | None) -> list[PlacementRequest]:
    return [PlacementRequest(size, CARDS) for size in sizes]


def test_the_large_are_placed_first_and_the_small_beside_them() -> None:
    assert place_jobs(allocator(), asks(3, 3, 20, 20, 3)) == [
        (2, "a"),
        (3, "b"),
        (0, "a"),
        (1, "b"),
    ]


def test_a_higher_priority_comes_before_a_larger_job() -> None:
    urgent = PlacementRequest(3, CARDS, priority=1)
    assert place_jobs(allocator(), [*asks(24, 24), urgent]) == [(2, "a"), (0, "b")]


def test_what_does_not_fit_yet_has_a_card_drained_for_it() -> None:
    held = [CardShare("a", 10, 0), CardShare("b", 10, 0)]
    # 20 would wait for ever if 14 were let in on both: one card keeps 4 for others, and no more.
    assert place_jobs(allocator(*held), asks(20, 14)) == [(1, "b")]
    assert place_jobs(allocator(*held), asks(20, 20, 14)) == []


def test_one_that_measures_has_an_empty_card_or_waits_for_one() -> None:
    assert place_jobs(allocator(CardShare("a", 1, 0)), asks(None, 5)) == [(0, "b"), (1, "a")]
    assert place_jobs(allocator(CardShare("a", 1, 0), CardShare("b", 9, 0)), asks(None, 5)) == [
        (1, "b")
    ]


def test_thousands_that_do_not_fit_cost_no_more_than_a_few() -> None:
    full = allocator(CardShare("a", 24, 0), CardShare("b", 24, 0))
    calls = 0
    choose = full.choose

    def counted(want: object) -> tuple[str, ...] | None:
        nonlocal calls
        calls += 1
        return choose(want)  # type: ignore[arg-type]

    full.choose = counted  # type: ignore[method-assign]
    assert place_jobs(full, asks(*[5] * 10000)) == []
    assert calls <= len(CARDS)
