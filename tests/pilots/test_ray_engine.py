"""Pilots as actors of a real Ray: three nodes on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.jobs import Job
from postroom.master import Master
from postroom.pilots.ray_engine import RayEngine
from postroom.queue.submission import submit
from postroom.store.pilot_records import PilotGroup, PilotState
from postroom.store.runs import read_notes
from postroom.store.scheduling import SchedulingOptions

from .conftest import Pilots

GROUP = PilotGroup("ray", most=2, gpus=1, preload="numpy")

# In a process of its own: Ray's threads and descriptors stay for as long as their process lives. On
# 127.0.0.2, since Ray takes 127.0.0.1 for another name of this host's address, which may be none.
_CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster
common = {"include_dashboard": False, "node_ip_address": "127.0.0.2"}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
nodes = [cluster.add_node(num_cpus=1, num_gpus=1, **common) for _ in range(2)]
print(json.dumps(cluster.address), flush=True)
for line in sys.stdin:
    if line == "kill\\n":
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        print(json.dumps("killed"), flush=True)
cluster.shutdown()
"""


SETTINGS = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A node that is killed refuses three questions within two seconds. One that is only slow, on a
    # busy machine, has ten seconds for each.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}


class RayCluster:
    """Three nodes: one for drivers, two with a card each."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ray-")  # short: it has sockets
        self._log = open(f"{self._folder}/log", "w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # All that Ray writes: what it has in /tmp/ray may be another user's, or not be there.
            env={**os.environ, **SETTINGS, "RAY_TMPDIR": self._folder},
            text=True,
        )
        self.address = self._hear()  # "": it did not start

    def _hear(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                return str(json.loads(line))
        return ""

    def last_words(self) -> str:
        """What it has said, if it did not start."""
        self._log.seek(0)
        return self._log.read()[-3000:]

    def kill_node(self) -> None:
        """End a node with all that runs there."""
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
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    if importlib.util.find_spec("ray") is None:
        if os.environ.get("CI"):
            pytest.fail("Ray is not installed")
        pytest.skip("Ray is not installed")
    for left in (2, 1, 0):  # Ray gives its own processes half a minute, on a busy machine too
        made = RayCluster()
        if made.address or not left:
            break
        made.close()
    words = "" if made.address else made.last_words()
    try:
        assert made.address, words
        yield made
    finally:
        made.close()


def test_options_of_the_actor_are_passed_on() -> None:
    group = PilotGroup("ray", gpus=2, address="auto", options=("num_cpus=4", "label=big"))
    words = RayEngine().command(group, "n")
    address, options, script = words[-3:]
    assert address == "auto"
    assert json.loads(options) == {"num_gpus": 2, "num_cpus": 4, "label": "big"}
    assert "far_end" in script


@pytest.mark.parametrize(
    ("engine", "options", "shares"),
    [
        ("ray", ("num_gpus=0.5",), True),
        ("ray", ("num_cpus=0.5", "num_gpus=1"), False),
        ("ray", ("num_gpus=half",), False),
        ("ray", ("num_cpus=0.5",), False),
        ("slurm", ("num_gpus=0.5",), False),
    ],
)
def test_a_part_of_a_card_is_shared(engine: str, options: tuple[str, ...], shares: bool) -> None:
    assert PilotGroup(engine, options=options).shares_cards is shares


def actor_above(pid: int) -> int:
    """The worker of Ray whose child, or child's child, a process is."""
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def begun(master: Master, folder: Path) -> int:
    """How many jobs have begun, or begun again."""
    master.step(time.monotonic())
    return len(list(folder.glob("begun-*")))


# Each of these starts a Python or two that imports Ray, on a machine that is busy with other tests.
PATIENCE_S = 180.0


def ledger_of(folder: Path, name: str) -> str:
    """What a pilot runs first: nodes of one machine have cards of their own."""
    return f"export POSTROOM_LEDGER={folder}/ledger-{name}\nmkdir -p -m 700 $POSTROOM_LEDGER\n"


def test_jobs_run_in_actors_halves_of_a_card_are_shared_and_what_dies_costs_no_attempt(
    cluster: RayCluster, pilots: Pilots, tmp_path: Path
) -> None:
    """One cluster for all: it takes ten seconds to start."""
    whole = replace(GROUP, setup=ledger_of(tmp_path, "$RANDOM"), address=cluster.address)
    pilots.add(whole)
    with contextlib.closing(pilots.master()) as master:
        pool = master.submit_all([Job("kernels:double", x=n) for n in range(100)])
        master.wait(pool)
        assert list(pool.results()) == [2 * n for n in range(100)]
        held = master.submit_all([Job("kernels:hold", folder=str(tmp_path), x=n) for n in range(2)])
        pilots.wait_until(lambda: begun(master, tmp_path) == 2, timeout_s=PATIENCE_S)
        # An actor is not restarted in silence: another pilot comes.
        worker = next(int(path.name.rpartition("-")[2]) for path in tmp_path.glob("begun-*"))
        os.kill(actor_above(worker), signal.SIGKILL)
        pilots.wait_until(lambda: begun(master, tmp_path) == 3, timeout_s=PATIENCE_S)
        # A node dies with its pilot; the job goes to the other one.
        ended = len(pilots.records(PilotState.ENDED))
        pilots.change(most=1)
        cluster.kill_node()
        pilots.wait_until(
            lambda: len(pilots.records(PilotState.ENDED)) > ended, timeout_s=PATIENCE_S
        )
        (tmp_path / "go").touch()
        master.wait(held)
        assert list(held.results()) == [0, 1]
        assert read_notes(pilots.files, pilots.base, held.run) == []
        pilots.change(drained=True)
        pilots.wait_until(lambda: not pilots.records())
        # Pilots with half a card each: commands that say how much memory they need share it.
        half = replace(whole, setup=ledger_of(tmp_path, "shared"))
        pilots.add(replace(half, options=("num_gpus=0.5", "num_cpus=0")), "half")
        line = "touch {0}/begun-{1}-$$; until [ -e {0}/go ]; do sleep 0.05; done"
        shared = tmp_path / "shared"
        shared.mkdir()
        on_ray = SchedulingOptions(where="ray")
        lines = [
            CommandSpec(line.format(shared, n), memory_mib=8192, cwd="/", scheduling=on_ray)
            for n in range(2)
        ]
        elsewhere = CommandSpec("true", cwd="/", scheduling=SchedulingOptions(where="slurm"))
        *both, other = submit(pilots.files, pilots.base, [*lines, elsewhere])
        pilots.wait_until(lambda: begun(master, shared) == 2, timeout_s=PATIENCE_S)
        (shared / "go").touch()

        def all_done() -> bool:
            master.step(time.monotonic())
            folders = (Path(pilots.base.job_folder(job.run, job.number)) for job in both)
            return all((folder / "SUCCESS").exists() for folder in folders)

        pilots.wait_until(all_done)
    assert not Path(pilots.base.job_folder(other.run, other.number)).exists()
    assert read_notes(pilots.files, pilots.base, other.run) == []
