"""A listing shows the queue in the order in which the dispatcher sends it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from postroom.commands.spec import CommandSpec
from postroom.dispatch.dispatcher import Dispatcher
from postroom.parcel.sheets import JobEnd, JobOptions, JobSheet, pack_jobs
from postroom.queue.queue_view import QueueView
from postroom.queue.submission import submit
from postroom.queue.waiting_order import without
from postroom.session.inbox import Inbox, Step
from postroom.store.base import Base, create_base, new_run_id
from postroom.store.files import SystemClock
from postroom.store.job_ids import JobId
from postroom.store.journal import NullJournal
from postroom.store.mailbox import read_letter
from postroom.store.requests import Orders, write_orders
from postroom.store.runs import RunInfo, create_run
from postroom.store.scheduling import SchedulingOptions
from tests.queue.kit import FILES

JOBS = 4
PROJECT, PROGRAM = "project", "program"  # a part of the project queue; the run of a Python program

kinds = st.lists(st.sampled_from([PROJECT, PROGRAM]), min_size=1, max_size=4)
options = st.lists(
    st.builds(SchedulingOptions, priority=st.integers(-1, 1), held=st.booleans()),
    min_size=JOBS,
    max_size=JOBS,
)
runs = st.integers(0, 3)
jobs = st.tuples(runs, st.integers(0, JOBS - 1))
asked = st.fixed_dictionaries(
    {
        "priorities": st.dictionaries(jobs, st.integers(-1, 2), max_size=3),
        "held": st.dictionaries(jobs, st.booleans(), max_size=3),
        "places": st.dictionaries(jobs, st.floats(-2, 6), max_size=3),
        "run_priorities": st.dictionaries(runs, st.integers(-1, 1), max_size=2),
        "paused_runs": st.sets(runs, max_size=1),
    }
)
NOTHING: dict[str, dict[object, object]] = {
    name: {} for name in ("priorities", "held", "places", "run_priorities", "paused_runs")
}


def make_run(base: Base, kind: str, wanted: list[SchedulingOptions], project: str) -> str:
    """One run of four jobs."""
    if kind == PROJECT:
        asks = [CommandSpec("true", cwd="/", scheduling=one) for one in wanted]
        return submit(FILES, base, asks, project=project)[0].run
    info = RunInfo(
        run=new_run_id(),
        project="",
        import_folder="/",
        shared=None,
        embedded=False,
        durable=False,
        created_at=time.time(),
        host="h",
        user="u",
    )
    parcel = pack_jobs(0, "kernels:double", JobOptions(), None, [{"x": n} for n in range(JOBS)])
    create_run(FILES, base, info, lambda log: log.append(JOBS, parcel).stop)
    return info.run


def sent(base: Base) -> list[JobId]:
    """Every job that the dispatcher sends to one session, in order."""

    def run_job(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
        return JobEnd(seconds=1.0)

    lock = FILES.try_lock(base.agent_lock("0"))
    assert lock is not None
    journal = NullJournal()
    inbox = Inbox(FILES, base, "0", run_job, clock=SystemClock(), journal=journal, pid=1)
    dispatcher = Dispatcher(
        FILES, base, clock=SystemClock(), journal=journal, deliver=lambda run, sheet: None
    )
    found = []
    now = 100.0
    while True:
        now += 2.0
        dispatcher.step(now)
        letter = read_letter(FILES, base, "0")
        if letter is None:
            inbox.take_down()
            lock.release()
            return found
        found += [JobId(letter.run, number) for number in range(letter.first, letter.stop)]
        while inbox.step() is Step.WORKED:
            pass


USUAL = [[SchedulingOptions()] * JOBS] * 4
URGENT = [[SchedulingOptions(priority=1), *USUAL[0][1:]], *USUAL[1:]]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(kinds, st.lists(options, min_size=4, max_size=4), asked)
@example([PROJECT, PROJECT, PROGRAM], USUAL, NOTHING)
@example([PROJECT, PROJECT], URGENT, NOTHING)  # whose turn it is, after the urgent one
@example(
    [PROGRAM, PROJECT], USUAL, {**NOTHING, "priorities": {(0, 3): 2}, "places": {(0, 2): -1.0}}
)
@example([PROJECT, PROJECT], USUAL, {**NOTHING, "held": {(0, n): True for n in range(3)}})
def test_a_listing_shows_the_order_in_which_jobs_are_sent(
    kinds: list[str], wanted: list[list[SchedulingOptions]], asked: dict[str, dict]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = create_base(Path(folder) / "base")
        names = [make_run(base, kind, wanted[n], f"p{n}") for n, kind in enumerate(kinds)]

        def of(job: tuple[int, int]) -> JobId:
            return JobId(names[job[0] % len(names)], job[1])

        orders = Orders(
            paused_runs={names[run % len(names)] for run in asked["paused_runs"]},
            run_priorities={
                names[run % len(names)]: value for run, value in asked["run_priorities"].items()
            },
            priorities={of(job): value for job, value in asked["priorities"].items()},
            held={of(job): value for job, value in asked["held"].items()},
            positions={of(job): value for job, value in asked["places"].items()},
        )
        write_orders(FILES, base, orders)
        with QueueView(base) as view:
            listed = [JobId.parse(row.id) for row in view.jobs(state="queued", count=100).jobs]
        assert listed == sent(base)


def test_ranges_lose_the_jobs_that_are_taken_out() -> None:
    assert without([(0, 5), (7, 9)], [0, 3, 6, 8]) == [(1, 3), (4, 5), (7, 8)]
    assert without([(0, 2)], [0, 1]) == []
