"""Who lives in the simulated world: Masters, guardians, workers and minders, on our own code."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Sequence
from typing import NoReturn

import postroom.master
from postroom.commands.attempt import LINGER_S
from postroom.dispatch.agent_starter import SessionStarter
from postroom.errors import BaseFolderError, OtherVersionError, PostroomError, RunRemovedError
from postroom.jobs import Job, JobPool
from postroom.master import Master
from postroom.parcel.sheets import Failure, JobEnd, JobOptions, JobSheet, Outcome
from postroom.session.background_publisher import BackgroundPublisher
from postroom.session.inbox import Alike, Inbox, Step, TryAgain
from postroom.session.job_runner import TasksNeeded
from postroom.session.rest import IdleWatch, RestFile
from postroom.store.base import Base
from postroom.store.files import MAP_FROM_BYTES
from postroom.store.journal import NullJournal
from postroom.store.mailbox import read_in_hand, read_letter
from postroom.store.runs import RunInfo, close_outboxes, create_run, take_back_letter
from postroom.store.wanted_agents import is_unwanted

from .checker import Checker, Plan, Submission, Violation
from .commands import Relayed, attempt_of, perform
from .disk import Disk, Node, SimulatedFiles, SimulatedLock
from .forks import call, fork
from .processes import Process, Scheduler
from .versions import VersionedFiles

ROOT = "/base"


class SimulatedClock:
    """A monotonic clock that all share, and a wall clock that jumps."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset = 1_700_000_000.0

    def wall(self) -> float:
        return self._scheduler.now + self.offset

    def monotonic(self) -> float:
        return self._scheduler.now


class Machine:
    """What all roles share."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.scheduler = Scheduler()
        self.clock = SimulatedClock(self.scheduler)
        self.disk = Disk(rng)
        self.base = Base(ROOT)
        self.checker = Checker(self.base, self.disk)
        self.disk.named = self.checker.named
        self.trees: dict[str, SimulatedLock] = {}  # what all processes of a session have open
        self.cards: dict[str, Node] = {}  # the GPU of each agent that gives it back at times
        self.keeper: SessionStarter | None = None  # starts the sessions that the base wants
        self.kept: dict[str, Session] = {}  # which are these
        self.calm = False  # the faults have stopped
        self.removes = False  # acting Masters remove runs that are over
        self.version_lot: random.Random | None = None  # None: all are of one version
        self._later: dict[str, bool] = {}

    def try_card(self, agent_id: str, process: Process) -> SimulatedLock | None:
        """Lease the GPU of an agent; None: somebody has it."""
        card = self.cards.setdefault(agent_id, Node())
        card.holders = [lock for lock in card.holders if lock.held]
        if card.holders:
            return None
        lease = SimulatedLock(card, process, shared=False)
        card.holders.append(lease)
        return lease

    def files(self, process: Process) -> SimulatedFiles:
        """The files as a process sees them: it is of one of two versions, as its session is."""
        if self.version_lot is None:
            return SimulatedFiles(self.disk, process)
        role, _, number = process.name.partition(" ")
        who = process.name if role in ("master", "user", "cleaner") else f"agent {number}"
        later = self._later.setdefault(who, self.version_lot.random() < 0.5)
        return VersionedFiles(self, process, later=later or role == "cleaner")


class Client:
    """A user's program: submits its runs, and works as a Master until they are done.

    Killed, it is started again and takes its runs up where they are; what it was not told of, it
    submits anew.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        own: list[Submission],
        joined: list[Submission],
        *,
        apart: bool = False,
    ) -> None:
        self._machine = machine
        self._apart = apart  # in a container, where it sees no processes of the sessions
        self.name = name
        self._own = own
        self._joined = joined  # runs of others, which it appends to
        self._lot = random.Random(name)
        self._pools: dict[str, JobPool] = {}

    @property
    def waits(self) -> bool:
        """Whether it has a pool that is not done."""
        runs = {s.run for s in [*self._own, *self._joined] if s.closed is None}
        return any(run in runs and not pool.done for run, pool in self._pools.items())

    def __call__(self, process: Process) -> None:
        try:
            self._work(process)
        finally:
            self._pools = {}  # they hold descriptors

    def _work(self, process: Process) -> None:
        machine = self._machine
        master = Master(
            ROOT,
            import_folder=ROOT,
            files=machine.files(process),
            clock=machine.clock,
            journal=NullJournal(),
            keep_results=0.0 if machine.removes else "forever",
            keep_bytes="forever",
            sessions=machine.keeper,
        )
        sweep = sees_nothing if self._apart else machine.checker.sweep
        master._sweep = sweep  # type: ignore[method-assign]
        pools = self._pools = {}
        seen: dict[str, int] = {}
        while True:
            for submission in [*self._own, *self._joined]:
                if submission.run not in pools and (machine.calm or machine.rng.random() < 0.5):
                    self._take_up(process, master, submission, pools)
            moved = master.step(machine.clock.monotonic())
            for submission in [*self._own, *self._joined]:
                pool = pools.get(submission.run or "")
                if pool is not None:
                    if submission.more and (machine.calm or machine.rng.random() < 0.3):
                        self._append(submission, pool)
                    if submission.closed is None and submission.run == pool.run:
                        self._look(submission, pool, seen)
            if machine.removes:
                self._tidy(process, master, pools, seen)
            if not machine.calm and machine.rng.random() < 0.05:
                master.let_go()  # its user does something else for a while
                process.sleep(machine.rng.choice((0.5, 3.0)))
            process.sleep(0.0005 if moved else machine.rng.choice((0.01, 0.05, 0.5)))

    def _tidy(
        self, process: Process, master: Master, pools: dict[str, JobPool], seen: dict[str, int]
    ) -> None:
        """Drop a pool now and then, and remove a little of what is old."""
        machine = self._machine
        for submission in [*self._own, *self._joined]:
            pool = pools.get(submission.run or "")
            if pool is not None and pool.done and not submission.more and self._lot.random() < 0.5:
                del pools[pool.run]
                machine.checker.reading.discard((pool.run, process))
                seen.pop(pool.run, None)
                master._wanted.pop(pool.run).release() if pool.run in master._wanted else None
        pool = None
        if master._old_runs is not None and self._lot.random() < 0.3:
            master._tidy_at = master._old_runs._survey_at = 0.0  # a minute later
        with contextlib.suppress(OSError):
            for _ in range(self._lot.choice((0, 1, 5, 50))):
                master._tidy(0.0)

    def _take_up(
        self, process: Process, master: Master, submission: Submission, pools: dict[str, JobPool]
    ) -> None:
        pool = None
        if submission.run is not None:
            pool = self._resume(process, master, submission)
        elif submission in self._own:
            pool = self._submit(master, submission)
        if pool is not None:
            pools[pool.run] = pool
            if pool.hold is not None:
                self._machine.checker.reading.add((pool.run, process))

    def _submit(self, master: Master, submission: Submission) -> JobPool | None:
        # Parcels are cut where options differ.
        odd = [number // submission.parcels % 2 == 1 for number in range(len(submission.plans))]
        jobs = [_job(plan, timed) for plan, timed in zip(submission.plans, odd, strict=True)]
        try:
            if submission.queued:
                pool = self._open_queue(master)
            elif submission.logged:
                pool = master.open(keep=submission.keep)
                if submission.streamed:
                    pool.take_in_turn()
            else:
                pool = master.submit_all(jobs, keep=submission.keep)
        except BaseFolderError:
            return None  # it was told that it failed, and tries again
        self._machine.checker.accepted(submission, pool.run)
        return pool

    def _open_queue(self, master: Master) -> JobPool:
        info = RunInfo(
            run=postroom.master.new_run_id(),
            project=self.name,
            import_folder=ROOT,
            shared=None,
            embedded=False,
            durable=True,
            created_at=self._machine.clock.wall(),
            host="",
            user="",
            queue=True,
        )
        try:
            create_run(master._files, self._machine.base, info)
        except OSError as error:
            raise BaseFolderError(str(error)) from error
        return master.resume(info.run)

    def _append(self, submission: Submission, pool: JobPool) -> None:
        plan = self._machine.rng.choice(submission.more)
        try:
            # As a file of its own, which is written over when its job is done, or in the log.
            apart = self._machine.rng.random() < 0.5
            (number,) = pool._master._append(pool, [_job(plan)], apart=apart)  # type: ignore[attr-defined]
        except RunRemovedError:
            if submission.run == pool.run:
                self._machine.checker.abandoned(submission)
            return
        except (BaseFolderError, OtherVersionError, OSError):
            return  # it may be in or not: it is appended again, by an updated program if need be
        if submission.run == pool.run:  # else another client has begun a new one since
            self._machine.checker.appended(submission, number, plan)

    def _resume(self, process: Process, master: Master, submission: Submission) -> JobPool | None:
        checker, run = self._machine.checker, submission.run
        while True:
            known = dict(submission.jobs)
            try:
                pool = master.resume(run)
            except BaseFolderError:
                process.sleep(0.1)
                continue
            except OtherVersionError:
                return None  # until it is updated
            except PostroomError:
                if submission.run == run:
                    checker.abandoned(submission)
                return None
            if submission.run != run:
                return None  # another client found it removed, and has begun a new one
            tokens = [job.arguments.get("token", 0) for job in pool.jobs]
            for number, token in enumerate(tokens):
                if not token and number in submission.jobs:  # its arguments are gone
                    checker.recycled(submission, number, done=pool.has_outcome(number))
                    tokens[number] = submission.jobs[number].token
            if submission.shaken and not checker.holds(tokens, submission.jobs):
                checker.abandoned(submission)
                return None
            checker.resumed(submission, known, tokens)
            return pool

    def _look(self, submission: Submission, pool: JobPool, seen: dict[str, int]) -> None:
        for number in pool._arrived[seen.get(pool.run, 0) :]:
            done = pool[number].done
            if submission.run == pool.run:
                self._machine.checker.report(submission, number, done)
                if submission.streamed and self._machine.rng.random() < 0.7:
                    self._machine.checker.takes(submission, number, done)
                    pool._forget(number)
        seen[pool.run] = len(pool._arrived)
        if submission.streamed:
            for first, stop in pool._taken:
                for number in range(first, stop):
                    self._machine.checker.was_taken(submission, number)
            with contextlib.suppress(OSError, OtherVersionError):
                pool._remove_taken()


class SimulatedPublisher(BackgroundPublisher):
    """Publishes behind: as soon as it is asked to, or only when the worker waits for it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._publish: Callable[[], bool] | None = None

    def owned(self, done: Sequence[JobEnd]) -> list[JobEnd]:
        return list(done)

    def begin(self, publish: Callable[[], bool]) -> None:
        self._publish = publish
        if self._rng.random() < 0.5:
            try:
                won = publish()
            except OSError as error:
                self._publish = functools.partial(_raise, error)
            else:
                self._publish = lambda: won

    def wait(self) -> bool:
        assert self._publish is not None
        return self._publish()

    def close(self) -> None:
        """It has no thread."""


def _raise(error: OSError) -> NoReturn:
    raise error


def sees_nothing(agent_id: str) -> int:
    """Look for processes where none are visible."""
    return 0


def _job(plan: Plan, timed: bool = False) -> Job:
    return Job(
        "commands:run" if plan.command else "kernels:run", token=plan.token, check=-plan.token
    ).options(retries=plan.retries, timeout_s=1e6 if timed else None)


class Session:
    """The guardian of one agent, and the worker it starts again and again.

    Commands have a minder of their own, which outlives both; or the worker is `forked`, minds its
    commands itself, and outlives its guardian until the running one is done. The worker of a `lazy`
    session is forked, too, until it meets a kernel.
    """

    def __init__(
        self,
        machine: Machine,
        agent_id: str,
        *,
        forked: bool = False,
        lazy: bool = False,
        apart: bool = False,
        rests: bool = False,
        kept: bool = False,
    ) -> None:
        self._machine = machine
        self._rests = rests  # it has its GPU only while there is work
        self._retires = False  # its worker is to end, so that it can rest
        self._lease: SimulatedLock | None = None
        self.kept = kept  # it lives as long as the base wants it, and a Master starts it
        self._lazy = lazy
        self._forked = forked
        self._apart = apart  # each guardian in a new container, which sees nothing of earlier ones
        self.agent_id = agent_id
        self.name = f"guardian {agent_id}"
        self.stopping = False
        self.lock: SimulatedLock | None = None

    def __call__(self, process: Process) -> None:
        machine, base = self._machine, self._machine.base
        files = machine.files(process)
        lock, tree = self._take_locks(process, files)
        self.stopping = False
        self.lock = lock
        machine.trees[self.agent_id] = tree
        self._take_back(process, files, "its agent died", blame=True)
        rest_file = RestFile(files, base, self.agent_id)
        self._insist(process, rest_file.take_down)
        forked = self._forked or self._lazy
        while not self.stopping:
            if self._rests and not self._wake(process, files, rest_file):
                break
            relayed: list[Relayed] = []
            worker, needs = self._start_worker(process, lock, relayed, forked=forked)
            idle = IdleWatch(0.5)
            while worker.alive or self._runs_command(relayed):
                self._pass_on(process, lock, relayed)
                self._look(process, files, idle)
                process.sleep(0.02 if relayed else 0.2)
            machine.checker.sweep(self.agent_id)
            self._take_back(process, files, "its worker died", blame=not self.stopping)
            forked = self._forked or (self._lazy and not needs)
            if self._lease is not None:
                self._lease.close(process)  # what a worker left running still has it
                self._lease = None
        close_outboxes(files, base, self.agent_id)
        files.remove(base.mailbox(self.agent_id))
        tree.close(process)
        lock.release()

    def _wake(self, process: Process, files: SimulatedFiles, rest_file: RestFile) -> bool:
        """Rest until there is work and the GPU is free; False: it is to end."""
        self._insist(process, rest_file.put_up)
        while True:
            self._look(process, files, None)
            if self.stopping or rest_file.is_gone():
                self._insist(process, rest_file.take_down)
                return False
            if rest_file.is_called():
                self._lease = self._machine.try_card(self.agent_id, process)
                if self._lease is not None:
                    self._insist(process, rest_file.take_down)
                    return True
            process.sleep(self._machine.rng.choice((0.02, 0.2)))

    def _look(self, process: Process, files: SimulatedFiles, idle: IdleWatch | None) -> None:
        """See whether nobody wants this session any more, or its worker has nothing to do."""
        base = self._machine.base
        if self.kept and is_unwanted(files, base, self.agent_id):
            self.stopping = True
        if self._rests and idle is not None:
            try:
                hand = read_in_hand(files, base, self.agent_id)
                letter = read_letter(files, base, self.agent_id) is not None
            except OSError:
                return
            self._retires = idle.is_over(process.scheduler.now, hand, letter=letter)

    def _insist(self, process: Process, action: Callable[[], None]) -> None:
        while True:
            try:
                return action()
            except OSError:
                process.sleep(0.1)

    def _take_locks(
        self, process: Process, files: SimulatedFiles
    ) -> tuple[SimulatedLock, SimulatedLock]:
        machine, base = self._machine, self._machine.base
        while True:
            lock = files.try_lock(base.agent_lock(self.agent_id))
            if lock is not None:
                if not self._apart:
                    machine.checker.sweep(self.agent_id)
                tree = files.try_lock(base.agent_tree(self.agent_id))
                if tree is not None:
                    return lock, tree
                lock.release()
            process.sleep(0.02)

    def _runs_command(self, relayed: list[Relayed]) -> bool:
        """While a minder runs a command, a dead worker's letter is not taken back."""
        return any(each.minder is not None and each.minder.alive for each in relayed)

    def _pass_on(self, process: Process, lock: SimulatedLock, relayed: list[Relayed]) -> None:
        """Give attempts to minders, and sweep behind those that died."""
        machine = self._machine
        for each in relayed:
            if each.minder is None:
                mind = functools.partial(each.mind, machine)
                each.minder = machine.scheduler.spawn(
                    f"minder {self.agent_id}", mind, parent=process
                )
                each.minder.survives = True
                lock.hand_down(each.minder)
                machine.trees[self.agent_id].hand_down(each.minder)
                if self._lease is not None:
                    self._lease.hand_down(each.minder)
            elif not each.minder.alive and not each.word:
                machine.checker.sweep(self.agent_id)
                each.word = "lost"

    def _take_back(
        self, process: Process, files: SimulatedFiles, reason: str, *, blame: bool
    ) -> None:
        machine = self._machine

        def take_back() -> None:
            take_back_letter(
                files, machine.base, self.agent_id, reason=reason, at=machine.clock.wall(),
                blame=blame,
            )  # fmt: skip

        self._insist(process, take_back)

    def _start_worker(
        self, process: Process, lock: SimulatedLock, relayed: list[Relayed], *, forked: bool
    ) -> tuple[Process, list[TasksNeeded]]:
        """Start a worker; return it, and where it says that it was sent what it cannot run."""
        needs: list[TasksNeeded] = []

        def work(worker: Process) -> None:
            try:
                self._work(process, relayed, worker, forked=forked)
            except TasksNeeded as error:
                needs.append(error)

        worker = self._machine.scheduler.spawn(f"worker {self.agent_id}", work, parent=process)
        worker.survives = forked
        lock.hand_down(worker)
        self._machine.trees[self.agent_id].hand_down(worker)
        self._retires = False
        if self._lease is not None:
            self._lease.hand_down(worker)
        return worker, needs

    def _work(
        self, guardian: Process, relayed: list[Relayed], process: Process, *, forked: bool
    ) -> None:
        machine, inherited = self._machine, self._lease

        def run_job(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd | None:
            known = machine.checker.plan_of(sheet.arguments(job))
            if forked and self._lazy and known is not None and not known.command:
                raise TasksNeeded
            plan = machine.checker.execute(info.run, job, attempt, sheet.arguments(job))
            lease = self._lease if guardian.alive else inherited
            if self._rests and not machine.checker.lies and not (lease and lease.held):
                raise Violation(f"agent {self.agent_id} begins a job without its GPU")
            if not plan.command:
                if plan.forks:
                    serve = functools.partial(self._serve, guardian)
                    fork(machine, process, inbox, run_job, serve)
                return call(process, run, machine, process, info, plan, job, attempt)
            made = attempt_of(info, sheet, job, attempt=attempt, failed=inbox.failed)
            if forked:
                ended = perform(machine, process, self.agent_id, made, plan, inbox.linger)
                if ended.again is not None:
                    raise TryAgain(ended.again, "it failed")
                return ended.done
            relayed[:] = [mine := Relayed(self.agent_id, info, made, plan)]
            while not mine.word:
                process.sleep(LINGER_S)
                if not mine.word:
                    inbox.linger()
            return None

        def run_alike(info: RunInfo, sheet: JobSheet, jobs: range, attempt: int) -> Alike | None:
            plans = [machine.checker.plan_of(sheet.arguments(job)) for job in jobs]
            special = any(plan is None or plan.command or plan.forks for plan in plans)
            if special or sheet.options != JobOptions():
                return None
            ends = (run_job(info, sheet, job, attempt) for job in jobs)
            return Alike(end for end in ends if end is not None)

        inbox = Inbox(
            machine.files(process),
            machine.base,
            self.agent_id,
            run_job,
            run_alike=run_alike,
            clock=machine.clock,
            journal=NullJournal(),
            publisher=SimulatedPublisher(machine.rng),
        )
        self._serve(guardian, process, inbox)

    def _serve(self, guardian: Process, process: Process, inbox: Inbox) -> None:
        while not (self.stopping or self._retires) and guardian.alive:
            try:
                step = inbox.step()
            except TasksNeeded:
                inbox.take_down()
                raise
            if step is Step.BLOCKED and inbox._refuses and self._machine.calm:
                break  # somebody updates it
            if step is Step.BLOCKED:
                process.sleep(0.1)
            elif step is Step.IDLE and inbox.box.gone():
                return  # taken for dead: the next worker begins anew
            elif step is Step.IDLE:
                process.sleep(self._machine.rng.choice((0.01, 0.05, 1.0)))
        inbox.take_down()


def run(
    machine: Machine, process: Process, info: RunInfo, plan: Plan, job: int, attempt: int
) -> JobEnd:
    """The kernel: does what the job's plan says."""
    if plan.seconds:
        process.sleep(plan.seconds)
    if plan.kind == "poison":
        process.die()
    if plan.kind == "fails" or attempt <= plan.fails:
        failure = Failure(Outcome.FAILED, "ValueError", f"attempt {attempt} of {plan.token}")
        return JobEnd(failure=failure, seconds=plan.seconds)
    serial = machine.checker.record(info.run, job, plan, attempt)
    nbytes = machine.rng.choice((0, 0, MAP_FROM_BYTES))  # a large one is published behind
    return JobEnd({"serial": serial}, seconds=plan.seconds or 0.0001, nbytes=nbytes)
