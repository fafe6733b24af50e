"""One job alone on a GPU that several sessions use."""

from __future__ import annotations

import threading
from pathlib import Path

from postroom.session.gpu_sharing import GpuSharing
from postroom.store.base import create_base
from postroom.testing import wait_until


def test_a_stream_of_ordinary_jobs_does_not_starve_an_exclusive_one(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    ordinary, exclusive = GpuSharing(base, "GPU-x"), GpuSharing(base, "GPU-x")
    ordinary.enter()
    had_it = threading.Event()

    def have_it_alone() -> None:
        with exclusive.alone():
            had_it.set()

    waiting = threading.Thread(target=have_it_alone)
    waiting.start()

    def next_job() -> bool:
        ordinary.enter()
        return had_it.is_set()

    wait_until(next_job, what="the exclusive job's turn")
    waiting.join()


def test_whoever_waits_for_a_gpu_finds_what_was_cached_on_it_given_back(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    exclusive, given = GpuSharing(base, "GPU-x"), threading.Event()
    ordinary = GpuSharing(base, "GPU-x", give_back=given.set)
    ordinary.enter()
    saw: list[bool] = []

    def have_it_alone() -> None:
        with exclusive.alone():
            saw.append(given.is_set())

    waiting = threading.Thread(target=have_it_alone)
    waiting.start()

    def next_job() -> bool:
        ordinary.enter()
        return bool(saw)

    wait_until(next_job, what="the exclusive job's turn")
    waiting.join()
    assert saw == [True]
