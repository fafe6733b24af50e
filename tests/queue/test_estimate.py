"""Why a job waits and when it should start; agents and scheduler are made up."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from postroom.queue.base_state import BaseState
from postroom.queue.estimate import Estimator
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.store.pilot_records import PilotDemand, PilotGroup, change_groups, write_demand
from postroom.store.requests import Orders
from postroom.store.snapshot import AgentStatus
from tests.queue.kit import end, queue


def agent(
    name: str, *, state: str = "idle", gpu: str = "u0", memory_mib: int = 24 << 10
) -> AgentStatus:
    return AgentStatus(name, state, gpu, "card", 1, 0.0, None, None, 0, memory_mib=memory_mib)


def with_agents(view: QueueView, *agents: AgentStatus, orders: Orders | None = None) -> BaseState:
    """The state of the base as if a scheduler and these agents were running."""
    base_state = view.read_state()
    base_state.agents = list(agents)
    base_state.master_pid = 7
    base_state.orders = orders or base_state.orders
    return base_state


def set_running(base_state: BaseState, job: JobId, agent_id: str, *, for_s: float) -> None:
    """As if an agent had been running a job for some time."""
    base_state.running[job] = AgentStatus(
        agent_id, "running", "u0", "card", 1, 0.0, job.run, job.number, 0,
        first=job.number, job_since=base_state.at - for_s, memory_mib=24 << 10,
    )  # fmt: skip
    base_state.agents = [one for one in base_state.agents if one.agent != agent_id]
    base_state.agents.append(base_state.running[job])


def why(base_state: BaseState, job: JobId, state: str = "queued") -> str:
    return Estimator(base_state, "BASE").why(base_state.readers[job.run], job.number, state)


def test_a_base_with_pilots_says_why_none_serves(base: Base, view: QueueView) -> None:
    files = LocalFiles()
    (job,) = queue(base, "a")

    def why_here() -> str:
        base_state = with_agents(view)
        reader = base_state.readers[job.run]
        return Estimator(base_state, base.root).why(reader, job.number, "queued")

    change_groups(files, base, lambda groups: groups.groups.update(slurm=PilotGroup("slurm")))
    assert "no pilots of this base would have what is asked" in why_here()
    write_demand(files, base, PilotDemand(time.time(), {"slurm": 1}))
    assert "no pilot lives yet" in why_here()


def test_a_job_for_pilots_does_not_say_that_it_is_next_where_none_serves(
    base: Base, view: QueueView
) -> None:
    files = LocalFiles()
    (job,) = queue(base, "a", where="slurm")
    (stays,) = queue(base, "b", project="q", where="local")

    def why_of(job: JobId, *agents: AgentStatus) -> str:
        base_state = with_agents(view, *agents)
        reader = base_state.readers[job.run]
        return Estimator(base_state, base.root).why(reader, job.number, "queued")

    def have(**fields: object) -> None:
        group = PilotGroup("slurm", **fields)  # type: ignore[arg-type]
        change_groups(files, base, lambda groups: groups.groups.update(slurm=group))

    for agents in ((), (agent("0"),)):
        assert f"there are none: postroom pilots add {base.root} --slurm" in why_of(job, *agents)
    have(paused="Invalid account")
    assert "paused (slurm: Invalid account)" in why_of(job, agent("0"))
    have(drained=True)
    assert "postroom pilots resume" in why_of(job, agent("0"))
    pilot = replace(agent("slurm-1"), where="slurm")
    assert why_of(job, agent("0"), pilot) == "it is next"
    assert "where no agent is; start one with: postroom up" in why_of(stays, pilot)


def test_a_reason_says_what_is_missing_and_what_to_do(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    base_state = view.read_state()
    assert why(base_state, job) == "no scheduler is running; start it with: postroom up BASE"
    assert "no agent is running; start one with" in why(with_agents(view), job)
    assert "no agent is running" in why(with_agents(view, agent("0", state="dead")), job)
    drained = with_agents(view, agent("0"), orders=Orders(drained={"0"}))
    assert "all agents are drained" in why(drained, job)
    assert why(with_agents(view, agent("0")), job) == "it is next"


def test_a_reservation_that_a_job_would_reach_into_is_named(base: Base, view: QueueView) -> None:
    (endless,) = queue(base, "a")
    (short,) = queue(base, "b", lasts_s=50.0)
    base_state = with_agents(view, agent("0"))
    until = base_state.at + 100
    base_state.agents = [replace(base_state.agents[0], until=until), agent("1", state="resting")]
    assert why(base_state, endless).startswith("another user has reserved the GPU from ")
    assert why(base_state, short) == "1 job is ahead of it"
    base_state.agents.append(agent("2", state="running"))
    assert why(base_state, endless) == "it is next"


def test_gpus_and_memory_that_no_agent_has_are_named(base: Base, view: QueueView) -> None:
    (two,) = queue(base, "a", gpus=2)
    (large,) = queue(base, "b", memory_mib=40 << 10)
    base_state = with_agents(view, agent("0"))
    assert why(base_state, two) == (
        "no agent has the 2 GPUs that it needs; start one with: postroom agents add BASE '0-1;'"
    )
    assert why(base_state, large) == (
        "no agent has a GPU with the 40G that it needs; start an agent on a larger GPU, or change "
        "the job: postroom edit JOB --memory SIZE"
    )
    base_state = with_agents(view, agent("0", gpu="u0,u1", memory_mib=48 << 10))
    assert why(base_state, two) == "it is next"
    assert why(base_state, large) == "1 job is ahead of it"


def test_a_pause_says_how_to_end_it(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a", project="vae")
    for orders, end_it in (
        (Orders(paused_all=True), "postroom resume"),
        (Orders(paused_projects={"vae"}), "postroom resume --project vae"),
        (Orders(paused_runs={job.run}), f"postroom resume --run {job.run[-6:]}"),
    ):
        assert why(with_agents(view, orders=orders), job, "paused").endswith(end_it)


def test_the_start_is_estimated_from_the_last_jobs_of_the_project(
    base: Base, view: QueueView
) -> None:
    jobs = queue(base, *map(str, range(6)))
    base_state = with_agents(view, agent("0"))
    set_running(base_state, jobs[0], "0", for_s=0.5)
    estimator = Estimator(base_state, "BASE")
    reader = base_state.readers[jobs[0].run]
    assert estimator.when(reader, 1, "queued")[1] is None, "no job has ended yet, so it is unknown"
    end(base, jobs[5])  # it took 1.5 s
    base_state = with_agents(view, agent("0"), agent("1"))
    set_running(base_state, jobs[0], "0", for_s=0.5)
    set_running(base_state, jobs[1], "1", for_s=0.0)
    base_state.ready[0].ranges = [(2, 5)]
    estimator = Estimator(base_state, "BASE")
    starts = [estimator.when(reader, number, "queued") for number in (2, 3, 4)]
    assert [place for place, _ in starts] == [1, 2, 3]
    after = [at - base_state.at for _, at in starts if at is not None]
    assert after == pytest.approx([1.0, 1.5, 2.5])


def test_other_projects_do_not_count(base: Base, view: QueueView) -> None:
    (other,) = queue(base, "other", project="q")
    end(base, other)
    first, second = queue(base, "a", "b", project="p")
    base_state = with_agents(view, agent("0"))
    reader = base_state.readers[first.run]
    assert Estimator(base_state, "BASE").when(reader, first.number, "queued") == (1, base_state.at)
    assert Estimator(base_state, "BASE").when(reader, second.number, "queued") == (2, None)


def test_a_job_that_takes_longer_than_usual_may_end_at_any_moment(
    base: Base, view: QueueView
) -> None:
    jobs = queue(base, "a", "b", "c")
    end(base, jobs[2])
    base_state = with_agents(view, agent("0"))
    set_running(base_state, jobs[0], "0", for_s=1000.0)
    base_state.ready[0].ranges = [(1, 2)]
    _, at = Estimator(base_state, "BASE").when(base_state.readers[jobs[0].run], 1, "queued")
    assert at == pytest.approx(base_state.at)
    assert base_state.at <= time.time()
