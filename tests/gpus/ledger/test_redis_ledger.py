"""What only the Redis store has to show: a server that forgets, lies, sleeps or is away."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import CardHeld, GpuError
from postroom.gpus.cards import inventory
from postroom.gpus.ledger import redis_ledger, redis_renewal
from postroom.gpus.ledger.folder_ledger import FolderLedger
from postroom.gpus.ledger.protocol import Lease, LeaseRequest, open_ledger
from postroom.gpus.ledger.redis_ledger import RedisLedger
from postroom.gpus.ledger.redis_store import RedisLease, RedisStore
from postroom.system import processes
from tests.gpus.ledgerkit import RedisServer, wait_until

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def url(redis_server: RedisServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = redis_server.url(folder, f"t{os.urandom(4).hex()}")
    monkeypatch.setenv("POSTROOM_LEDGER", url)
    return url


def rows(url: str) -> list[RedisLease]:
    return RedisStore(url).snapshot()[1]


def test_a_flushed_server_never_puts_two_tenants_on_a_card(
    url: str, redis_server: RedisServer
) -> None:
    with open_ledger().try_acquire(LeaseRequest(count=4, name="before the flush")):
        redis_server.client().flushall()
        with pytest.raises(CardHeld, match="before the flush"):
            open_ledger().try_acquire(LeaseRequest())


def test_a_lease_is_known_again_after_a_flush(url: str, redis_server: RedisServer) -> None:
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-0",))) as lease:
        redis_server.client().flushall()
        (row,) = wait_until(lambda: rows(url), show="nobody renews it")
        assert row.entry.cards == ("FAKE-0",)
        assert row.entry.token == lease.entry.token


def test_a_lease_that_ended_is_taken_out(url: str) -> None:
    open_ledger().try_acquire(LeaseRequest()).release()
    wait_until(lambda: rows(url) == [], show=lambda: rows(url))


def test_a_lease_of_another_host_counts_and_is_listed(url: str) -> None:
    ledger = RedisLedger(url)
    lease = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    store = RedisStore(url)
    (row,) = rows(url)
    elsewhere = RedisLease(row.entry, "another host", row.waiter)
    lease.release()
    wait_until(lambda: rows(url) == [])
    assert store.put(elsewhere) is not None
    assert [entry.lease_id for entry in ledger.holders()] == [row.entry.lease_id]
    with pytest.raises(CardHeld):
        ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))


def test_a_request_that_waits_on_another_host_keeps_its_place(url: str) -> None:
    ledger = RedisLedger(url)
    entry = ledger.local.entry(LeaseRequest(cards=("FAKE-0",)), inventory.cards())
    away = processes.myself()._replace(boot_id="of another host")
    assert ledger.store.put(RedisLease(entry, "another host", away)) is not None
    assert [one.lease_id for one in ledger.queue()] == [entry.lease_id]
    gone = processes.myself()._replace(started_ticks=1)
    entry = entry._replace(lease_id="f" * len(entry.lease_id))
    assert ledger.store.put(RedisLease(entry, ledger.place, gone)) is not None
    assert len(ledger.queue()) == 1  # its death can be seen


def test_tokens_grow_even_past_a_flush(url: str, redis_server: RedisServer) -> None:
    tokens = []
    for _ in range(3):
        with open_ledger().try_acquire(LeaseRequest()) as lease:
            tokens.append(lease.entry.token)
        redis_server.client().flushall()
    assert tokens == sorted(set(tokens))
    assert tokens[0] > 0


def test_who_slept_between_grant_and_lock_is_fenced_off(
    url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = FolderLedger.take
    tokens: list[int] = []

    def sleepy(self: FolderLedger, *arguments: Any, **options: Any) -> Lease:
        (row,) = rows(url)
        tokens.append(row.entry.token)
        if len(tokens) == 1:
            redis_server.client().flushall()  # as if the grant had expired meanwhile
        return take(self, *arguments, **options)

    monkeypatch.setattr(FolderLedger, "take", sleepy)
    with open_ledger().acquire(LeaseRequest(cards=("FAKE-0",)), timeout_s=30) as lease:
        assert len(tokens) == 2
        assert lease.entry.token == tokens[1] > tokens[0]


def test_nobody_overtakes_who_is_about_to_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_ledger, "GRANT_S", 60.0)
    ledger, request = RedisLedger(url), LeaseRequest(cards=("FAKE-0",))
    entry = ledger.local.entry(request, inventory.cards())
    first = ledger.store.put(RedisLease(entry, ledger.place, processes.myself()))
    assert first is not None
    granted = entry._replace(cards=("FAKE-0",), granted_at=time.time())
    row = ledger.store.put(first._replace(entry=granted))
    assert row is not None
    with pytest.raises(CardHeld):
        ledger.try_acquire(request)
    assert ledger.store.confirm(row._replace(locked=True))
    ledger.try_acquire(request).release()  # it let go again: the lock is the truth


def test_nobody_decides_on_what_is_no_longer_true(url: str) -> None:
    store = RedisStore(url)
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-0",))):
        (row,) = rows(url)
        version, _ = store.snapshot()
        assert store.put(row, version=version) is not None
        assert store.put(row, version=version) is None


def test_an_old_token_neither_renews_nor_removes_a_newer_entry(url: str) -> None:
    store = RedisStore(url)
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-0",))):
        (old,) = rows(url)
        new = store.put(old)
        assert new is not None
        store.drop(old)
        assert not store.renew(old)
        assert [row.token for row in rows(url)] == [new.token]


def test_a_server_that_is_away_is_a_sentence_without_the_password(folder: Path) -> None:
    with pytest.raises(
        GpuError, match=r"Redis at redis://127\.0\.0\.1:1/0 does not answer"
    ) as told:
        open_ledger(f"redis://me:secret@127.0.0.1:1/0?folder={folder}").try_acquire(LeaseRequest())
    assert "secret" not in str(told.value)


def test_without_redis_a_lease_lives_on_and_nothing_is_handed_out(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    server.start()
    ledger = open_ledger(server.url(folder, "away"))
    lease = ledger.try_acquire(LeaseRequest(cards=("FAKE-0",)))
    server.kill()
    with pytest.raises(GpuError, match="does not answer"):
        ledger.try_acquire(LeaseRequest())
    assert [entry.cards for entry in FolderLedger(str(folder)).holders()] == [("FAKE-0",)]
    lease.release()


def test_a_lease_that_could_not_be_opened_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert redis_renewal._open_lease(str(tmp_path / "ended")) is None
    lease, real, tries = tmp_path / "lease", os.open, iter([errno.EMFILE, errno.ENFILE])
    lease.touch()

    def open_at_last(path: str, flags: int) -> int:
        if number := next(tries, 0):
            raise OSError(number, os.strerror(number))
        return real(path, flags)

    monkeypatch.setattr(redis_renewal, "LOOK_S", 0.0)
    monkeypatch.setattr(os, "open", open_at_last)
    fd = redis_renewal._open_lease(str(lease))
    assert fd is not None
    os.close(fd)
