"""The order of the queue, as a pure rule."""

from __future__ import annotations

from postroom.dispatch.send_order import (
    NO_RUN,
    RunAge,
    is_held,
    job_key,
    run_priority,
    turn_key,
)
from postroom.store.job_ids import JobId
from postroom.store.requests import Orders
from postroom.store.scheduling import SchedulingOptions

JOBS = [JobId("r", number) for number in range(4)]
USUAL = SchedulingOptions()


def ordered(orders: Orders, options: dict[int, SchedulingOptions] | None = None) -> list[int]:
    chosen = options or {}
    keys = [job_key(orders, job, chosen.get(job.number, USUAL)) for job in JOBS]
    return [key[2] for key in sorted(keys)]


def test_within_a_run_priority_comes_first_then_place_then_number() -> None:
    assert ordered(Orders()) == [0, 1, 2, 3]
    assert ordered(Orders(), {2: SchedulingOptions(priority=1)}) == [2, 0, 1, 3]
    assert ordered(Orders(positions={JOBS[3]: -1.0})) == [3, 0, 1, 2]
    assert ordered(Orders(positions={JOBS[3]: -1.0}, priorities={JOBS[1]: 5})) == [1, 3, 0, 2]


def test_orders_count_before_options_and_a_job_before_its_run() -> None:
    options = SchedulingOptions(priority=9, held=True)
    orders = Orders(run_priorities={"r": 2}, priorities={JOBS[0]: -1}, held={JOBS[0]: False})
    assert [-job_key(orders, job, options)[0] for job in JOBS[:2]] == [-1, 2]
    assert [is_held(orders, job, options) for job in JOBS[:2]] == [False, True]
    assert (run_priority(orders, "r"), run_priority(orders, "other")) == (2, 0)


def test_runs_of_equal_priority_take_turns_from_the_oldest_to_the_newest() -> None:
    ages: list[RunAge] = [(1.0, "b"), (1.0, "c"), (2.0, "a")]
    last, turns = NO_RUN, []
    for _ in range(5):
        last = min(ages, key=lambda age: turn_key(0, age, last))
        turns.append(last[1])
    assert turns == ["b", "c", "a", "b", "c"]
    assert min([(1, ages[0]), (0, ages[1])], key=lambda one: turn_key(*one, ages[0]))[1] == ages[0]
