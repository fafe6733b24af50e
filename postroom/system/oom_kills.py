"""Whether the Linux out-of-memory killer ended a process: its own counters say so.

When the RAM of the machine, or the limit of a memory group, is used up, Linux ends a process with
SIGKILL and counts it, before the process is gone: in the memory group (cgroup) of the process and,
in cgroup v2, in the groups above it; and in /proc/vmstat for the whole machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from .absence import absent_is_fine
from .cgroups import own

OOM_MESSAGE = (
    "the machine ran out of memory (RAM), or its memory group reached its limit, and the Linux "
    "out-of-memory killer ended it: run fewer jobs at once, or smaller ones"
)
# A process with much memory takes seconds to end after it was killed and counted.
WINDOW_S = 10.0
_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


def count_oom_kills() -> int:
    """How many processes were ended in our memory group; on the whole machine if no group tells."""
    group = own()
    above = [group]
    while above[-1].count("/") > 1:
        above.append(os.path.dirname(above[-1]))
    counters = [f"{own('memory')}/memory.oom_control", *(f"{g}/memory.events" for g in above)]
    for path in (*counters, "/proc/vmstat"):
        with absent_is_fine(), open(path, "rb") as file:
            found = _COUNT.search(file.read())
            if found is not None:
                return int(found[1])
    return 0


class OomWatch:
    """Notices kills of the last seconds; `look` has to be called every few seconds."""

    def __init__(self, now: float, count: Callable[[], int] = count_oom_kills) -> None:
        self._count = count
        self._looked_at = now
        self._before = self._last = count()

    def look(self, now: float) -> None:
        """Let kills be forgotten that are older than the window."""
        if now >= self._looked_at + WINDOW_S:
            self._looked_at = now
            self._before, self._last = self._last, self._count()

    def saw_kill(self) -> bool:
        """Whether a process was ended in the last seconds."""
        return self._count() > self._before
