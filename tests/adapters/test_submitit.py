"""submitit's jobs on GPUs of their own; `foreign.py` runs submitit's own tests over it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import submitit

from postroom.errors import GpuError
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.testing import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def meet(folder: str) -> str:
    """Return our GPU, when the other job has one, too."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    Path(folder, gpu).touch()
    give_up_at = time.monotonic() + 60
    while len(os.listdir(folder)) < 2 and time.monotonic() < give_up_at:
        time.sleep(0.01)
    return gpu


def test_each_job_has_a_gpu_of_its_own_and_waits_for_it(tmp_path: Path) -> None:
    met = tmp_path / "met"
    met.mkdir()
    executor = submitit.AutoExecutor(tmp_path / "jobs", cluster="postroom")
    executor.update_parameters(gpus_per_node=1, timeout_min=2, postroom_visible_gpus=[1, 3])
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-1", "FAKE-3"))):
        jobs = executor.map_array(meet, [str(met)] * 2)
        wait_until(lambda: len(open_ledger().queue()) == 2, what="both jobs waiting")
        assert [job.state for job in jobs] == ["PENDING", "PENDING"]
        assert not any(job.done() for job in jobs)
        third = executor.submit(meet, str(met))
        wait_until(lambda: len(open_ledger().queue()) == 3, what="a third job waiting")
        third.cancel()
        wait_until(third.done, what="the end of the third job")
        assert third.state == "INTERRUPTED"
    assert sorted(job.result() for job in jobs) == ["1", "3"]
    wait_until(lambda: not open_ledger().holders(), what="the end of the leases")
    for job in jobs:
        job._process.wait()  # type: ignore[attr-defined]


def test_the_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "with_submitit.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"lr (\S+) on GPU \d", done.stdout) == ["0.1", "0.2"], done.stderr
    wait_until(lambda: not open_ledger().holders(), what="the end of the leases")


def test_a_wrong_amount_of_memory_is_an_error_where_it_is_written(tmp_path: Path) -> None:
    executor = submitit.AutoExecutor(tmp_path, cluster="postroom")
    with pytest.raises(GpuError, match="8G"):
        executor.update_parameters(postroom_gpu_memory="8")


def test_it_is_used_only_by_those_who_name_it(tmp_path: Path) -> None:
    assert submitit.AutoExecutor.which() != "postroom"
