from __future__ import annotations

import concurrent.futures
import os
import zlib

import pytest

from postroom.parcel import checksum as module
from postroom.parcel.checksum import checksum


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 10_000, 12_345])
@pytest.mark.parametrize("before", [0, 1, 0xFFFF_FFFF])
def test_pieces_have_the_checksum_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, length: int, before: int
) -> None:
    monkeypatch.setattr(module, "_LARGE", 4096)
    for cores in ({0}, {0, 1}, {0, 1, 2}, set(range(64))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        data = os.urandom(length)
        assert checksum(data, before) == zlib.crc32(data, before)
        assert checksum(memoryview(data), before) == zlib.crc32(data, before)


def test_a_user_who_may_start_no_thread_gets_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(threads: int) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_LARGE", 4096)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", refused)
    data = os.urandom(10_000)
    assert checksum(data) == zlib.crc32(data)
