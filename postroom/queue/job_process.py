"""Finds the process of a running command by its environment."""

from __future__ import annotations

import contextlib

from ..store.base import Base
from ..store.job_ids import JobId
from ..system.process_tree import mark_of, marked
from ..system.processes import stat


def find_process(base: Base, agent_id: str, job: JobId) -> int | None:
    """The pid of a job's topmost process; None for a task, which has no process of its own."""
    wanted = f"POSTROOM_JOB={job}".encode()
    mine: dict[int, int] = {}
    for pid in marked(mark_of(base.root, agent_id)):
        seen = stat(pid)
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if seen is not None and wanted in file.read().split(b"\0"):
                mine[pid] = seen.parent
    tops = [pid for pid, parent in mine.items() if parent not in mine]
    return min(tops, default=None)
