"""What every store of leases must do: each test runs against the folder and against Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom.errors import CardHeld, GpuError
from postroom.gpus.ledger.protocol import Lease, LeaseRequest, Ledger, open_ledger
from tests.gpus.ledgerkit import wait_until

Start = Callable[..., subprocess.Popen[str]]
ALL = ("FAKE-0", "FAKE-1", "FAKE-2", "FAKE-3")
HOLD = """
lease = ledger.acquire(LeaseRequest(name='child', cards=tuple(sys.argv[1:])))
print('held', flush=True)
time.sleep(600)
"""


def free(ledger: Ledger) -> set[str]:
    held = {uuid for entry in ledger.holders() for uuid in entry.cards}
    return set(ALL) - held


def requests_wait(ledger: Ledger, count: int) -> Callable[[], bool]:
    return lambda: len(ledger.queue()) == count


class Waiter(threading.Thread):
    """Asks in the background, and keeps what comes."""

    def __init__(self, ledger: Ledger, request: LeaseRequest) -> None:
        super().__init__(daemon=True)
        self.ledger, self.request = ledger, request
        self.lease: Lease | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.lease = self.ledger.acquire(self.request, timeout_s=60)
        except Exception as error:
            self.error = error


def test_every_card_is_handed_out_once(ledger: Ledger) -> None:
    leases = [ledger.try_acquire(LeaseRequest()) for _ in ALL]
    assert sorted(uuid for lease in leases for uuid in lease.cards) == list(ALL)
    with pytest.raises(CardHeld):
        ledger.try_acquire(LeaseRequest())
    leases[2].release()
    with ledger.try_acquire(LeaseRequest()) as again:
        assert again.cards == leases[2].cards
    for lease in leases:
        lease.release()


def test_a_refusal_names_the_holder(ledger: Ledger) -> None:
    with ledger.try_acquire(LeaseRequest(cards=("FAKE-1",), name="night training")) as lease:
        with pytest.raises(CardHeld) as refusal:
            ledger.try_acquire(LeaseRequest(cards=("FAKE-1",)))
        text = str(refusal.value)
        assert "card 1 is held by 'night training'" in text
        assert f"pid {os.getpid()}" in text
        assert f"user {lease.entry.user}" in text
        assert "since 20" in text


def test_the_least_recently_used_card_comes_next(ledger: Ledger) -> None:
    order = []
    for _ in range(8):
        with ledger.try_acquire(LeaseRequest()) as lease:
            order += lease.cards
    assert sorted(order[:4]) == list(ALL)
    assert order[4:] == order[:4]


def test_several_cards_come_all_or_not_at_all(ledger: Ledger) -> None:
    with ledger.try_acquire(LeaseRequest(count=3)) as three:
        assert len(three.cards) == 3
        with pytest.raises(CardHeld):
            ledger.try_acquire(LeaseRequest(count=2))
        assert len(free(ledger)) == 1
    with ledger.try_acquire(LeaseRequest(count=4)) as four:
        assert sorted(four.cards) == list(ALL)


def test_shares_of_a_card_add_up_to_the_card_and_no_further(ledger: Ledger) -> None:
    def ask(gib: int) -> Lease:
        return ledger.try_acquire(LeaseRequest(cards=("FAKE-0",), memory_mib=gib * 1024))

    first, second = ask(16), ask(8)
    with pytest.raises(CardHeld):
        ask(1)
    with pytest.raises(CardHeld):
        ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    first.release()
    third = ask(16)
    for lease in (second, third):
        lease.release()


def test_one_group_shares_its_card_and_keeps_all_others_out(ledger: Ledger) -> None:
    first = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",), group="base"))
    second = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",), group="base"))
    for group in ("", "another"):
        with pytest.raises(CardHeld):
            ledger.try_acquire(LeaseRequest(cards=("FAKE-0",), group=group))
    first.release()
    assert "FAKE-0" not in free(ledger)
    second.release()
    assert "FAKE-0" in free(ledger)


def test_what_no_card_can_satisfy_is_an_error_at_once(ledger: Ledger) -> None:
    for request in (
        LeaseRequest(count=5),
        LeaseRequest(count=0),
        LeaseRequest(memory_mib=24 * 1024 + 1),
        LeaseRequest(memory_mib=0),
        LeaseRequest(cards=("FAKE-9",)),
        LeaseRequest(cards=("FAKE-0", "FAKE-0")),
    ):
        with pytest.raises(GpuError):
            ledger.acquire(request)


def test_a_repeated_release_does_no_harm(ledger: Ledger) -> None:
    first = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    first.release()
    second = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    first.release()
    with pytest.raises(CardHeld):
        ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    second.release()


def test_a_killed_owner_frees_its_card(ledger: Ledger, python: Start) -> None:
    child = python(HOLD, "FAKE-2")
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    assert "FAKE-2" not in free(ledger)
    child.kill()
    child.wait()
    # Not even a tidy-up is needed: Linux has released the lock before wait() returned.
    with ledger.try_acquire(LeaseRequest(cards=("FAKE-2",))) as lease:
        assert lease.cards == ("FAKE-2",)


def test_the_card_stays_held_until_the_last_child_with_the_lock_is_gone(
    ledger: Ledger, start: Start, python: Start
) -> None:
    code = (
        "import subprocess\n"
        "lease = ledger.acquire(LeaseRequest(cards=('FAKE-3',)))\n"
        "child = subprocess.Popen(['sleep', '600'], pass_fds=lease.fds)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    owner = python(code)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    with pytest.raises(CardHeld):
        ledger.try_acquire(LeaseRequest(cards=("FAKE-3",)))
    os.kill(child, 9)
    wait_until(lambda: "FAKE-3" in free(ledger), show=ledger.holders)


def test_a_release_leaves_the_card_to_children_that_still_use_it(ledger: Ledger) -> None:
    lease = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    child = subprocess.Popen(["sleep", "600"], pass_fds=lease.fds)
    try:
        lease.release()
        assert "FAKE-0" not in free(ledger)
    finally:
        child.kill()
        child.wait()
    assert "FAKE-0" in free(ledger)


def test_waiting_requests_are_served_in_order_and_can_be_seen(ledger: Ledger) -> None:
    holder = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    first = Waiter(ledger, LeaseRequest(cards=("FAKE-0",), name="first"))
    wait_until(requests_wait(ledger, 1))
    second = Waiter(ledger, LeaseRequest(cards=("FAKE-0",), name="second"))
    wait_until(requests_wait(ledger, 2))
    assert [entry.name for entry in ledger.queue()] == ["first", "second"]
    holder.release()
    first.join(30)
    assert first.lease is not None
    assert second.lease is None
    first.lease.release()
    second.join(30)
    assert second.lease is not None
    second.lease.release()


def test_a_large_request_is_not_starved_by_small_ones(ledger: Ledger) -> None:
    small = [ledger.try_acquire(LeaseRequest()) for _ in ALL]
    large = Waiter(ledger, LeaseRequest(count=4, name="large"))
    wait_until(requests_wait(ledger, 1))
    for lease in small:
        lease.release()
        if lease is not small[-1]:
            with pytest.raises(CardHeld):  # one is free, but kept for the large one
                ledger.try_acquire(LeaseRequest())
    large.join(30)
    assert large.lease is not None
    large.lease.release()


def test_a_killed_waiter_drops_out_of_the_waiting_list(ledger: Ledger, python: Start) -> None:
    holder = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    waiter = python(HOLD, "FAKE-0")
    wait_until(requests_wait(ledger, 1))
    waiter.kill()
    waiter.wait()
    holder.release()
    lease = ledger.acquire(LeaseRequest(cards=("FAKE-0",)), timeout_s=30)
    lease.release()


def test_waiting_ends_with_its_time_and_leaves_the_waiting_list(ledger: Ledger) -> None:
    with ledger.try_acquire(LeaseRequest(cards=("FAKE-0",), name="me")):
        reasons: list[str] = []
        with pytest.raises(CardHeld, match="held by 'me'"):
            ledger.acquire(LeaseRequest(cards=("FAKE-0",)), timeout_s=0.05, waiting=reasons.append)
        assert len(reasons) == 1
        assert ledger.queue() == []


def test_waiting_is_given_up_when_nobody_wants_it_any_more(ledger: Ledger, folder: Path) -> None:
    with ledger.try_acquire(LeaseRequest(cards=("FAKE-0",))):
        with pytest.raises(CardHeld, match="nobody waits"):
            ledger.acquire(LeaseRequest(cards=("FAKE-0",)), wanted=lambda: False)
        assert ledger.queue() == []
        assert not [*folder.glob("*/ticket-*"), *folder.glob("*/new-*")]


def test_only_managed_cards_are_handed_out(ledger: Ledger) -> None:
    ledger.manage(["FAKE-1"])
    assert ledger.managed() == ("FAKE-1",)
    lease = ledger.try_acquire(LeaseRequest())
    assert lease.cards == ("FAKE-1",)
    with pytest.raises(CardHeld, match="card 0 is not managed"):
        ledger.try_acquire(LeaseRequest())
    waiter = Waiter(ledger, LeaseRequest())
    wait_until(requests_wait(ledger, 1))
    ledger.manage(None)
    waiter.join(30)
    assert waiter.lease is not None
    assert waiter.lease.cards != ("FAKE-1",)
    waiter.lease.release()
    lease.release()


def test_a_quarantined_card_gets_no_work_until_it_is_healed(ledger: Ledger) -> None:
    ledger.quarantine("FAKE-0", "Xid 79 twice")
    assert ledger.quarantined()["FAKE-0"].reason == "Xid 79 twice"
    with pytest.raises(CardHeld, match="card 0 is quarantined: Xid 79 twice"):
        ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    for _ in range(4):
        with ledger.try_acquire(LeaseRequest()) as lease:
            assert lease.cards != ("FAKE-0",)
    ledger.heal("FAKE-0")
    assert ledger.quarantined() == {}
    with ledger.try_acquire(LeaseRequest(cards=("FAKE-0",))):
        pass


def test_the_log_says_what_happened(ledger: Ledger, python: Start) -> None:
    with ledger.try_acquire(LeaseRequest(name="short", cards=("FAKE-0",))):
        pass
    child = python(HOLD, "FAKE-1")
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.wait()
    assert any("child" in reason for _, reason in ledger.purge())
    seen = [(line["what"], line["name"]) for line in ledger.log()]
    assert seen == [
        ("granted", "short"),
        ("released", "short"),
        ("granted", "child"),
        ("ended", "child"),
    ]


def test_a_purge_touches_nothing_that_lives(ledger: Ledger) -> None:
    with ledger.try_acquire(LeaseRequest(cards=("FAKE-0",))):
        assert ledger.purge() == []
        assert "FAKE-0" not in free(ledger)


def test_a_hundred_leases_leave_nothing_behind(ledger: Ledger, folder: Path) -> None:
    for _ in range(100 if os.environ["POSTROOM_LEDGER"] == str(folder) else 10):
        with ledger.try_acquire(LeaseRequest(count=2)):
            pass
    left = {path.name.partition("-")[0] for path in folder.glob("*/*")}
    assert left == {"ended", "log", "used", "usage", "usage.lock"}
    descriptors = len(os.listdir("/proc/self/fd"))
    with ledger.try_acquire(LeaseRequest()):
        pass
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_package_needs_no_redis_for_the_folder(folder: Path) -> None:
    code = (
        "import sys; from postroom.gpus.ledger.protocol import open_ledger, LeaseRequest;"
        "open_ledger().try_acquire(LeaseRequest());"
        "sys.exit([m for m in ('redis', 'numpy', 'rich', 'psutil') if m in sys.modules] or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("place", ["redi://host", "http://host/ledger", "Redis://host"])
def test_an_address_that_is_none_is_no_folder_that_nobody_else_asks(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GpuError, match=r"is no address of a ledger: write redis://"):
        open_ledger(place)
    assert os.listdir(tmp_path) == []


def test_limits_and_reservations_hold(ledger: Ledger, folder: Path) -> None:
    rules = folder / "postroom-rules.toml"
    rules.write_text("[everybody]\ncards = 2\n")
    rules.chmod(0o644)
    now = time.time()
    reserved = ledger.reserve(1, now + 50, now + 90, "talk")
    with pytest.raises(GpuError, match=r"may hold 2 cards \(.*rules.toml\)"):
        ledger.reserve(2, now + 50, now + 90)
    with ledger.try_acquire(LeaseRequest(count=2)):
        with pytest.raises(CardHeld, match=r"holds 2 cards, and may hold 2 \(.*rules.toml\)"):
            ledger.try_acquire(LeaseRequest())
        assert ledger.used()[os.geteuid()] > 0
    ledger.try_acquire(LeaseRequest()).release()
    assert ledger.unreserve(reserved.reservation_id).name == "talk"
    assert ledger.reservations() == []
