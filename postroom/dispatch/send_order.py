"""The order of the queue: one rule, which the dispatcher follows and every listing shows.

1. A job that is held is not sent, and neither is any job of a paused run (`Orders.is_paused`).
2. The job with the highest priority is sent first.
3. Among projects with jobs of the same priority, the one that has used less GPU time lately goes
   first (`store.project_shares`). Those that have used alike take turns, from the oldest run to the
   newest, and the runs of programs with them.
4. Within a run, jobs are sent by place, then by number. A place is a job's number, until somebody
   moves the job.

Orders count before the options that a job was submitted with. The jobs of a run that is not part of
the project queue have no options: they can be held, and their run can have a priority. Pure: no
disk, no clock.
"""

from __future__ import annotations

from ..store.job_ids import JobId
from ..store.requests import Orders
from ..store.runs import RunInfo
from ..store.scheduling import SchedulingOptions

JobKey = tuple[int, float, int]  # minus the priority, place, number; the smallest goes first
RunAge = tuple[float, str]
NO_OPTIONS = SchedulingOptions()
NO_RUN: RunAge = (0.0, "")  # before the first turn


def is_held(orders: Orders, job: JobId, options: SchedulingOptions = NO_OPTIONS) -> bool:
    """Whether a job waits until somebody releases it."""
    return orders.held.get(job, options.held)


def position_of(orders: Orders, job: JobId) -> float:
    """The position of a job among those of its run and priority."""
    return orders.positions.get(job, float(job.number))


def run_priority(orders: Orders, run: str, options: SchedulingOptions = NO_OPTIONS) -> int:
    """The priority of a run's jobs, as far as no order names a single job."""
    return orders.run_priorities.get(run, options.priority)


def job_key(orders: Orders, job: JobId, options: SchedulingOptions) -> JobKey:
    """Sorts the jobs of the project queue within their run."""
    priority = orders.priorities.get(job, run_priority(orders, job.run, options))
    return -priority, position_of(orders, job), job.number


def run_age(info: RunInfo) -> RunAge:
    """Sorts runs from the oldest to the newest: two of the same second have names in any order."""
    return info.created_at, info.run


def turn_key(
    priority: int, age: RunAge, last: RunAge, level: int = 0
) -> tuple[int, int, bool, RunAge]:
    """Sorts the runs that could send next, after run `last` has sent; the smallest has its turn.

    `level` is how much its project has used lately.
    """
    return -priority, level, age <= last, age
