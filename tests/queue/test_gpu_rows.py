"""The rows of GPUs and agents."""

from __future__ import annotations

import pytest

from postroom.errors import GpuError
from postroom.gpus.cards.inventory import CardWatch
from postroom.queue.gpu_rows import agent_views, card_views
from postroom.queue.queue_view import QueueView
from postroom.store.job_ids import JobId
from postroom.store.requests import Orders
from postroom.store.snapshot import AgentStatus


def agent(name: str, *, state: str, gpu: str) -> AgentStatus:
    return AgentStatus(name, state, gpu, "card", 4_000_000, 0.0, None, None, 5)


def test_a_gpu_shows_the_living_agents_on_it(view: QueueView) -> None:
    base_state = view.read_state()
    base_state.agents = [
        agent("0", state="idle", gpu="FAKE-0"),
        agent("1", state="running", gpu="FAKE-0,FAKE-1"),
        agent("2", state="dead", gpu="FAKE-1"),
    ]
    watch = CardWatch()
    try:
        found = {card.uuid: card.agents for card in card_views(base_state, watch)}
    finally:
        watch.close()
    assert (found["FAKE-0"], found["FAKE-1"]) == (["0", "1"], ["1"])


def test_gpus_that_cannot_be_read_are_one_row_with_the_reason(view: QueueView) -> None:
    class Broken(CardWatch):
        def cards(self) -> list:  # type: ignore[type-arg]
            raise GpuError("no driver")

    (card,) = card_views(view.read_state(), Broken())
    assert (card.problem, card.agents) == ("no driver", [])


@pytest.mark.parametrize("drained", [True, False])
def test_an_agent_shows_its_job_and_whether_it_is_drained(view: QueueView, drained: bool) -> None:
    base_state = view.read_state()
    base_state.agents = [agent("0", state="running", gpu="cpu")]
    base_state.running[JobId("a-run", 3)] = base_state.agents[0]
    base_state.orders = Orders(drained={"0"} if drained else set())
    (row,) = agent_views(base_state)
    assert (row.job, row.drained, row.done) == ("a-run/3", drained, 5)
