"""Makes the rows for the GPUs of this machine and the agents of a base."""

from __future__ import annotations

from ..errors import PostroomError
from ..gpus.cards.inventory import CardWatch
from ..gpus.ledger.card_overview import CardStatus, overview
from ..gpus.ledger.protocol import open_ledger
from ..store.snapshot import AgentStatus
from .base_state import BaseState
from .rows import AgentView, CardHolder, CardView


def card_views(base_state: BaseState, watch: CardWatch) -> list[CardView]:
    """The GPUs of this machine, with the agents of this base and other users on them."""
    try:
        views = overview(open_ledger(), watch.cards())
    except (PostroomError, OSError) as error:
        return [CardView("", 0, "?", 0, None, None, None, None, str(error), [], "")]
    agents = {agent.agent: agent for agent in base_state.agents if agent.state != "dead"}
    ours = {(agent.pid, agent.pid_namespace): agent.agent for agent in agents.values()}
    found = []
    for view in views:
        card = view.card
        others = [
            lease
            for lease in view.leases
            if (lease.process.pid, lease.process.pid_namespace) not in ours
        ]
        holder = "; ".join(lease.describe() for lease in others)
        if not holder and view.foreign:
            used_by = view.foreign[0]
            holder = f"user {used_by.user}, pid {used_by.pid}, without a lease"
        found.append(
            CardView(
                uuid=card.uuid,
                index=card.index,
                name=card.name,
                memory_total_mib=card.memory_mib,
                memory_used_mib=card.used_mib,
                utilization=card.utilisation,
                temperature=card.temperature,
                power=card.power,
                problem=card.problem or view.reason,
                # Those that share it hold nothing: their jobs are among the holders.
                agents=[
                    agent_id
                    for agent_id, agent in agents.items()
                    if card.uuid in agent.gpu.split(",") and not agent.shares
                ],
                holder=holder,
                holders=_holders(view, ours),
            )
        )
    return found


def _holders(view: CardStatus, ours: dict[tuple[int, str], str]) -> list[CardHolder]:
    """Everybody who has a GPU: those with a lease, then those without."""
    leased = [
        CardHolder(
            lease.user,
            lease.name,
            lease.process.pid,
            ours.get((lease.process.pid, lease.process.pid_namespace), ""),
            lease.granted_at or lease.asked_at,
            lease.memory_mib,
        )
        for lease in view.leases
    ]
    others = [CardHolder(one.user, "", one.pid, "", None, None) for one in view.foreign]
    return leased + others


def agent_views(base_state: BaseState) -> list[AgentView]:
    """The agents of a base and their jobs."""
    return [_agent_view(base_state, agent) for agent in base_state.agents]


def _agent_view(base_state: BaseState, agent: AgentStatus) -> AgentView:
    jobs = [job.short for job, at in base_state.running.items() if at.agent == agent.agent]
    return AgentView(
        agent=agent.agent,
        state=agent.state,
        gpu=agent.gpu,
        gpu_name=agent.gpu_name,
        pid=agent.pid,
        since=agent.since,
        job=jobs[0] if jobs else None,
        drained=agent.agent in base_state.orders.drained,
        done=agent.done,
        note=agent.note,
    )
