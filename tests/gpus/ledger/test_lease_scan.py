from __future__ import annotations

import os
from pathlib import Path

from postroom.gpus.ledger.lease_scan import LeaseScan
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.system.shared_folder import SharedFolder


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
