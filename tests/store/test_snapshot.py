from __future__ import annotations

from pathlib import Path

from postroom.jobs import Job
from postroom.session.inbox import Step
from postroom.store.agents import PROTOCOL, AgentInfo
from postroom.store.base import Base
from postroom.store.snapshot import living_agent, living_agents, snapshot
from postroom.system.processes import myself
from tests.in_one_process import in_one_process

DOUBLE = "def double(x):\n    return x * 2\n"


def write_info(
    base: Base,
    agent_id: str,
    *,
    started: int | None = None,
    protocol: int = PROTOCOL,
    namespace: str | None = None,
) -> None:
    me = myself()
    info = AgentInfo(
        agent_id,
        "cpu",
        "CPU",
        "host",
        me.boot_id,
        me.pid,
        started or me.started_ticks,
        since=1.0,
        pid_namespace=namespace or me.pid_namespace,
        protocol=protocol,
    )
    Path(base.agent_info(agent_id)).write_bytes(info.encode())


def test_a_snapshot_tells_idle_running_and_dead_agents_apart(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=2) as room:
        write_info(room.base, "0")
        write_info(room.base, "1", started=1)  # that process is gone, even if its pid is used again
        write_info(room.base, "2")
        lock = room.files.try_lock(room.base.agent_lock("2"))  # it has no mailbox yet
        pool = room.master.submit_all([Job("kernels:double", x=n) for n in range(3)])
        room.master.step(0.0)
        while room.inboxes[0].step() is not Step.WORKED:
            pass
        states = {agent.agent: agent for agent in snapshot(room.base).agents}
        assert states["0"].state == "running" and states["0"].run == pool.run
        assert states["1"].state == "finishing"  # somebody has its lock, with a letter to finish
        assert states["2"].state == "starting"
        assert [info.agent for info in living_agents(room.files, room.base)] == ["0", "2"]
        assert lock is not None
        lock.release()
        assert snapshot(room.base).agents[2].state == "dead"  # whatever has its pid
        room.finish(pool)
        assert [agent.state for agent in snapshot(room.base).agents[:2]] == ["idle", "dead"]
        write_info(room.base, "0", protocol=PROTOCOL - 1)
        assert snapshot(room.base).agents[0].state == "outdated"


def test_the_locks_and_not_the_pids_say_whether_an_agent_lives(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        write_info(room.base, "0", started=1, namespace="pid:[1]")
        assert snapshot(room.base).agents[0].state == "idle"
        found = living_agent(room.files, room.base, "0")
        assert found is not None
        assert found.pid_words == f"pid {myself().pid} in another container, on host host"
        tree = room.files.try_lock(room.base.agent_tree("0"))
        assert tree is not None
        assert snapshot(room.base).agents[0].state == "idle"
        room.inboxes[0].lock.release()  # type: ignore[attr-defined]
        assert living_agent(room.files, room.base, "0") is None
        assert snapshot(room.base).agents[0].state == "orphaned"
        tree.release()
        assert snapshot(room.base).agents[0].state == "dead"


def test_a_snapshot_counts_runs_and_names_the_acting_master(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        assert snapshot(room.base).master_pid is None
        room.run([Job("kernels:double", x=n) for n in range(3)])
        seen = snapshot(room.base)
        assert [(run.asked, run.done) for run in seen.runs] == [(3, 3)]
        assert seen.master_pid == myself().pid
        assert snapshot(room.base, runs=False).runs == []


def test_a_snapshot_of_a_spoilt_base_is_still_a_snapshot(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        pool = room.run([Job("kernels:double", x=1)])
        Path(room.base.run_info(pool.run)).write_text("garbage")
        Path(room.base.agent_info("0")).write_text("garbage")
        Path(room.base.in_hand("0")).write_text("garbage")
        seen = snapshot(room.base)
        assert (seen.runs[0].asked, seen.agents[0].state) == (0, "dead")
