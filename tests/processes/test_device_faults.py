"""Real sessions on a scripted device: whose fault an error is, and what the next job finds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom import Job, testing
from postroom.jobs import JobPool
from postroom.testing import RealSessions

KERNELS = """
import time
import numpy as np
from postroom.testing import scripted_device

def double(x):
    return scripted_device().launch(np.multiply, x, 2)

def poison(returns="number"):
    card = scripted_device()
    card.fail_later()
    return 1.0 if returns == "number" else card.launch(np.negative, np.ones(3))

def poison_and_raise():
    scripted_device().fail_later()
    raise ValueError("its own words")

def compute(seconds):
    scripted_device().compute(seconds)

def hang():
    scripted_device().hang()

def too_much():
    scripted_device().hold(30000)
"""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RealSessions]:
    (tmp_path / "kernels.py").write_text(KERNELS)
    with testing.sessions(tmp_path / "base", import_folder=tmp_path) as opened:
        opened.script_cards()
        yield opened


def ends(pool: JobPool) -> list[object]:
    """Each job's result, or its error."""
    jobs = [pool[number] for number in range(len(pool))]
    return [str(job.error) if job.error else job.result() for job in jobs]


def listed(room: RealSessions) -> list[str]:
    """The GPUs that are quarantined."""
    said = subprocess.run(
        [sys.executable, "-m", "postroom", "gpu", "list", "--json"],
        env=room.environment,
        capture_output=True,
        check=True,
    )
    return [card["uuid"] for card in json.loads(said.stdout) if "quarantine" in json.dumps(card)]


def test_a_jobs_error_on_the_device_is_its_own_and_the_next_job_is_fine(room: RealSessions) -> None:
    room.start("0")
    guardian = room.guardians["0"].pid
    kinds = ["double", "poison", "double", "too_much", "double", "poison_and_raise", "double"]
    jobs = [Job(f"kernels:{kind}", **({"x": 3} if kind == "double" else {})) for kind in kinds]
    with room.master() as master:
        said = ends(master.run(jobs))
    assert [said[n] for n in (0, 2, 4, 6)] == [6, 6, 6, 6]
    assert "job 1 failed: AcceleratorError: CUDA error: device-side assert" in str(said[1])
    assert "CUDA_LAUNCH_BLOCKING=1" in str(said[1])
    assert "job 3 failed: OutOfMemoryError" in str(said[3])
    assert "its own words; on the GPU: AcceleratorError" in str(said[5])
    assert room.guardians["0"].pid == guardian and room.guardians["0"].poll() is None
    assert listed(room) == []
