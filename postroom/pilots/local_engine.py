"""An engine of processes of this machine: for tests, and to try things out.

A pilot is a process that carries its name in its environment; the engine is `/proc`.
"""

from __future__ import annotations

import contextlib
import os
import signal

from ..store.pilot_records import PilotGroup
from .engine import Fate, Sighting, far_script

_NAME = b"POSTROOM_LOCAL_PILOT="


class LocalEngine:
    """Runs pilots as children of their stand-ins."""

    carries = False

    def command(self, group: PilotGroup, job_name: str) -> list[str]:
        """Run the far end in a shell of its own."""
        return [*self.named(job_name), "bash", "-c", far_script(group)]

    @staticmethod
    def named(job_name: str) -> list[str]:
        """The words before a command by which its processes are found again."""
        return ["env", f"{_NAME.decode()}{job_name}"]

    def look(self, job_names: set[str]) -> dict[str, Sighting]:
        """Find the processes that carry these names."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                for word in file.read().split(b"\0"):
                    name = word.removeprefix(_NAME).decode(errors="replace")
                    if word.startswith(_NAME) and name in job_names and name not in found:
                        found[name] = Sighting(pid, Fate.RUNNING, node="localhost")
        return found

    def cancel(self, job_name: str, engine_id: str) -> None:
        """Kill every process that carries the name."""
        while seen := self.look({job_name}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(seen[job_name].engine_id), signal.SIGKILL)
