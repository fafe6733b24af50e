"""Pilots as actors of a real Ray: three nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.jobs import Job
from postroom.pilots.ray_engine import RayEngine
from postroom.store.pilot_records import PilotGroup, PilotState
from postroom.store.runs import read_notes

from .conftest import Pilots

# In a process of its own: Ray's threads and descriptors stay for as long as their process lives.
_CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1, num_gpus=1, include_dashboard=False) for _ in range(2)]
print(json.dumps(cluster.address), flush=True)
for line in sys.stdin:
    if line == "kill\\n":
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        nodes.append(cluster.add_node(num_cpus=1, num_gpus=1, include_dashboard=False))
        print(json.dumps("killed"), flush=True)
cluster.shutdown()
"""


class RayCluster:
    """Three nodes: one for drivers, two with a card each."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"},
            text=True,
        )
        self.address = str(self._hear())

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                return json.loads(line)
        raise AssertionError("Ray did not start")

    def kill_node(self) -> None:
        """End a node with all that runs there, and start another."""
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        assert self._hear() == "killed"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="Ray is not installed")
    made = RayCluster()
    yield made
    made.close()


def test_options_of_the_actor_are_passed_on() -> None:
    group = PilotGroup("ray", gpus=2, address="auto", options=("num_cpus=4", "label=big"))
    words = RayEngine().command(group, "n")
    address, options, script = words[-3:]
    assert address == "auto"
    assert json.loads(options) == {"num_gpus": 2, "num_cpus": 4, "label": "big"}
    assert "far_end" in script


def test_jobs_run_in_actors_and_a_node_that_dies_costs_no_attempt(
    cluster: RayCluster, pilots: Pilots, tmp_path: Path
) -> None:
    setup = f"export POSTROOM_LEDGER={tmp_path}/ledger-$RANDOM\nmkdir -m 700 $POSTROOM_LEDGER\n"
    pilots.add(
        PilotGroup("ray", most=2, gpus=1, preload="numpy", setup=setup, address=cluster.address)
    )
    with pilots.master() as master:
        pool = master.run([Job("kernels:double", x=n) for n in range(100)])
        assert list(pool.results()) == [2 * n for n in range(100)]
        held = master.submit_all([Job("kernels:hold", folder=str(tmp_path), x=n) for n in range(2)])

        def begun() -> int:
            master.step(time.monotonic())
            return len(list(tmp_path.glob("begun-*")))

        pilots.wait_until(lambda: begun() == 2)
        cluster.kill_node()
        pilots.wait_until(lambda: begun() == 3)
        (tmp_path / "go").touch()
        master.wait(held)
        assert list(held.results()) == [0, 1]
    assert read_notes(pilots.files, pilots.base, held.run) == []
    assert len(pilots.records(PilotState.ENDED)) == 1
