"""Says how many jobs wait for pilots, which is all that their keeper needs to know of the queue.

The acting Master writes it, and only where the base has groups of pilots: every few seconds while
jobs wait or agents work, so that a Master that died is not taken for one that has no jobs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

from ..errors import BadFileError, OtherVersionError
from ..store.base import Base
from ..store.files import Clock, Files
from ..store.pilot_records import PilotDemand, PilotGroups, read_groups, write_demand
from .run_queue import Capacity

# How often to look whether there are groups, and how often to say the same again.
LOOK_S = 0.5
REPEAT_S = 5.0


class PilotCaller:
    """Writes how many jobs wait for each group of pilots."""

    def __init__(self, files: Files, base: Base, clock: Clock) -> None:
        self._files = files
        self._base = base
        self._clock = clock
        self._look_at = self._repeat_at = 0.0
        self._said: dict[str, int] | None = None
        self.groups = PilotGroups()

    def step(self, now: float, fitting: Callable[[Capacity], int]) -> None:
        """Say how many jobs wait; `fitting` counts those that an agent with this could run."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        with contextlib.suppress(BadFileError, OtherVersionError, OSError):
            if self._files.exists(self._base.pilot_groups):
                self.groups = read_groups(self._files, self._base)
        if not self.groups.groups:
            return
        waiting = {
            name: fitting(
                Capacity(
                    group.gpus,
                    group.memory_mib,
                    group.engine,
                    group.gpu_name,
                    lives_s=group.time_s or math.inf,
                    seen=bool(group.gpu_name),
                )
            )
            for name, group in self.groups.groups.items()
        }
        if waiting != self._said or (any(waiting.values()) and now >= self._repeat_at):
            self._said, self._repeat_at = waiting, now + REPEAT_S
            with contextlib.suppress(OSError):
                write_demand(self._files, self._base, PilotDemand(self._clock.wall(), waiting))
