"""`python -m benchmarks.child NAME SIZES`: one measurement, in a process of its own.

Nothing that one system leaves behind (threads, memory, loaded libraries) can touch the next.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from . import bounds, floors, growth, ours, peers, shell, standing, waiting
from .lines import Figures, Sizes


@dataclass(frozen=True)
class Measurement:
    """Something to run once in each round."""

    run: Callable[[Sizes], Figures]
    title: str
    once: bool = False  # too long to repeat


MEASUREMENTS = {
    "floors": Measurement(floors.floors, "floors"),
    "postroom": Measurement(ours.postroom, "Postroom"),
    "pool": Measurement(peers.process_pool, "ProcessPoolExecutor"),
    "loky": Measurement(peers.loky, "loky"),
    "ray": Measurement(peers.ray, "Ray"),
    "dask": Measurement(peers.dask, "Dask"),
    "executorlib": Measurement(peers.executorlib, "executorlib"),
    "durable": Measurement(waiting.durable, "Postroom, durable"),
    "shell": Measurement(shell.shell, "postroom run"),
    "xargs": Measurement(shell.xargs, "xargs -P"),
    "parallel": Measurement(shell.gnu_parallel, "GNU parallel"),
    "spooler": Measurement(shell.task_spooler, "task-spooler"),
    "hyperqueue": Measurement(shell.hyperqueue, "HyperQueue"),
    "submit": Measurement(standing.submit, "postroom submit"),
    "submit spooler": Measurement(standing.submit_spooler, "task-spooler, one call"),
    "submit gflow": Measurement(standing.submit_gflow, "gflow, one call"),
    "drain": Measurement(standing.drain, "postroom up, 2,000 commands"),
    "drain spooler": Measurement(standing.drain_spooler, "task-spooler, 2,000 commands"),
    "bounds": Measurement(bounds.bounds, "Postroom, what must not grow", once=True),
    "growth": Measurement(growth.growth, "Postroom, long queue", once=True),
    "idle": Measurement(waiting.idle, "Postroom, idle", once=True),
    "warm": Measurement(waiting.warm, "warm against cold", once=True),
    "gpu": Measurement(waiting.gpu_get, "postroom gpu get", once=True),
}


def main(arguments: list[str]) -> int:
    """Print the figures as JSON on one line, or the reason why there are none."""
    measurement = MEASUREMENTS[arguments[0]]
    try:
        figures = measurement.run(Sizes(**json.loads(arguments[1])))
    except (ImportError, shell.Absent) as error:
        print(json.dumps({"reason": str(error)}))
        return 0
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"reason": f"{type(error).__name__}: {error}"}))
        return 0
    print(json.dumps({"figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
