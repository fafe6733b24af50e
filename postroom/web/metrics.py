"""What Prometheus scrapes: gauges of one look, nothing counted here."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..queue.rows import STATES, AgentView, CardView, Overview


def metrics(overview: Overview, listeners: int) -> bytes:
    """The figures of one look."""
    registry = CollectorRegistry()
    registry.register(_Look(overview, listeners))
    return generate_latest(registry)


class _Look(Collector):
    def __init__(self, overview: Overview, listeners: int) -> None:
        self._overview = overview
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        look = self._overview
        yield _one("postroom_master_up", "Whether a Master acts.", look.master_pid is not None)
        yield _one("postroom_paused", "Whether the whole queue is paused.", look.paused)
        yield _one("postroom_requests_pending", "Requests to the Master.", look.pending_requests)
        yield _one("postroom_done_today", "Jobs that ended well today.", look.done_today)
        yield _one("postroom_failed_today", "Jobs that did not, today.", look.failed_today)
        yield _one("postroom_jobs_per_hour", "Jobs ended in an hour, lately.", look.rate_per_hour)
        yield _one("postroom_page_listeners", "Pages that are open.", self._listeners)
        jobs = GaugeMetricFamily("postroom_jobs", "Jobs by state.", labels=["state"])
        for state in STATES:
            jobs.add_metric([state], look.counts.get(state, 0))
        yield jobs
        projects = GaugeMetricFamily(
            "postroom_project_jobs", "Jobs by project and state.", labels=["project", "state"]
        )
        for project in look.projects:
            for state, number in project.counts.items():
                projects.add_metric([project.name, state], number)
        yield projects
        yield from self._agents(look.agents)
        yield from self._cards(look.cards)

    def _agents(self, agents: list[AgentView]) -> Iterator[Metric]:
        up = GaugeMetricFamily("postroom_agent_up", "Whether it lives.", labels=["agent", "gpu"])
        busy = GaugeMetricFamily("postroom_agent_busy", "Whether it works.", labels=["agent"])
        for agent in agents:
            up.add_metric([agent.agent, agent.gpu], float(agent.state != "dead"))
            busy.add_metric([agent.agent], float(agent.job is not None))
        yield up
        yield busy

    def _cards(self, cards: list[CardView]) -> Iterator[Metric]:
        labels = ["uuid", "index", "name"]
        for name, text, field, factor in (
            ("memory_total_bytes", "Memory of a card.", "memory_total_mib", 1 << 20),
            ("memory_used_bytes", "Memory in use, by anybody.", "memory_used_mib", 1 << 20),
            ("utilization_ratio", "How busy it is.", "utilization", 0.01),
            ("temperature_celsius", "How hot it is.", "temperature", 1),
            ("power_watts", "What it draws.", "power", 1),
        ):
            family = GaugeMetricFamily(f"postroom_card_{name}", text, labels=labels)
            for card in cards:
                value = getattr(card, field)
                if value is not None:
                    family.add_metric([card.uuid, str(card.index), card.name], value * factor)
            yield family
        sick = GaugeMetricFamily("postroom_card_problem", "Whether it is sick.", labels=labels)
        for card in cards:
            sick.add_metric([card.uuid, str(card.index), card.name], float(bool(card.problem)))
        yield sick


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))
