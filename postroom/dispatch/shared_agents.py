"""How many agents share the GPUs of a queue: those that run jobs with `--memory`.

Such an agent holds no GPU. Each of its jobs books its part of one in the ledger, waits for it in
the ledger's line, and holds it while it runs. So the ledger decides what fits, and a large job is
not starved. There are as many agents as jobs that run at once, and a few whose jobs wait: these
were sent already, so a job of a higher priority that comes later cannot overtake them. An agent
that has had nothing to do for a while is not wanted any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count, islice

# After this long without a job, an agent that shares GPUs ends.
IDLE_S = 30.0
# Its name is not used again within this time.
LEAVING_S = 60.0
# The most of them for each GPU.
MOST_PER_CARD = 16


@dataclass
class SharedAgents:
    """Decides which agents should share GPUs. It knows neither disk nor clock."""

    _idle_since: dict[str, float] = field(default_factory=dict)
    _left: dict[str, float] = field(default_factory=dict)  # not wanted any more, and since when

    def wanted(
        self,
        now: float,
        gpus: str,
        known: Mapping[str, str],
        *,
        ready: int,
        serving: Mapping[str, bool],
        waiting: Collection[str],
    ) -> dict[str, str]:
        """The agents that are to share `gpus`, such as "0,1", from now on.

        `known` are those so far with their GPUs, `serving` those that have a mailbox, and whether
        they are idle; `waiting` those whose job waits in the ledger; `ready` is how many jobs wait.
        """
        idle = [agent for agent in known if serving.get(agent)]
        self._idle_since = {agent: self._idle_since.get(agent, now) for agent in idle}
        kept = {
            agent: has
            for agent, has in known.items()
            if has == gpus and gpus and (ready or now < self._idle_since.get(agent, now) + IDLE_S)
        }
        self._left |= dict.fromkeys(known.keys() - kept.keys(), now)
        self._left = {agent: at for agent, at in self._left.items() if now < at + LEAVING_S}
        if not (gpus and ready):
            return kept
        cards = len(gpus.split(","))
        coming = sum(serving.get(agent, True) for agent in kept)  # idle, or not there yet
        unsettled = coming + sum(agent in waiting for agent in kept)
        missing = min(ready - coming, cards + 1 - unsettled, cards * MOST_PER_CARD - len(kept))
        # A name of just now may still be a session that leaves.
        free = (name for n in count(1) if (name := f"s{n}") not in {*known, *serving, *self._left})
        return {**kept, **dict.fromkeys(islice(free, max(0, missing)), gpus)}


def shared_gpus(agents: Mapping[str, str], drained: Collection[str]) -> str:
    """The GPUs of the agents of a queue, each once, as in "0,1"; "": there are none."""
    words = [
        word
        for agent, gpus in agents.items()
        if agent not in drained
        for word in gpus.split(",")
        if word != "cpu"
    ]
    return ",".join(dict.fromkeys(words))
