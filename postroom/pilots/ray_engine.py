"""Ray as an engine: a pilot is an actor, and a process of this host carries its wire.

    stand-in ══ pipes ══ bridge (a Ray driver, on this host) ── calls ── actor ══ pipes ══ far end

The bridge owns the actor: when the bridge ends, however it ends, Ray ends the actor, and the far
end sees the end of its wire. So the bridges of this host are all that there is to look at. No
dashboard and no client port is opened here; Ray's own library listens on a port for its nodes, as
in every driver. This host must be a node of the Ray cluster.
"""

from __future__ import annotations

import json

from ..store.pilot_records import PilotGroup
from ..system.own_python import own_python
from .engine import far_script
from .local_engine import LocalEngine


class RayEngine(LocalEngine):
    """The Ray cluster at an address."""

    carries = True

    def command(self, group: PilotGroup, job_name: str) -> list[str]:
        """Run a bridge, which has an actor started; `name=value` options are the actor's."""
        options: dict[str, object] = {"num_gpus": group.gpus, "num_cpus": 1}
        for word in group.options:
            name, _, value = word.partition("=")
            try:
                options[name] = json.loads(value)
            except ValueError:
                options[name] = value
        words = [group.address, json.dumps(options), far_script(group)]
        return [*self.named(job_name), *own_python("postroom.pilots.ray_bridge", *words)]
