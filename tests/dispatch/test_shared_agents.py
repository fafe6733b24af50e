"""How many agents share the GPUs of a queue."""

from __future__ import annotations

from typing import Any

from postroom.dispatch.shared_agents import IDLE_S, MOST_PER_CARD, SharedAgents, shared_gpus


def wanted(agents: SharedAgents, known: Any = (), *, now: float = 0.0, **facts: Any) -> list[str]:
    facts = {"ready": 0, "serving": {}, "waiting": (), "gpus": "0,1", **facts}
    gpus = facts.pop("gpus")
    known = known if isinstance(known, dict) else dict.fromkeys(known, "0,1")
    return list(agents.wanted(now, gpus, known, **facts))


def test_there_is_an_agent_for_each_job_and_no_more_than_are_of_use() -> None:
    agents = SharedAgents()
    assert wanted(agents) == []
    assert wanted(agents, ready=1) == ["s1"]
    assert wanted(agents, ["s1"], ready=1) == ["s1"], "it is on its way"
    assert wanted(agents, ["s1"], ready=1, serving={"s1": True}) == ["s1"], "it is idle"
    busy = {"s1": False, "s2": False}
    assert wanted(agents, ["s1", "s2"], ready=1, serving=busy) == ["s1", "s2", "s3"]
    assert len(wanted(agents, ready=100)) == 3, "one more than there are GPUs, then it looks again"
    many = [f"s{n}" for n in range(1, 2 * MOST_PER_CARD + 1)]
    assert wanted(agents, many, ready=9, serving=dict.fromkeys(many, False)) == many


def test_while_jobs_wait_in_the_ledger_no_more_are_sent_there() -> None:
    known = ["s1", "s2", "s3"]
    serving = dict.fromkeys(known, False)
    assert wanted(SharedAgents(), known, ready=5, serving=serving, waiting=known) == known
    more = wanted(SharedAgents(), known, ready=5, serving=serving, waiting=known[:2])
    assert more == [*known, "s4"], "a small job may fit beside two large ones that wait"


def test_an_idle_agent_goes_after_a_while_and_a_working_one_stays() -> None:
    agents = SharedAgents()
    known, serving = ["s1", "s2"], {"s1": True, "s2": False}
    assert wanted(agents, known, now=0.0, serving=serving) == known
    assert wanted(agents, known, now=IDLE_S - 1, serving=serving) == known
    assert wanted(agents, known, now=IDLE_S, serving=serving) == ["s2"]


def test_other_gpus_mean_other_agents_and_no_gpus_none() -> None:
    agents = SharedAgents()
    assert wanted(agents, ["s1"], gpus="0", ready=1, serving={"s1": True}) == ["s2"]
    assert wanted(agents, ["s2"], gpus="", ready=1) == []
    assert wanted(agents, ready=1, now=1.0) == ["s3"], "these may still leave"
    assert wanted(agents, ready=1, now=100.0, serving={"s1": False}) == ["s2"], "s1 finishes a job"
    assert shared_gpus({"0": "0", "0b": "0", "1-2": "1,2", "cpu": "cpu"}, ()) == "0,1,2"
    assert shared_gpus({"0": "0", "1": "1"}, {"1"}) == "0"
