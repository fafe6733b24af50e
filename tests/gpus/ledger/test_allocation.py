from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.gpus.ledger.allocation import AvailableCard, CardShare, Demand, ProcessMemory, grant

CARDS = ("a", "b", "c", "d")
AVAILABLE = [AvailableCard(uuid, 24, rank) for rank, uuid in enumerate(CARDS)]


def whole(uuid: str, *, uid: int = 0, group: str = "") -> CardShare:
    return CardShare(uuid, None, uid, group)


def test_the_least_recently_used_card_comes_first() -> None:
    available = [
        AvailableCard("a", 24, 30.0),
        AvailableCard("b", 24, 10.0),
        AvailableCard("c", 24, 20.0),
    ]
    assert grant(available, [], [], Demand(1, ("a", "b", "c"))) == ("b",)
    assert grant(available, [whole("b")], [], Demand(1, ("a", "b", "c"))) == ("c",)


def test_several_cards_are_all_or_nothing() -> None:
    assert grant(AVAILABLE, [whole("a")], [], Demand(4, CARDS)) is None
    assert grant(AVAILABLE, [whole("a")], [], Demand(3, CARDS)) == ("b", "c", "d")


def test_several_cards_are_taken_where_nvlink_joins_them() -> None:
    links = {"a": ("c",), "b": ("d",), "c": ("a",), "d": ("b",)}
    joined = [card._replace(linked=links[card.uuid]) for card in AVAILABLE]
    assert grant(joined, [], [], Demand(2, CARDS)) == ("a", "c")
    assert grant(joined, [whole("a")], [], Demand(2, CARDS)) == ("b", "d")
    assert grant(joined, [whole("a"), whole("b")], [], Demand(2, CARDS)) == ("c", "d")
    assert set(grant(joined, [], [], Demand(3, CARDS)) or ()) >= {"a", "c"}
    foreign = (ProcessMemory((70,), 5),)
    used = [card._replace(processes=foreign if card.uuid in "cd" else ()) for card in joined]
    assert grant(used, [], [], Demand(2, CARDS)) == ("a", "b"), "a stranger is worse than no link"


def test_a_large_request_is_not_overtaken_by_small_ones() -> None:
    waiting = [Demand(4, CARDS)]
    assert grant(AVAILABLE, [whole("a")], waiting, Demand(1, CARDS)) is None
    assert grant(AVAILABLE, [whole("a")], [], Demand(1, CARDS)) == ("b",)


def test_a_request_for_another_card_does_not_wait_behind_others() -> None:
    waiting = [Demand(1, ("a",))]
    assert grant(AVAILABLE, [whole("a")], waiting, Demand(1, ("b",))) == ("b",)
    assert grant(AVAILABLE, [], waiting, Demand(1, ("a",))) is None


def test_one_who_could_be_served_is_counted_as_served() -> None:
    waiting = [Demand(1, CARDS), Demand(2, CARDS)]
    assert grant(AVAILABLE, [], waiting, Demand(1, CARDS)) == ("d",)
    assert grant(AVAILABLE, [], [*waiting, Demand(1, CARDS)], Demand(1, CARDS)) is None


def test_shares_spread_or_pack() -> None:
    shares = [CardShare("a", 10, 0), CardShare("b", 4, 0)]
    two = Demand(1, ("a", "b"), 8)
    assert grant(AVAILABLE, shares, [], two) == ("b",)
    assert grant(AVAILABLE, shares, [], two, pack=True) == ("a",)


def test_a_share_never_goes_onto_a_whole_card_nor_a_whole_onto_a_shared() -> None:
    assert grant(AVAILABLE[:1], [whole("a")], [], Demand(1, ("a",), 1)) is None
    assert grant(AVAILABLE[:1], [CardShare("a", 1, 0)], [], Demand(1, ("a",))) is None


def test_a_card_drains_for_a_large_share_and_others_use_only_what_will_be_left() -> None:
    shares = [CardShare("a", 10, 0), CardShare("b", 12, 0)]
    waiting = [Demand(1, ("a", "b"), 20)]
    assert grant(AVAILABLE, shares, waiting, Demand(1, ("a",), 5)) is None
    assert grant(AVAILABLE, shares, waiting, Demand(1, ("a",), 4)) == ("a",)
    assert grant(AVAILABLE, shares, waiting, Demand(1, ("b",), 5)) == ("b",)
    newcomer = CardShare("a", 4, 0)
    assert grant(AVAILABLE, [*shares, newcomer], waiting, Demand(1, ("a",), 1)) is None


def test_shares_do_not_follow_each_other_for_ever_where_a_whole_card_is_wanted() -> None:
    shares = [CardShare("a", 10, 0), CardShare("b", 12, 0)]
    waiting = [Demand(1, ("a", "b"))]
    assert grant(AVAILABLE, shares, waiting, Demand(1, ("a", "b"), 4)) == ("b",)
    assert grant(AVAILABLE, shares, waiting, Demand(1, ("a",), 4)) is None


def test_only_the_first_who_waits_for_room_has_a_card_drained() -> None:
    shares = [CardShare("a", 10, 0), CardShare("b", 12, 0)]
    waiting = [Demand(1, ("a", "b"), 24), Demand(1, ("a", "b"), 24)]
    assert grant(AVAILABLE, shares, waiting, Demand(1, ("a", "b"), 4)) == ("b",)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.randoms())
def test_a_large_share_is_served_however_many_small_ones_come(
    small: list[int], chance: Random
) -> None:
    """Small ones take whatever they may, again and again; leases end one by one, in any order."""
    large = Demand(1, CARDS, 20)
    shares = [CardShare(uuid, 12, 0) for uuid in CARDS for _ in range(2)]
    for _ in range(400):
        if grant(AVAILABLE, shares, [], large) is not None:
            return
        small_one = Demand(1, CARDS, chance.choice(small), pack=chance.random() < 0.5)
        while (found := grant(AVAILABLE, shares, [large], small_one)) is not None:
            shares.append(CardShare(found[0], small_one.memory_mib, 0))
        check(shares)
        shares.pop(chance.randrange(len(shares)))
    raise AssertionError("the large one was starved")


def test_only_the_same_group_of_the_same_user_shares_a_whole_card() -> None:
    held = [whole("a", uid=1, group="base")]
    assert grant(AVAILABLE, held, [], Demand(1, ("a",), None, 1, "base")) == ("a",)
    assert grant(AVAILABLE, held, [], Demand(1, ("a",), None, 2, "base")) is None
    assert grant(AVAILABLE, held, [], Demand(1, ("a",), None, 1, "other")) is None
    assert grant(AVAILABLE, [whole("a", uid=1)], [], Demand(1, ("a",), None, 1, "")) is None


def test_a_group_does_not_fill_up_its_own_card_when_any_will_do() -> None:
    held = [whole("a", group="base")]
    assert grant(AVAILABLE, held, [], Demand(1, CARDS, None, 0, "base")) == ("b",)


def test_joining_the_card_of_ones_group_passes_waiting_requests() -> None:
    held = [whole("a", uid=1, group="base")]
    waiting = [Demand(1, ("a",), None, 2)]
    assert grant(AVAILABLE, held, waiting, Demand(1, ("a",), None, 1, "base")) == ("a",)


wants = st.builds(
    lambda among, count, mib, uid, group: Demand(min(count, len(among)), among, mib, uid, group),
    st.lists(st.sampled_from(CARDS), min_size=1, unique=True).map(tuple),
    st.integers(1, 4),
    st.none() | st.integers(1, 24),
    st.integers(0, 1),
    st.sampled_from(["", "base"]),
)


def apply(shares: list[CardShare], demand: Demand, cards: tuple[str, ...]) -> list[CardShare]:
    return shares + [CardShare(uuid, demand.memory_mib, demand.uid, demand.group) for uuid in cards]


def check(shares: list[CardShare]) -> None:
    for uuid in CARDS:
        on_card = [share for share in shares if share.uuid == uuid]
        if any(share.memory_mib is None for share in on_card):
            owners = {(share.uid, share.group, share.memory_mib) for share in on_card}
            assert len(on_card) == 1 or (len(owners) == 1 and on_card[0].group), on_card
        assert sum(share.memory_mib or 0 for share in on_card) <= 24


@settings(deadline=None)
@given(st.lists(wants, max_size=12))
def test_nothing_is_ever_handed_out_twice(requests: list[Demand]) -> None:
    shares: list[CardShare] = []
    waiting: list[Demand] = []
    for demand in requests:
        found = grant(AVAILABLE, shares, waiting, demand)
        if found is None:
            waiting.append(demand)
        else:
            assert len(set(found)) == demand.count
            assert set(found) <= set(demand.among)
            shares = apply(shares, demand, found)
        check(shares)


@settings(deadline=None)
@given(st.lists(wants, min_size=1, max_size=10), st.randoms())
def test_nobody_waits_for_ever_when_leases_end(requests: list[Demand], chance: Random) -> None:
    waiting, held = list(requests), list[list[CardShare]]()
    for _ in range(4 * len(requests)):
        for place, demand in enumerate(waiting):
            found = grant(AVAILABLE, [s for lease in held for s in lease], waiting[:place], demand)
            if found is not None:
                held.append(apply([], demand, found))
                waiting.pop(place)
                break
        else:
            if held:
                held.pop(chance.randrange(len(held)))
    assert waiting == []


# Of whole cards: where a share goes depends on the room at that moment, so one who comes later may
# change which card an earlier one gets; that nobody waits for ever holds for shares, too.
strangers = wants.map(lambda demand: demand._replace(group="", memory_mib=None))


@settings(deadline=None)
@given(st.lists(strangers, max_size=6), strangers)
def test_a_later_request_never_delays_an_earlier_one(waiting: list[Demand], demand: Demand) -> None:
    found = grant(AVAILABLE, [], waiting, demand)
    shares = apply([], demand, found or ())
    for place, before in enumerate(waiting):
        if grant(AVAILABLE, [], waiting[:place], before) is not None:
            assert grant(AVAILABLE, shares, waiting[:place], before) is not None


def card(*processes: ProcessMemory, used_mib: int | None = None) -> AvailableCard:
    used = sum(process.used_mib for process in processes) if used_mib is None else used_mib
    return AvailableCard("a", 24, processes=processes, used_mib=used)


def test_a_reservation_counts_from_the_first_moment_however_little_is_used_yet() -> None:
    growing = card(ProcessMemory((70, 7), 1))
    held = [CardShare("a", 16, 0, pid=7)]
    assert grant([growing], held, [], Demand(1, ("a",), 9)) is None
    assert grant([growing], held, [], Demand(1, ("a",), 8)) == ("a",)


def test_a_lease_that_uses_more_than_it_has_reserved_counts_with_what_it_uses() -> None:
    swollen = card(ProcessMemory((70, 7), 10), ProcessMemory((71, 7), 10))
    held = [CardShare("a", 16, 0, pid=7)]
    assert grant([swollen], held, [], Demand(1, ("a",), 5)) is None
    assert grant([swollen], held, [], Demand(1, ("a",), 4)) == ("a",)


def test_who_uses_a_card_without_a_lease_counts() -> None:
    foreign = card(ProcessMemory((70, 7), 10))
    assert grant([foreign], [], [], Demand(1, ("a",), 15)) is None
    assert grant([foreign], [CardShare("a", 8, 0, pid=5)], [], Demand(1, ("a",), 7)) is None
    assert grant([foreign], [CardShare("a", 8, 0, pid=5)], [], Demand(1, ("a",), 6)) == ("a",)


def test_what_the_asker_has_on_the_card_already_is_part_of_what_it_asks_for() -> None:
    mine = card(ProcessMemory((9, 1), 10))
    assert grant([mine], [], [], Demand(1, ("a",), 24, pid=9)) == ("a",)
    assert grant([mine], [], [], Demand(1, ("a",), 24, pid=8)) is None


def test_what_no_process_accounts_for_counts_beside_others_but_not_alone() -> None:
    assert grant([card(used_mib=1)], [], [], Demand(1, ("a",), 24)) == ("a",)
    beside = card(ProcessMemory((70, 7), 4), used_mib=6)
    assert grant([beside], [CardShare("a", 8, 0, pid=7)], [], Demand(1, ("a",), 15)) is None
    assert grant([beside], [CardShare("a", 8, 0, pid=7)], [], Demand(1, ("a",), 14)) == ("a",)


def test_where_processes_cannot_be_seen_leases_are_not_counted_twice() -> None:
    hidden = card(used_mib=10)
    assert grant([hidden], [CardShare("a", 8, 0, pid=7)], [], Demand(1, ("a",), 14)) == ("a",)
    assert grant([hidden], [CardShare("a", 8, 0, pid=7)], [], Demand(1, ("a",), 15)) is None


def test_what_nobody_knows_the_owner_of_counts_once_as_what_leases_use_or_else_in_full() -> None:
    """In a container the driver shows pids of the host: the lease's own, or a stranger's."""
    of_the_host = card(ProcessMemory((), 6))
    assert grant([of_the_host], [], [], Demand(1, ("a",), 19)) is None
    assert grant([of_the_host], [], [], Demand(1, ("a",), 18)) == ("a",)
    held = [CardShare("a", 8, 0, pid=7)]
    assert grant([of_the_host], held, [], Demand(1, ("a",), 17)) is None
    assert grant([of_the_host], held, [], Demand(1, ("a",), 16)) == ("a",)
    beside = card(ProcessMemory((70, 7), 8), ProcessMemory((), 6))
    assert grant([beside], held, [], Demand(1, ("a",), 11)) is None
    assert grant([beside], held, [], Demand(1, ("a",), 10)) == ("a",)


def test_a_whole_card_is_taken_where_no_stranger_computes_if_there_is_one() -> None:
    available = [
        AvailableCard("a", 24, 0.0, (ProcessMemory((70,), 5),), 5),
        AvailableCard("b", 24, 1.0),
    ]
    assert grant(available, [], [], Demand(1, ("a", "b"))) == ("b",)
    assert grant(available, [whole("b")], [], Demand(1, ("a", "b"))) == ("a",)


def used(uuid: str, *processes: ProcessMemory) -> AvailableCard:
    return AvailableCard(uuid, 24_000, 0.0, processes, sum(one.used_mib for one in processes))


EVES = ProcessMemory((70, 7), 6000, "eve")


def test_a_whole_card_is_not_given_beside_a_stranger_unless_that_is_asked_for() -> None:
    for stranger in (EVES, EVES._replace(user="bob"), ProcessMemory((), 6000)):
        card = used("a", stranger)
        assert grant([card], [], [], Demand(1, ("a",), user="bob")) is None
        assert grant([card], [], [], Demand(1, ("a",), user="bob", beside=True)) == ("a",)
    assert grant([used("a", EVES)], [], [], Demand(1, ("a",), pid=7)) == ("a",), "its own process"
    desktop = EVES._replace(compute=False)
    context = EVES._replace(used_mib=400)
    assert grant([used("a", desktop, context)], [], [], Demand(1, ("a",))) == ("a",)


def test_a_share_is_not_packed_onto_another_users_stranger() -> None:
    share = Demand(1, ("a", "b"), 8000, user="bob", pack=True)
    assert grant([used("a", EVES)], [], [], share._replace(among=("a",))) is None
    assert grant([used("a", EVES), used("b")], [], [], share) == ("b",)
    own = used("a", EVES._replace(user="bob"))
    assert grant([own], [], [], share._replace(among=("a",))) == ("a",), "counted, as ever"
    assert grant([own, used("b")], [], [], share) == ("b",), "and avoided"
    beside = share._replace(among=("a",), beside=True)
    assert grant([used("a", EVES)], [], [], beside) == ("a",)
    assert grant([used("a", EVES)], [], [], beside._replace(memory_mib=18_001)) is None


def test_a_request_that_waits_for_a_stranger_keeps_no_card_from_who_does_not_mind() -> None:
    cards = [used("a", EVES), used("b")]
    held = [whole("b")]
    waiting = [Demand(1, ("a", "b"), user="bob")]
    assert grant(cards, held, waiting, Demand(1, ("a",), beside=True)) == ("a",)
    assert grant(cards, [], waiting, Demand(1, ("b",))) is None, "b is the first one's"


def test_memory_that_a_dead_job_left_behind_is_avoided() -> None:
    left = AvailableCard("a", 24_000, 0.0, (), 9000)
    assert grant([left, used("b")._replace(rank=1.0)], [], [], Demand(1, ("a", "b"))) == ("b",)
    assert grant([left], [], [], Demand(1, ("a",))) == ("a",)
