"""Stories of the simulated world all end well; and the simulator itself is as bad as it claims."""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest import mock

import pytest

from postroom.parcel.sheets import Failure, JobEnd, Outcome
from postroom.pilots.stand_in import StandIn
from postroom.store.base import FOLDERS

from .simulation.checker import Checker, Plan, Submission, Violation
from .simulation.disk import Disk, Folder, SimulatedFiles
from .simulation.processes import Process, Scheduler
from .simulation.roles import ROOT, Client, Session
from .simulation.world import World, seeded, tell

SEEDS = 240  # more: python -m tests.simulation 0-9999
CHUNK = 10
WITH_PILOTS = 21  # a story in which pilots are taken away from their jobs


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_story_ends_with_one_true_result_for_each_accepted_job(first: int) -> None:
    for seed in range(first, first + CHUNK):
        tell(seed)


@pytest.mark.parametrize("seed", [4242, WITH_PILOTS])
def test_the_same_seed_tells_the_same_story(seed: int) -> None:
    stories = [tell(seed) for _ in range(2)]
    summaries = [(s.scheduler.operations, s.scheduler.kills, s.scheduler.now) for s in stories]
    assert summaries[0] == summaries[1]


def test_pilots_of_a_story_run_jobs_and_what_their_engine_does_costs_no_attempt() -> None:
    """A pilot that is blamed for what its engine did is found."""
    assert tell(WITH_PILOTS).checker.far_results
    blame = mock.patch.object(StandIn, "_finish", _blame_always(StandIn._finish))
    with blame, pytest.raises(Violation, match="deaths on nodes have cost"):
        tell(WITH_PILOTS)


def _blame_always(finish: Callable[..., None]) -> Callable[..., None]:
    def finish_and_blame(self: StandIn, why: str, **facts: object) -> None:
        finish(self, why, **{**facts, "blame": True})

    return finish_and_blame


def test_a_failing_story_says_how_to_hear_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "finish", lambda self: (_ for _ in ()).throw(Violation("planted")))
    with pytest.raises(Violation) as caught:
        tell(7)
    assert caught.value.__notes__ == ["replay: python -m tests.simulation 7"]


class TestTheKernel:
    def test_a_process_can_be_ended_between_any_two_operations(self) -> None:
        for survived in range(5):
            scheduler = Scheduler()
            done: list[int] = []
            process = scheduler.spawn("p", lambda p, done=done: _count_to(p, 5, done))
            scheduler.turn(process, survived)
            scheduler.kill(process)
            assert done == list(range(survived))
            assert not scheduler.processes

    def test_what_a_killed_process_does_on_its_way_out_has_no_effect(self) -> None:
        world = World(random.Random(0))
        files: list[SimulatedFiles] = []

        def body(process: Process) -> None:
            files.append(SimulatedFiles(world.disk, process))
            try:
                process.sleep(1)
            finally:
                files[0].make_folder(f"{ROOT}/tmp/left-behind")

        process = world.scheduler.spawn("p", body)
        world.scheduler.turn(process, 1)
        world.scheduler.kill(process)
        assert "left-behind" not in world.disk.folder(f"{ROOT}/tmp").entries

    def test_a_lock_is_free_when_the_last_of_its_owners_is_dead(self) -> None:
        world = World(random.Random(0))
        worker, guardian, master = (_sleeper(world.scheduler) for _ in range(3))
        path = f"{ROOT}/agent_pool/0.lock"
        lock = _files(world.disk, guardian).try_lock(path)
        assert lock is not None
        lock.hand_down(worker)
        world.scheduler.kill(guardian)
        assert _files(world.disk, master).try_lock(path) is None
        world.scheduler.kill(worker)
        assert _files(world.disk, master).try_lock(path) is not None
        world.scheduler.shut_down()


def _count_to(process: Process, stop: int, done: list[int]) -> None:
    for number in range(stop):
        process.point()
        done.append(number)


def _sleeper(scheduler: Scheduler) -> Process:
    process = scheduler.spawn("sleeper", lambda p: p.sleep(1e9))
    scheduler.turn(process, 1)
    return process


def _files(disk: Disk, process: Process) -> SimulatedFiles:
    process.budget = 1 << 60  # this test does not give the process its turns
    return SimulatedFiles(disk, process)


class TestTheDisk:
    def _world(self, seed: int) -> tuple[World, SimulatedFiles]:
        world = World(random.Random(seed))
        return world, _files(world.disk, _sleeper(world.scheduler))

    def _after_power_loss(self, *, sync_file: bool, sync_folder: bool) -> set[bytes | None]:
        found: set[bytes | None] = set()
        for seed in range(200):
            world, files = self._world(seed)
            files.write_new(f"{ROOT}/tmp/t", [b"whole"], sync=sync_file)
            assert files.publish(f"{ROOT}/tmp/t", f"{ROOT}/data/d")
            if sync_folder:
                files.sync_folder(f"{ROOT}/data")
            world.disk.lose_power()
            node = world.disk.folder(f"{ROOT}/data").entries.get("d")
            found.add(None if node is None or isinstance(node, Folder) else node.data)
            world.scheduler.shut_down()
        return found

    def test_what_was_synced_survives_a_power_loss(self) -> None:
        assert self._after_power_loss(sync_file=True, sync_folder=True) == {b"whole"}

    def test_an_unsynced_name_may_be_lost_but_never_its_bytes_alone(self) -> None:
        assert self._after_power_loss(sync_file=True, sync_folder=False) == {None, b"whole"}

    def test_unsynced_bytes_may_be_lost_torn_or_zero(self) -> None:
        found = self._after_power_loss(sync_file=False, sync_folder=True)
        assert {b"", b"whole", b"wh", b"wh\0\0\0", b"\0\0ole"} <= found

    def test_a_writer_that_fails_leaves_half_a_letter(self) -> None:
        found = set()
        for seed in range(100):
            world, files = self._world(seed)
            box = files.create_box(f"{ROOT}/agent_pool/0.POOL")
            world.disk.full = True
            with pytest.raises(OSError, match="No space left"):
                box.write(b"letter")
            world.disk.full = False
            found.add(box.read())
            world.scheduler.shut_down()
        assert found == {b"letter"[:n] for n in range(6)}

    def test_a_publish_may_say_it_failed_when_it_worked(self) -> None:
        world, files = self._world(0)
        files.write_new(f"{ROOT}/tmp/t", [b"whole"])
        files.process.fault, files.process.budget = 5, 2
        with pytest.raises(OSError, match="Input/output"):
            files.publish(f"{ROOT}/tmp/t", f"{ROOT}/data/d")
        assert "d" in world.disk.folder(f"{ROOT}/data").entries
        world.scheduler.shut_down()

    def test_a_listing_may_miss_only_what_appears_while_it_is_made(self) -> None:
        for seed in range(50):
            world, files = self._world(seed)
            other = _files(world.disk, _sleeper(world.scheduler))
            files.write_new(f"{ROOT}/data/old", [b""])
            listed: list[list[str]] = []

            def body(process: Process, world: World = world, listed: list = listed) -> None:
                listed.append(SimulatedFiles(world.disk, process).names(f"{ROOT}/data"))

            lister = world.scheduler.spawn("lister", body)
            world.scheduler.turn(lister, 1)  # it is in the middle of its listing
            other.write_new(f"{ROOT}/data/new", [b""])
            world.scheduler.turn(lister, 9)
            assert "old" in listed[0]
            assert set(listed[0]) <= {"old", "new"}
            world.scheduler.shut_down()


class TestTheChecker:
    def _checker(self) -> tuple[Checker, Submission, Plan]:
        world = World(random.Random(0))
        plan = Plan(1, "ok")
        submission = Submission([plan], [], keep=True, parcels=1)
        world.checker.plan(submission)
        world.checker.accepted(submission, "run-0000")
        return world.checker, submission, plan

    def test_it_complains_of_a_value_from_nowhere(self) -> None:
        checker, submission, _ = self._checker()
        with pytest.raises(Violation, match="nowhere"):
            checker.report(submission, 0, JobEnd({"serial": 0}))

    def test_it_complains_of_a_value_from_another_run(self) -> None:
        checker, submission, plan = self._checker()
        serial = checker.record("another", 0, plan, 1)
        with pytest.raises(Violation, match="has the value of"):
            checker.report(submission, 0, JobEnd({"serial": serial}))

    def test_it_complains_of_a_result_that_changes(self) -> None:
        checker, submission, plan = self._checker()
        first, second = (checker.record("run-0000", 0, plan, n) for n in (1, 2))
        checker.report(submission, 0, JobEnd({"serial": first}))
        with pytest.raises(Violation, match="then"):
            checker.report(submission, 0, JobEnd({"serial": second}))

    def test_it_complains_of_a_failure_that_no_job_had(self) -> None:
        checker, submission, _ = self._checker()
        with pytest.raises(Violation, match="failed"):
            checker.report(submission, 0, JobEnd(failure=Failure(Outcome.FAILED, "x", "y")))

    def test_it_complains_of_arguments_that_nobody_passed(self) -> None:
        checker, _, _ = self._checker()
        with pytest.raises(Violation, match="nobody wrote"):
            checker.execute("run-0000", 0, 1, {"token": 1, "check": 0})

    def test_it_complains_when_what_was_accepted_is_gone(self) -> None:
        checker, submission, _ = self._checker()
        with pytest.raises(Violation, match="gone"):
            checker.resumed(submission, dict(submission.jobs), [])
        with pytest.raises(Violation, match="gone"):
            checker.abandoned(submission)

    def test_it_complains_when_nothing_moves(self) -> None:
        world = World(random.Random(0))
        submission = Submission([Plan(1, "ok")], [], keep=True, parcels=1)
        world.checker.plan(submission)
        with seeded(random.Random(0)):
            world.start(Client(world, "master 0", [submission], []))  # and no session at all
            with pytest.raises(Violation, match="stuck"):
                world.finish()
        world.scheduler.shut_down()


def test_a_quiet_world_runs_every_job_once() -> None:
    world = World(random.Random(0))
    submission = Submission([Plan(n, "ok") for n in range(1, 8)], [], keep=True, parcels=3)
    world.checker.plan(submission)
    with seeded(random.Random(0)):
        world.start(Client(world, "master 0", [submission], []))
        world.start(Session(world, "0"))
        world.finish()
    world.scheduler.shut_down()
    assert len(world.checker.executions) == 7
    assert set(FOLDERS) <= set(world.disk.folder(ROOT).entries)


@pytest.mark.parametrize("forked", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_in_a_quiet_world_every_command_runs_once_though_long_ones_stand_between_short_ones(
    seed: int, forked: bool
) -> None:
    world = World(random.Random(seed))
    seconds = {0: 0.5, 3: 0.07}
    plans = [Plan(n, "ok", seconds=seconds.get(n % 7, 0.0), command=True) for n in range(1, 41)]
    submission = Submission(plans, [], keep=True, parcels=100)
    world.checker.plan(submission)
    with seeded(random.Random(seed)):
        world.start(Client(world, "master 0", [submission], []))
        for number in range(3):
            world.start(Session(world, str(number), forked=forked))
        world.finish()
    world.scheduler.shut_down()
    assert sorted(job for _, job, _, _ in world.checker.executions.values()) == list(range(40))


@pytest.mark.parametrize("apart", [True, False], ids=["in containers", "together"])
@pytest.mark.parametrize("forked", [True, False], ids=["forked", "relayed"])
def test_a_command_whose_session_is_killed_around_it_never_runs_twice_at_once(
    forked: bool, apart: bool
) -> None:
    world = World(random.Random(0))
    submission = Submission([Plan(1, "ok", seconds=9.0, command=True)], [], keep=True, parcels=1)
    world.checker.plan(submission)
    with seeded(random.Random(0)):
        world.start(Client(world, "master 0", [submission], [], apart=apart))
        for number in range(2):
            world.start(Session(world, str(number), forked=forked, apart=apart))
        while not world.checker.running:
            for process in world.ready():
                world.turn(process, 1)
        (command,) = world.checker.running
        for process in list(world.scheduler.processes):
            if process.name.split()[1] == command.agent and "master" not in process.name:
                world.scheduler.kill(process)
        assert command.alive
        world.finish()  # the checker complains when a command begins that runs already
    world.scheduler.shut_down()
    assert command.swept is not apart
    assert len(world.checker.executions) == 1
