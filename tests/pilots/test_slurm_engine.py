"""Pilots on a real Slurm: two nodes of this machine, with invented cards."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.jobs import Job
from postroom.pilots.engine import EngineError, Fate, far_script
from postroom.pilots.slurm_engine import SlurmEngine, fate_of
from postroom.queue.submission import submit
from postroom.store.pilot_records import PilotGroup, PilotState
from postroom.store.runs import read_notes
from postroom.store.scheduling import SchedulingOptions
from postroom.testing import wait_until

from .conftest import Pilots
from .slurm_cluster import SlurmCluster, missing, slurm_cluster

SLURM = PilotGroup("slurm", most=4, gpus=1, preload="numpy", idle_s=60.0, time_s=600.0)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm, whose commands this process and all that it starts talk to."""
    if why := missing():
        if os.environ.get("CI"):
            pytest.fail(f"no Slurm: {why}")
        pytest.skip(f"no Slurm: {why}")
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made, pytest.MonkeyPatch.context() as m:
        m.setenv("SLURM_CONF", made.environment["SLURM_CONF"])
        m.setenv("PATH", made.environment["PATH"])
        m.setenv("POSTROOM_FAKE_GPUS", "8x24G")
        yield made


def on_nodes(folder: Path, *, most: int, cpus: int) -> PilotGroup:
    """Pilots that take so many of a node's eight cores; each node has a ledger of its own."""
    setup = (
        f"export POSTROOM_LEDGER={folder}/ledger-$SLURMD_NODENAME\n"
        "mkdir -p -m 700 $POSTROOM_LEDGER\n"
    )
    return replace(SLURM, most=most, options=(f"--cpus-per-task={cpus}",), setup=setup)


def test_the_script_keeps_stdout_for_the_wire_and_options_win() -> None:
    group = PilotGroup("slurm", gpus=4, time_s=3700, setup="module load x", python="/opt/py")
    words = SlurmEngine().command(group, "n")
    assert words[0] == "srun"
    assert {"--job-name=n", "--gres=gpu:4", "--time=62"} <= set(words)
    script = far_script(group).splitlines()
    assert script[0] == "exec 3>&1 1>&2"
    assert "module load x" in script
    assert script[-1].startswith("exec /opt/py -P -c ") and script[-1].endswith(">&3")
    own = PilotGroup("slurm", options=("--gpus=a100:2", "-p", "gpu"))
    words = SlurmEngine().command(own, "n")
    assert not [word for word in words if word.startswith("--gres")]
    assert words[-6:-3] == ["--gpus=a100:2", "-p", "gpu"]


@pytest.mark.parametrize(
    ("state", "fate"),
    [
        ("PENDING", Fate.PENDING),
        ("RUNNING", Fate.RUNNING),
        ("FAILED", Fate.ENDED),
        ("FAILED NonZeroExitCode", Fate.ENDED),
        ("FAILED RaisedSignal:9(Killed)", Fate.ENDED),
        ("OUT_OF_MEMORY OutOfMemory", Fate.ENDED),
        ("FAILED JobLaunchFailure", Fate.TAKEN),  # as after `kill` of its srun
        ("FAILED SystemFailure", Fate.TAKEN),
        ("COMPLETED None", Fate.TAKEN),
        ("CANCELLED", Fate.TAKEN),
        ("TIMEOUT", Fate.TAKEN),
        ("PREEMPTED", Fate.TAKEN),
        ("NODE_FAIL", Fate.TAKEN),
        ("A_STATE_OF_LATER", Fate.TAKEN),
    ],
)
def test_states_tell_the_engines_doing_from_the_pilots_own(state: str, fate: Fate) -> None:
    assert fate_of(*state.split()) is fate


def test_commands_that_are_missing_or_fail_or_hang_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="squeue is not on this host"):
        SlurmEngine().look({"x"})
    fake = tmp_path / "squeue"
    fake.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    fake.chmod(0o755)
    with pytest.raises(EngineError, match="Unable to contact"):
        SlurmEngine().look({"x"})
    fake.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr("postroom.pilots.slurm_engine.PATIENCE_S", 0.2)
    with pytest.raises(EngineError, match="timed out"):
        SlurmEngine().look({"x"})


def test_500_jobs_on_two_nodes_while_pilots_are_cancelled_preempted_and_their_stand_ins_killed(
    cluster: SlurmCluster, pilots: Pilots, tmp_path: Path
) -> None:
    rng = random.Random(5)
    pilots.add(on_nodes(tmp_path, most=4, cpus=4))
    jobs = [Job("kernels:nap", seconds=0.06, x=n) for n in range(500)]
    with pilots.master() as master:
        pool = master.submit_all(jobs)
        blows = 0
        nodes: set[str] = set()
        strike_at = time.monotonic() + 1.0
        ways = ["scancel", "preempt", "kill", "scancel"]
        while not pool.done:
            master.step(time.monotonic())
            time.sleep(0.002)
            serving = pilots.records(PilotState.SERVING)
            nodes |= {one.node for one in serving}
            if blows < len(ways) and time.monotonic() > strike_at and len(serving) >= 2:
                victim = rng.choice(serving)
                way = ways[blows]
                if way == "scancel":
                    cluster.ask("scancel", victim.engine_id)
                elif way == "preempt":
                    cluster.ask(
                        "sbatch", "-p", "urgent", "-c", "8", "-w", victim.node, "-o", "/dev/null",
                        "--wrap", "sleep 2",
                    )  # fmt: skip
                else:
                    for pid in pilots.stand_ins()[:1]:
                        os.kill(pid, signal.SIGKILL)
                blows += 1
                strike_at = time.monotonic() + 0.5
        assert list(pool.results()) == list(range(500))
    # Neither the engine's doing nor the stand-in that we killed has cost an attempt.
    assert read_notes(pilots.files, pilots.base, pool.run) == []
    assert blows == len(ways)
    assert nodes == {"n1", "n2"}
    pilots.change(drained=True)
    pilots.wait_until(lambda: not pilots.records() and not cluster.jobs())
    whys = [one.why for one in pilots.records(PilotState.ENDED)]
    told = [why for why in whys if "told it to stop" in why or why.startswith("CANCELLED")]
    assert told and "its stand-in died" in whys, whys


# Counts on from its checkpoint; told to stop, it saves where it is, and comes again.
COUNT = """
at=$(cat $POSTROOM_CHECKPOINT/at 2>/dev/null || echo 0)
echo from $at on $POSTROOM_PILOT with $CUDA_VISIBLE_DEVICES
trap 'echo $at > $POSTROOM_CHECKPOINT/at; exit 75' TERM
while [ $at -lt 1000 ] && [ ! -e {go} ]; do at=$((at+1)); sleep 0.1; done
echo at $at
"""


def test_a_pilot_reaches_its_time_limit_and_the_next_one_goes_on_from_the_checkpoint(
    cluster: SlurmCluster, pilots: Pilots, tmp_path: Path
) -> None:
    """Slurm's shortest time is a minute, so all that needs one cluster is seen in that minute."""
    go = tmp_path / "go"
    two = replace(on_nodes(tmp_path, most=1, cpus=4), gpus=2, time_s=60.0)
    pilots.add(two, "two")
    counts = CommandSpec(
        COUNT.format(go=go),
        cwd="/",
        scheduling=SchedulingOptions(gpus=2, where="slurm"),
        grace_s=3.0,
    )
    long = CommandSpec("true", cwd="/", scheduling=SchedulingOptions(gpus=2, lasts_s=3600.0))
    here = CommandSpec("true", cwd="/", scheduling=SchedulingOptions(where="local"))
    counting, too_long, stays = submit(pilots.files, pilots.base, [counts, long, here])
    folder = Path(pilots.base.job_folder(counting.run, counting.number))
    with contextlib.closing(pilots.master()) as master:

        def step_until(condition: Callable[[], object]) -> None:
            def came_true() -> bool:
                master.step(time.monotonic())
                return bool(condition())

            wait_until(came_true, folder=pilots.base.root, timeout_s=150)

        step_until(lambda: pilots.records(PilotState.SERVING))
        (first,) = pilots.records(PilotState.SERVING)
        # Meanwhile, on pilots with one card: what a wire of `srun` has to carry.
        pilots.add(on_nodes(tmp_path, most=1, cpus=4), "one")
        pool = master.submit_all(
            [Job("kernels:large", nbytes=200 << 20), Job("kernels:noisy", x=5)]
        )
        step_until(lambda: pool.done)
        large, quiet = pool.results()
        assert (large.nbytes, large[-1], quiet) == (200 << 20, 7, 5)
        pilots.change("one", drained=True)
        step_until(lambda: (folder / "checkpoint" / "at").exists())
        step_until(lambda: "from 0" not in (folder / "0.OUT").read_text())
        go.touch()
        step_until(lambda: (folder / "SUCCESS").exists())
        begun, _ = (folder / "0.OUT").read_text().splitlines()
    saved = int((folder / "checkpoint" / "at").read_text())
    (second,) = {one.pilot for one in pilots.records() if one.group == "two"}
    assert saved > 0 and second != first.pilot
    assert begun.startswith(f"from {saved} on {second} with ")
    assert len(begun.rpartition(" ")[2].split(",")) == 2  # cards
    # Neither went to a pilot: one needs an hour, the other must not leave this host.
    for job in (too_long, stays):
        assert not Path(pilots.base.job_folder(job.run, job.number)).exists()
    notes = read_notes(pilots.files, pilots.base, counting.run)
    assert [note.kind for note in notes] == ["stopped"]


def test_a_lost_node_costs_no_attempt(
    cluster: SlurmCluster, pilots: Pilots, tmp_path: Path
) -> None:
    pilots.add(on_nodes(tmp_path, most=2, cpus=8))
    with contextlib.closing(pilots.master()) as master:
        held = master.submit_all([Job("kernels:hold", folder=str(tmp_path), x=n) for n in range(2)])

        def begun() -> list[Path]:
            master.step(time.monotonic())
            return list(tmp_path.glob("begun-*"))

        pilots.wait_until(lambda: len(begun()) == 2)
        _, second = pilots.records(PilotState.SERVING)
        cluster.lose_node(second.node)
        cluster.ask("scontrol", "update", f"NodeName={second.node}", "State=DOWN", "Reason=test")
        pilots.wait_until(lambda: len(begun()) >= 3 or _ended(pilots, second.pilot))
        cluster.start_node(second.node)
        cluster.ask("scontrol", "update", f"NodeName={second.node}", "State=RESUME")
        (tmp_path / "go").touch()
        master.wait(held)
        assert list(held.results()) == [0, 1]
        assert read_notes(pilots.files, pilots.base, held.run) == []
    assert "NODE_FAIL" in next(
        one.why for one in pilots.records(PilotState.ENDED) if one.pilot == second.pilot
    )


def _ended(pilots: Pilots, pilot: str) -> bool:
    return pilot in {one.pilot for one in pilots.records(PilotState.ENDED)}
