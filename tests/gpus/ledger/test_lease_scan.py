"""A scan of the ledger with more files in it than there are descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.errors import CardHeld, GpuError
from postroom.gpus.cards.inventory import cards
from postroom.gpus.ledger import lease_records
from postroom.gpus.ledger.lease_scan import LeaseScan
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.system.shared_folder import SharedFolder

DESCRIPTORS = 400


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def litter(folder: Path, count: int) -> None:
    """Leave empty files under the names of leases, before any real one in the folder's order."""
    mine = Path(SharedFolder(str(folder)).mine())
    for number in range(count):
        (mine / f"lease-0000-{number:04d}").touch()


@pytest.mark.usefixtures("few_descriptors")
def test_a_held_card_stays_held_among_more_files_than_descriptors(folder: Path) -> None:
    litter(folder, 2 * DESCRIPTORS)
    ledger = open_ledger()
    every = tuple(card.uuid for card in cards())
    lease = ledger.acquire(LeaseRequest(count=len(every)))
    try:
        with pytest.raises(CardHeld):
            ledger.try_acquire(LeaseRequest())
        assert {uuid for entry in ledger.holders() for uuid in entry.cards} == set(every)
    finally:
        lease.release()


@pytest.mark.usefixtures("few_descriptors")
def test_a_process_without_descriptors_is_told_so_and_granted_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    litter(folder, 3)
    scan = LeaseScan(SharedFolder(str(folder)))
    real, taken = os.open, []

    def exhausted(path: str, *words: int, **names: int) -> int:
        if str(path).startswith("lease-0000-0002"):
            taken.append(path)
            raise OSError(24, "Too many open files")
        return real(path, *words, **names)

    monkeypatch.setattr(os, "open", exhausted)
    with pytest.raises(GpuError, match=r"lease-0000-0002 of user .*Too many open files"):
        scan.snapshot()
    scan.close()
    assert taken


def test_only_so_many_files_stay_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.gpus.ledger.lease_scan.OPEN_LIMIT", 5)
    litter(folder, 20)
    before = len(os.listdir("/proc/self/fd"))
    with LeaseScan(SharedFolder(str(folder))) as scan:
        for _ in range(3):
            assert len(scan.snapshot().dead) == 20
        assert len(os.listdir("/proc/self/fd")) == before + 5
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lease_without_its_lock_is_dead(folder: Path) -> None:
    lease = open_ledger().acquire(LeaseRequest(name="x"))
    shared = SharedFolder(str(folder))
    with LeaseScan(shared) as scan:
        assert [entry.lease_id for entry in scan.snapshot().held] == [lease.lease_id]
        for fd in lease.fds:
            os.close(fd)
        lease.fds = ()
        state = scan.snapshot()
        assert state.held == []
        assert [dead.name for dead in state.dead] == [f"lease-{lease.lease_id}"]


def test_a_lease_that_cannot_be_read_counts_as_all_cards(folder: Path) -> None:
    with open_ledger().acquire(LeaseRequest(name="x")) as lease:
        path = Path(SharedFolder(str(folder)).mine()) / f"lease-{lease.lease_id}"
        path.write_text("rubbish\n")
        with LeaseScan(SharedFolder(str(folder))) as scan:
            (entry,) = scan.snapshot().held
    assert entry.cards == ()
    assert str(path) in entry.name


def test_new_files_are_noticed_and_tickets_are_counted(folder: Path) -> None:
    shared = SharedFolder(str(folder))
    mine = Path(shared.mine())
    os.utime(mine, (1, 1))
    with LeaseScan(shared) as scan:
        scan.snapshot()
        assert not scan.has_changed()
        for number in range(3):
            (mine / f"ticket-{number:020d}-x").write_text("")
        assert scan.has_changed()
        assert scan.count_before(f"ticket-{2:020d}-x") == 2


def test_a_ticket_that_is_newer_than_it_says_waits_from_now_on_and_is_named(folder: Path) -> None:
    mine = SharedFolder(str(folder)).mine()
    honest = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    files = []
    for number, asked_at in ((honest, time.time()), (1, time.time()), (honest + 1, 5.0)):
        entry = lease_records.new_entry(LeaseRequest(), ("FAKE-0",), 1)._replace(asked_at=asked_at)
        path = Path(mine, f"ticket-{number:020d}-{entry.lease_id}")
        file = path.open("wb")
        file.write(lease_records.encode_request(entry))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        files.append(file)
    with LeaseScan(SharedFolder(str(folder))) as scan:
        found = {
            entry.asked_at > time.time() - 90: entry.doubt for entry in scan.snapshot().waiting
        }
        assert list(found) == [True]  # none gains more than a minute
        named = [entry for entry in scan.snapshot().waiting if "by hand" in entry.doubt]
    assert len(named) == 2
    for file in files:
        file.close()
