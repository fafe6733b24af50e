"""The protocol as a game that Hypothesis plays: what breaks it, shrinks to the shortest story."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .simulation.checker import Plan, Submission
from .simulation.processes import Process
from .simulation.roles import Client, Session
from .simulation.world import ERRNOS, World, seeded

plans = st.tuples(
    st.sampled_from(["ok", "fails", "flaky", "poison"]),
    st.integers(0, 2),
    st.sampled_from([0, 0.1]),
)
some_process = st.integers(0, 9)


class PostRoom(RuleBasedStateMachine):
    """Two Masters and two sessions; every rule is one thing that may happen."""

    def __init__(self) -> None:
        super().__init__()
        self._seeded = seeded(random.Random(0))
        self._seeded.__enter__()
        self.world = World(random.Random(0))

    @initialize(
        jobs=st.lists(plans, min_size=1, max_size=6), more=st.integers(0, 2), keep=st.booleans()
    )
    def somebody_wants_jobs_done(
        self, jobs: list[tuple[str, int, float]], more: int, keep: bool
    ) -> None:
        world = self.world
        wanted = [
            Plan(
                token, kind, retries if kind in ("fails", "flaky") else 0, kind == "flaky", seconds
            )
            for token, (kind, retries, seconds) in enumerate(jobs, 1)
        ]
        submission = Submission(wanted[more:], wanted[:more], keep, parcels=2)
        world.checker.plan(submission)
        world.start(Client(world, "master 0", [submission], []))
        world.start(Client(world, "master 1", [], [submission] if keep else []))
        for number in range(2):
            world.start(Session(world, str(number)))

    def _pick(self, number: int) -> Process | None:
        self.world.start_due()
        living = self.world.living()
        return living[number % len(living)] if living else None

    @rule(number=some_process, operations=st.integers(1, 40))
    def somebody_works(self, number: int, operations: int) -> None:
        process = self._pick(number)
        if process is not None:
            self.world.turn(process, operations)

    @rule(number=some_process, operations=st.integers(1, 8), fault=st.sampled_from(ERRNOS))
    def an_operation_fails(self, number: int, operations: int, fault: int) -> None:
        process = self._pick(number)
        if process is not None:
            self.world.turn(process, operations, fault)

    @rule(number=some_process)
    def somebody_is_killed(self, number: int) -> None:
        process = self._pick(number)
        if process is not None:
            self.world.scheduler.kill(process)

    @rule(number=some_process)
    def somebody_is_stopped_or_continued(self, number: int) -> None:
        processes = self.world.scheduler.processes
        if processes:
            process = processes[number % len(processes)]
            process.stopped = not process.stopped

    @precondition(lambda self: self.world.sessions())
    @rule(number=some_process)
    def a_session_is_falsely_suspected(self, number: int) -> None:
        sessions = self.world.sessions()
        self.world.suspect(sessions[number % len(sessions)])

    @rule()
    def the_disk_fills_or_is_freed(self) -> None:
        self.world.disk.full = not self.world.disk.full

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.scheduler.now += seconds

    @rule(seconds=st.sampled_from([-1e6, 3600.0]))
    def the_wall_clock_jumps(self, seconds: float) -> None:
        self.world.clock.offset += seconds

    @rule()
    def the_power_fails(self) -> None:
        self.world.lose_power()

    def teardown(self) -> None:
        try:
            self.world.finish()
        finally:
            self.world.scheduler.shut_down()
            self._seeded.__exit__(None, None, None)


PostRoom.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestPostRoom = PostRoom.TestCase
