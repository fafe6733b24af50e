"""Why a job waits and when it should start, with agents and a Master that are only made up."""

from __future__ import annotations

import time

import pytest

from postroom.base import Base
from postroom.control import Orders
from postroom.ids import JobId
from postroom.queue.estimate import Oracle
from postroom.queue.scene import Scene
from postroom.queue.view import View
from postroom.status import AgentStatus
from tests.queue.kit import end, queue


def agent(
    name: str, *, state: str = "idle", gpu: str = "u0", memory_mib: int = 24 << 10
) -> AgentStatus:
    return AgentStatus(name, state, gpu, "card", 1, 0.0, None, None, 0, memory_mib=memory_mib)


def staffed(view: View, *agents: AgentStatus, orders: Orders | None = None) -> Scene:
    """A look at the base as if a Master acted on it, with these agents."""
    scene = view.look()
    scene.agents = list(agents)
    scene.master_pid = 7
    scene.orders = orders or scene.orders
    return scene


def give(scene: Scene, job: JobId, agent_id: str, *, for_s: float) -> None:
    """As if an agent had had a job in hand for some time."""
    scene.running[job] = AgentStatus(
        agent_id, "running", "u0", "card", 1, 0.0, job.run, job.number, 0,
        first=job.number, job_since=scene.at - for_s, memory_mib=24 << 10,
    )  # fmt: skip
    scene.agents = [one for one in scene.agents if one.agent != agent_id]
    scene.agents.append(scene.running[job])


def why(scene: Scene, job: JobId, state: str = "queued") -> str:
    return Oracle(scene, "BASE").why(scene.shelves[job.run], job.number, state)


def test_who_or_what_is_missing_is_named_with_the_remedy(base: Base, view: View) -> None:
    (job,) = queue(base, "a")
    scene = view.look()
    assert why(scene, job) == "no Master acts; start one with: postroom master BASE --detach"
    assert "no agent lives; start one with" in why(staffed(view), job)
    assert "no agent lives" in why(staffed(view, agent("0", state="dead")), job)
    drained = staffed(view, agent("0"), orders=Orders(drained={"0"}))
    assert "all agents are drained" in why(drained, job)
    assert why(staffed(view, agent("0")), job) == "it is next"


def test_cards_and_memory_that_nobody_has_are_said(base: Base, view: View) -> None:
    (two,) = queue(base, "a", gpus=2)
    (large,) = queue(base, "b", memory_mib=40 << 10)
    scene = staffed(view, agent("0"))
    assert why(scene, two) == "no agent has the 2 cards that it needs"
    assert why(scene, large) == "no agent has a card with the 40G that it needs"
    scene = staffed(view, agent("0", gpu="u0,u1", memory_mib=48 << 10))
    assert why(scene, two) == "it is next"
    assert why(scene, large) == "1 job is before it"


def test_a_pause_says_how_to_end_it(base: Base, view: View) -> None:
    (job,) = queue(base, "a", project="vae")
    for orders, end_it in (
        (Orders(paused_all=True), "postroom resume"),
        (Orders(paused_projects={"vae"}), "postroom resume --project vae"),
        (Orders(paused_runs={job.run}), f"postroom resume --run {job.run[-6:]}"),
    ):
        assert why(staffed(view, orders=orders), job, "paused").endswith(end_it)


def test_the_start_is_reckoned_from_what_jobs_of_the_project_took(base: Base, view: View) -> None:
    jobs = queue(base, *map(str, range(6)))
    scene = staffed(view, agent("0"))
    give(scene, jobs[0], "0", for_s=0.5)
    oracle = Oracle(scene, "BASE")
    shelf = scene.shelves[jobs[0].run]
    assert oracle.when(shelf, 1, "queued")[1] is None, "nothing has ended yet, so nobody knows"
    end(base, jobs[5])  # it took 1.5 s
    scene = staffed(view, agent("0"), agent("1"))
    give(scene, jobs[0], "0", for_s=0.5)
    give(scene, jobs[1], "1", for_s=0.0)
    scene.ready[0].plain = [(2, 5)]
    oracle = Oracle(scene, "BASE")
    starts = [oracle.when(shelf, number, "queued") for number in (2, 3, 4)]
    assert [place for place, _ in starts] == [1, 2, 3]
    after = [at - scene.at for _, at in starts if at is not None]
    assert after == pytest.approx([1.0, 1.5, 2.5])


def test_what_other_projects_took_says_nothing(base: Base, view: View) -> None:
    (other,) = queue(base, "other", project="q")
    end(base, other)
    first, second = queue(base, "a", "b", project="p")
    scene = staffed(view, agent("0"))
    shelf = scene.shelves[first.run]
    assert Oracle(scene, "BASE").when(shelf, first.number, "queued") == (1, scene.at)
    assert Oracle(scene, "BASE").when(shelf, second.number, "queued") == (2, None)


def test_a_job_that_is_late_is_expected_any_moment(base: Base, view: View) -> None:
    jobs = queue(base, "a", "b", "c")
    end(base, jobs[2])
    scene = staffed(view, agent("0"))
    give(scene, jobs[0], "0", for_s=1000.0)
    scene.ready[0].plain = [(1, 2)]
    _, at = Oracle(scene, "BASE").when(scene.shelves[jobs[0].run], 1, "queued")
    assert at == pytest.approx(scene.at)
    assert scene.at <= time.time()
