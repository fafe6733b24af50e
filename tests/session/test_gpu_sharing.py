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
