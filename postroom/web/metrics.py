"""Metrics for Prometheus: gauges made from one overview."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..queue.rows import STATES, AgentView, CardView, Overview


def metrics(overview: Overview, listeners: int) -> bytes:
    """The metrics page."""
    registry = CollectorRegistry()
    registry.register(_OverviewMetrics(overview, listeners))
    return generate_latest(registry)


class _OverviewMetrics(Collector):
    def __init__(self, overview: Overview, listeners: int) -> None:
        self._overview = overview
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        overview = self._overview
        yield _one(
            "postroom_master_up",
            "Whether the scheduler is running.",
            overview.master_pid is not None,
        )
        yield _one("postroom_paused", "Whether the whole queue is paused.", overview.paused)
        yield _one(
            "postroom_requests_pending",
            "Requests that the scheduler has yet to carry out.",
            overview.pending_requests,
        )
        yield _one("postroom_done_today", "Jobs that ended today.", overview.done_today)
        yield _one("postroom_failed_today", "Jobs that failed today.", overview.failed_today)
        yield _one(
            "postroom_jobs_per_hour", "Jobs that ended in the last hour.", overview.rate_per_hour
        )
        yield _one("postroom_page_listeners", "Open pages.", self._listeners)
        jobs = GaugeMetricFamily("postroom_jobs", "Jobs by state.", labels=["state"])
        for state in STATES:
            jobs.add_metric([state], overview.counts.get(state, 0))
        yield jobs
        projects = GaugeMetricFamily(
            "postroom_project_jobs", "Jobs by project and state.", labels=["project", "state"]
        )
        for project in overview.projects:
            for state, number in project.counts.items():
                projects.add_metric([project.name, state], number)
        yield projects
        yield from self._agents(overview.agents)
        yield from self._cards(overview.cards)

    def _agents(self, agents: list[AgentView]) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "postroom_agent_up", "Whether the agent is running.", labels=["agent", "gpu"]
        )
        busy = GaugeMetricFamily(
            "postroom_agent_busy", "Whether the agent runs a job.", labels=["agent"]
        )
        for agent in agents:
            up.add_metric([agent.agent, agent.gpu], float(agent.state != "dead"))
            busy.add_metric([agent.agent], float(agent.job is not None))
        yield up
        yield busy

    def _cards(self, cards: list[CardView]) -> Iterator[Metric]:
        labels = ["uuid", "index", "name"]
        for name, text, field, factor in (
            ("memory_total_bytes", "Memory of the GPU.", "memory_total_mib", 1 << 20),
            ("memory_used_bytes", "Memory in use by all processes.", "memory_used_mib", 1 << 20),
            ("utilization_ratio", "Load of the GPU.", "utilization", 0.01),
            ("temperature_celsius", "Temperature of the GPU.", "temperature", 1),
            ("power_watts", "Power draw of the GPU.", "power", 1),
        ):
            family = GaugeMetricFamily(f"postroom_card_{name}", text, labels=labels)
            for card in cards:
                value = getattr(card, field)
                if value is not None:
                    family.add_metric([card.uuid, str(card.index), card.name], value * factor)
            yield family
        sick = GaugeMetricFamily(
            "postroom_card_problem", "Whether the GPU has a problem.", labels=labels
        )
        for card in cards:
            sick.add_metric([card.uuid, str(card.index), card.name], float(bool(card.problem)))
        yield sick


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))
