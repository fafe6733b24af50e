"""The history as a Chrome trace: open it in chrome://tracing or Perfetto."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..queue.rows import Interval


def trace(intervals: Sequence[Interval]) -> dict[str, Any]:
    """A process for each GPU, a thread for each agent, a slice for each job."""
    now = time.time()
    cards = {gpu: place for place, gpu in enumerate(sorted({one.gpu for one in intervals}))}
    agents = sorted({(one.gpu, one.agent) for one in intervals})
    threads = {slot: place for place, slot in enumerate(agents)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": gpu or "no GPU"}}
        for gpu, pid in cards.items()
    ]
    events += [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": cards[gpu],
            "tid": tid,
            "args": {"name": f"agent {agent}"},
        }
        for (gpu, agent), tid in threads.items()
    ]
    for one in intervals:
        end = one.ended_at if one.ended_at is not None else now
        events.append(
            {
                "ph": "X",
                "name": one.name or one.short,
                "cat": one.project or "job",
                "pid": cards[one.gpu],
                "tid": threads[one.gpu, one.agent],
                "ts": round(one.started_at * 1e6),
                "dur": round(max(0.0, end - one.started_at) * 1e6),
                "args": {"job": one.job, "attempt": one.attempt, "outcome": one.outcome},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
