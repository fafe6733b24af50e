"""The Master: submits jobs, schedules them if no other Master does, and collects the results.

Every Master can submit and wait. Only the one that holds `master.lock`, the acting Master, writes
letters. The others try to take the lock twice a second, so that one takes over when it dies.

A Master acts only while somebody uses it: half a second after the last call it releases the lock,
so an idle program never keeps others from working. It may be used from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .dispatch.agent_starter import SessionStarter
from .dispatch.background_writer import THREADS, BackgroundWriter
from .dispatch.dispatcher import Dispatcher
from .dispatch.feeder import Feeder, Window
from .dispatch.job_writer import Batch, log_jobs, pack_batch, put_data, referring_to_data
from .dispatch.old_runs import STEP_S, OldRuns
from .dispatch.pool_progress import PoolProgress
from .dispatch.small_calls import SmallCall, is_small_call
from .dispatch.stall import Stall, find_obstacle
from .errors import (
    BadFileError,
    BaseFolderError,
    OtherVersionError,
    PostroomError,
    RunRemovedError,
)
from .futures.in_order import results_in_order
from .jobs import Job, JobList, JobPool, check_job
from .parcel.sheets import FAILED_FLAG, OutcomeSheet
from .parcel.trailer import TRAILER_SIZE, read_trailer
from .store.agents import MasterInfo, list_agents, read_agent_info
from .store.append_log import (
    AppendLogWriter,
    GoneParcel,
    ParcelFile,
    Record,
    logged_until,
    read_sheets,
)
from .store.base import Base, create_base, new_run_id
from .store.files import Clock, Files, LocalFiles, LocalLock, Lock, SystemClock, replace_file
from .store.job_ids import JobId, JobIds
from .store.journal import Journal
from .store.mailbox import read_letter
from .store.pilot_records import has_pilots
from .store.requests import Request, RequestVerb, ask
from .store.retention import Retention, parse_keep, register_program, retention_of
from .store.runs import (
    RunInfo,
    appending,
    check_project,
    create_run,
    first_missing,
    list_firsts,
    list_runs,
    read_run_info,
    user_name,
    want,
)
from .store.snapshot import AgentList, count_done
from .store.taken import read_taken
from .store.task_source import check_kernel, program_folder, source_version
from .store.task_source import import_folder as folder_of_tasks
from .system.file_events import FolderWatcher, Waiter
from .system.processes import myself
from .system.shortage import cannot, explaining
from .text.safe_text import printable

if TYPE_CHECKING:
    from .futures.future_pool import FuturePool, JobFuture
    from .session.sessions import Sessions
    from .session.slot_plan import Agents

# True: a progress bar; or what is called after each round of a wait.
Progress = bool | Callable[[JobPool], None] | None

# What users may rely on, and what `dir` shows. The rest is for other modules, and may change.
MASTER_CALLS = (
    *("base", "agents", "run", "start", "submit", "map", "open", "resume", "wait", "close"),
)

# How many jobs `map` has under way.
MAP_WINDOW = 256
# How often a Master that does not act tries to take the lock, and lists results.
STAND_BY_S = 0.5
# How long after the last call of its user it stops acting.
IDLE_S = 0.5
# Old runs are removed in pauses that are at least so long, and for so long when nobody waits.
QUIET_PAUSE_S = 0.05
IDLE_STEP_S = 0.05
CLOSING_S = 0.03
# How often it looks which pools its user has dropped.
TIDY_S = 1.0
# ... and lists results at most, when events say that there are some; and at least, however long a
# listing took: the process may have been stopped meanwhile, for hours.
REFRESH_S = 0.002
REFRESH_AT_LEAST_S = 5.0
# How often it checks that its base still exists, and why nothing can run.
CHECK_BASE_S = 1.0


class Master:
    """Runs jobs on the agents of one base."""

    def __init__(
        self,
        base: str | os.PathLike[str],
        agents: Agents | None = None,
        *,
        check: str = "",
        import_folder: str | None = None,
        durable: bool = False,
        spin: bool = True,
        files: Files | None = None,
        clock: Clock | None = None,
        journal: Journal | None = None,
        sessions: SessionStarter | None = None,
        say: Callable[[str], None] | None = None,
        raise_after_s: float | None = None,
        keep_results: str | float | None = None,
        keep_bytes: str | int | None = None,
    ) -> None:
        """Open a base, and make it if it is missing.

        `agents`: how many to start, "all" for one on each GPU, or GPUs such as "0,1"; they serve
        when this returns, and end when the Master is closed. Without it, those that live are used.
        `check`: a task, "module:function", to import before agents start, in a process of its own:
        a package that is missing there would fail every job.

        While nothing can run (no agent is alive, the disk is full), `say` is told once, by default
        on stderr; with `raise_after_s` a wait raises StalledError after so long. While this Master
        acts, results of runs that are over stay as long as `keep_results` ("30d", seconds,
        "forever"), and together take at most `keep_bytes` ("20G", bytes, "forever").
        """
        self.base: Base = create_base(base) if files is None else Base(base)
        self._folder_is_given = import_folder is not None
        self.import_folder = os.path.abspath(import_folder or program_folder())
        if check:
            check_kernel(self.import_folder, check)
        self.durable = durable
        self._files: Files = files or LocalFiles()
        self._clock: Clock = clock or SystemClock()
        self._journal = journal or Journal(self.base, "master", clock=self._clock)
        self._sessions = sessions
        # Weak: a pool that its user has dropped is not kept in memory.
        self._pools: weakref.WeakValueDictionary[str, JobPool] = weakref.WeakValueDictionary()
        self._few: dict[str, JobPool] = {}  # the runs of small calls, by import folder
        self._wanted: dict[str, Lock] = {}
        self._append_logs: dict[str, AppendLogWriter] = {}  # of the runs that were appended to here
        self._lock: Lock | None = None
        self._dispatcher: Dispatcher | None = None
        self._ask_at = 0.0
        self._check_base_at = 0.0
        self._refresh_at = 0.0
        self._refresh_is_late = False
        self._at_rest: set[str] = set()  # the runs that nobody wanted when they were looked at
        self._guard = threading.RLock()  # over all that is above
        self._polling = threading.Lock()  # one thread waits for events, the others for it
        self._waits = 0  # how many waits are under way
        self._used_at = 0.0  # when the last call of its user ended
        self._is_watched = False  # by a thread that lets go when it is idle
        self._closed = threading.Event()
        self._blocked = ""  # why the last round failed
        self._say = say or _tell
        self._stall = Stall(self._say, raise_after_s=raise_after_s)
        self._look_at = 0.0
        self._keep = parse_keep(keep_results, keep_bytes)
        self._old_runs: OldRuns | None = None
        self._program: tuple[str, Lock | None] | None = None  # what runs name, until it is free
        self._reading: dict[str, bool] = {}  # runs whose pools exist here: whether it is another's
        self._tidy_at = 0.0
        with explaining("work", self.base.root):
            watched = [self.base.agent_pool, self.base.job_pool, self.base.control]
            self._waiter = Waiter(watched, spin=spin)
        self._futures: FuturePool | None = None
        self._own_agents: Sessions | None = None
        self._pilots: Sessions | None = None  # what starts their keeper, where the base has some
        self._done_before = 0  # jobs, when they were last looked after
        self._writer = BackgroundWriter(self._waiter.nudge)
        if agents is not None:
            self._start_agents(agents)

    def __enter__(self) -> Master:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._futures is not None:
                self._futures.close(cancel=kind is not None)
                self._futures.gone.wait()
        finally:
            self.close()

    def __dir__(self) -> tuple[str, ...]:
        return MASTER_CALLS

    def close(self) -> None:
        """Leave the base: another Master may act; embedded runs stop where they are."""
        if self._own_agents is not None:
            self._own_agents.end(now=False)
        self._closed.set()
        if self._waits:
            self._waiter.wake()
        with self._guard, self._polling:
            self._writer.close()
            for within in self._few.values():
                within.leave()
            self._few.clear()
            self._waiter.close()
            for lock in self._wanted.values():
                lock.release()
            self._wanted.clear()
            for append_log in self._append_logs.values():
                append_log.close()
            self._append_logs.clear()
            self._files.remove_spares()
            self._tidy_at = 0.0
            with contextlib.suppress(OSError):
                self._tidy(CLOSING_S)
            self._step_down()
            self._program = None  # pools that still exist hold it

    def _start_agents(self, agents: Agents) -> None:
        from .session.sessions import Sessions
        from .session.slot_plan import plan_slots

        try:
            slots = plan_slots(agents, None)
            if all(slot.gpu == "cpu" for slot in slots):
                _tell("no GPU found: the agents run on the CPU")
                # Named so, a session may still find an accelerator that no driver lists.
                slots = [replace(slot, gpu=slot.agent) for slot in slots]
            self._own_agents = Sessions(self.base, say=_tell)
            self._own_agents.start(slots)
            self._own_agents.slots = slots  # from now on, one that dies is started again
        except BaseException:
            self.close()
            raise

    @property
    def acting(self) -> bool:
        """Whether this Master is the acting one, which writes letters."""
        return self._dispatcher is not None

    def agents(self) -> AgentList:
        """The agents that can take letters, now or when they are called; in a notebook, a table."""
        return AgentList(self.base, list_agents(self._files, self.base, resting=True))

    # Submitting

    def run(
        self,
        jobs: Iterable[Job],
        shared: Any = None,
        *,
        project: str = "",
        progress: Progress = None,
        keep: str = "",
        window: Window | None = None,
    ) -> JobPool:
        """Run jobs and return their pool, in the order given, when every job has an outcome.

        `jobs` is a list, or anything that makes jobs one by one; see `start`. A few jobs share a
        run with those of other calls. `progress=True` shows a progress bar.
        """
        plain = shared is None and not (project or keep or self.durable)
        if plain and isinstance(jobs, Sequence) and is_small_call(jobs):
            return self._run_few(list(jobs), progress)
        pool = self.start(jobs, shared, project=project, keep=keep, window=window)
        try:
            self.wait(pool, progress=progress)
        except KeyboardInterrupt:
            self._drop_at_prompt(pool)
            raise
        return pool

    def _run_few(self, jobs: list[Job], progress: Progress) -> JobPool:
        """Run jobs in the run that small calls share."""
        with self._using("submit jobs"):
            folder = self._folder_of({job.task: None for job in jobs})
            within = self._few.get(folder)
            if within is None:
                within = self._submit(
                    [], None, keep=False, tasks_of=jobs, recycled=True, calls=True
                )
                within.is_open = True
                within.take_in_turn()
                self._few[folder] = within
            self._append(within, jobs, called=0)
            pool = SmallCall(self._files, self.base, within, jobs, self)
        show = self._shown(pool, progress)
        try:
            for _ in self.rounds(within, until=pool.gather):
                if show is not None:
                    show(pool)
        except BaseException as error:
            if isinstance(show, PoolProgress):
                show.close()
            if isinstance(error, KeyboardInterrupt):
                self._drop_at_prompt(within)
            self._leave_few(folder, within)
            raise
        with self._guard:
            within.take(pool.numbers)
            if pool.n_failed:
                self._leave_few(folder, within)
        if show is not None:
            show(pool)
        return pool

    def _drop_at_prompt(self, pool: JobPool) -> None:
        """After Ctrl-C at a prompt, or in a notebook: the call's jobs that wait are not wanted.

        A program that Ctrl-C ends keeps them: it may be resumed.
        """
        if hasattr(sys, "ps1"):
            with contextlib.suppress(PostroomError):
                self.cancel(pool, range(len(pool.jobs)), "its call was interrupted")
                for number in self.jobs_begun(pool):
                    self._say(f"a job runs on; to end it: {pool.how_to('kill', number)}")

    def _shown(self, pool: JobPool, progress: Progress) -> Callable[[JobPool], None] | None:
        """What is called after each round."""
        if isinstance(progress, bool):
            return PoolProgress(self, pool) if progress else None
        return progress

    def _leave_few(self, folder: str, within: JobPool) -> None:
        """Have the next small call begin a new run."""
        with self._guard:
            if self._few.get(folder) is within:
                del self._few[folder]
                within.is_open = False
                within.leave()
                self._release(within)

    def start(
        self,
        jobs: Iterable[Job],
        shared: Any = None,
        *,
        project: str = "",
        keep: str = "",
        window: Window | None = None,
    ) -> JobPool:
        """Begin to run jobs, and return their pool at once.

        They are written while this process waits for the pool, a `window` ahead of the work. A
        list is written whole as soon as there is time, so that it can be resumed; the jobs of a
        generator exist only in the window. The space of a large argument is used again when its
        job is done; with `keep="arguments"` it stays, for a rerun or a look.
        """
        if keep not in ("", "arguments"):
            raise PostroomError(f"keep={keep!r} is not known: write keep='arguments', or nothing")
        if isinstance(jobs, Sequence):
            for job in jobs:
                check_job(job)
        feeder = Feeder(jobs, window or Window())
        first = feeder.next_batch()
        with self._using("submit jobs"):
            pool = self._submit(
                [],
                shared,
                project=project,
                keep=False,
                tasks_of=jobs if isinstance(jobs, Sequence) else [job for job, _ in first],
                recycled=not keep,
                planned=feeder.total or 0,
            )
            pool.source = feeder
            if feeder.total is None:
                pool.take_in_turn()
            pool.parcels.keep_small = feeder.total is not None
            if first:
                self._append_batch(pool, first)
            return pool

    def _append_batch(self, pool: JobPool, batch: Batch, file: ParcelFile | None = None) -> None:
        self._append(pool, [job for job, _ in batch], batch=batch, file=file)

    def _feed(self, pool: JobPool, feeder: Feeder, now: float) -> bool:
        """Write the next jobs of a pool; False: there are no more, or they have to wait."""
        moved = False
        with self._using("submit jobs"):
            while feeder.writing and feeder.writing[0].file.done():
                try:
                    file = feeder.writing[0].file.result()
                    self._append_batch(pool, feeder.writing[0].batch, file)
                except OSError as error:
                    # A slip may name the file of the first one already.
                    first = feeder.writing.popleft().batch
                    feeder.put_back([first, *(behind.drop() for behind in feeder.writing)])
                    feeder.writing.clear()
                    # By now there may be room: this thread tries again, and will know.
                    if error.errno == errno.ENOSPC:
                        return moved
                    raise
                feeder.writing.popleft()
                moved = True
            ahead = len(pool.jobs) - pool.n_done
            dispatcher = self._dispatcher
            while len(feeder.writing) < THREADS and feeder.has_room(
                len(pool.jobs) - pool.n_done,
                pool.parcels.nbytes,
                now,
                is_ahead=dispatcher is not None and dispatcher.is_ahead(pool.run),
            ):
                if ahead and not self._files.has_room(self.base.job_pool, pool.parcels.next_size):
                    break  # what is done soon makes room
                batch = feeder.next_batch()
                if not batch:
                    break
                if feeder.writing or (feeder.is_large and isinstance(self._files, LocalFiles)):
                    called = len(pool.jobs) + sum(len(ahead.batch) for ahead in feeder.writing)
                    append_log = self._append_log(pool.info)
                    feeder.writing.append(self._writer.begin(append_log, batch, called=called))
                else:
                    try:
                        self._append_batch(pool, batch)
                    except OSError as error:
                        feeder.put_back([batch])
                        if _may_find_room(error, pool):
                            break
                        raise
                    moved = True
                    break
            if dispatcher is not None:
                dispatcher.expect_more(pool.run, not feeder.ended)
        return moved

    def submit(
        self, job: Job | str | Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> JobFuture:
        """Have one job run, or one call of a task; returns its future at once.

        The exception of a call comes back as itself; a job that failed raises JobFailed. Leaving
        the Master's `with` block waits for all of them.
        """
        if isinstance(job, str):
            job = Job(job, *args, **kwargs)
        elif not isinstance(job, Job):
            if not callable(job):
                raise PostroomError(f"{job!r} is not a task: pass a Job, a function, or its name")
            from .calls.call import CALL, pack_call  # late: they import numpy and cloudpickle

            call = Job(CALL, **pack_call(job, args, kwargs))
            call.name = getattr(job, "__qualname__", None)
            job = call
        elif args or kwargs:
            raise PostroomError("a Job has its arguments already: write submit(job)")
        with self._guard:
            self._check_open("submit jobs")
            if self._futures is None or self._futures.broken is not None:
                self._futures = self._make_futures()
        return self._futures.submit(job)

    def _make_futures(self) -> FuturePool:
        from .calls.call import context_here
        from .futures.future_pool import FuturePool
        from .futures.living_agents import LivingAgents
        from .futures.program_end import wait_at_end

        context = context_here()._asdict()
        # Our own agents are looked after in each wait.
        keeper = None if self._own_agents is not None else LivingAgents(self.base)
        return wait_at_end(
            lambda: FuturePool(self, lambda: self.open(context, project="calls"), keeper=keeper)
        )

    def map(
        self,
        task: str | Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        timeout_s: float | None = None,
        window: int = MAP_WINDOW,
    ) -> Iterator[Any]:
        """Run a task with each tuple of arguments; yield the results in order.

        At most `window` jobs are under way, so the iterables may be endless.
        """
        submitted = (self.submit(task, *args) for args in zip(*iterables, strict=False))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return results_in_order(submitted, window, deadline)

    def submit_all(
        self, jobs: Iterable[Job], shared: Any = None, *, project: str = "", keep: bool = False
    ) -> JobPool:
        """Submit a run. It is served while this process waits for it; with `keep`, always."""
        listed = list(jobs)
        for job in listed:
            check_job(job)
        with self._using("submit jobs"):
            return self._submit(listed, shared, project=project, keep=keep)

    def _submit(
        self,
        listed: list[Job],
        shared: Any,
        *,
        project: str = "",
        keep: bool,
        one_job_per_letter: bool = False,
        tasks_of: Sequence[Job] = (),
        recycled: bool = False,
        planned: int = 0,
        calls: bool = False,
    ) -> JobPool:
        tasks = dict.fromkeys(job.task for job in [*listed, *tasks_of])
        folder = self._folder_of(tasks)
        durable = self.durable or keep
        guard = (
            contextlib.nullcontext()
            if shared is None
            else referring_to_data(self._files, self.base)
        )
        with guard:
            info = RunInfo(
                run=new_run_id(),
                project=check_project(project),
                import_folder=folder,
                shared=put_data(self._files, self.base, shared, durable=durable),
                embedded=not keep,
                durable=durable,
                created_at=self._clock.wall(),
                host=socket.gethostname(),
                user=user_name(),
                kernels={task: source_version(folder, task) for task in tasks},
                program="" if keep else self._token(),
                one_job_per_letter=one_job_per_letter,
                recycled=recycled,
                planned=planned,
                calls=calls,
            )
            return self._begin(info, listed)

    def _folder_of(self, tasks: dict[str, None]) -> str:
        """The folder that sessions import these tasks from."""
        if self._folder_is_given:
            return self.import_folder
        return folder_of_tasks(tasks, self.import_folder)

    def _begin(self, info: RunInfo, listed: list[Job]) -> JobPool:
        """Make a run, with its jobs."""
        records: list[Record] = []

        def fill(append_log: AppendLogWriter) -> int:
            records.extend(log_jobs(append_log, listed, apart=True))
            return len(listed)

        create_run(self._files, self.base, info, fill)
        if info.embedded:
            self._want(info.run)
        pool = JobPool(self._files, self.base, info, listed, self)
        self._note_parcels(pool, records)
        self._hold(pool)
        return self._watch(pool)

    def _token(self) -> str:
        """What runs of this program name; registered once."""
        if self._program is None:
            self._program = register_program(self._files, self.base)
        return self._program[0]

    def _hold(self, pool: JobPool, *, resumed: bool = False) -> None:
        """Keep a run from being removed by its age or size, for as long as its pool exists."""
        token = self._token() if pool.info.embedded else ""
        if not token or self._program is None:
            return
        if resumed and not self._say_that_it_reads(pool.run, token):
            return
        pool.hold = self._program[1]
        self._reading[pool.run] = resumed

    def _say_that_it_reads(self, run: str, token: str) -> bool:
        path = self.base.reader(run, token)
        try:
            if not self._files.exists(path):
                self._files.write_new(path, [b""])
        except OSError:  # on a full disk, say: then only its age protects the run
            return False
        return True

    def _let_go_of_dropped(self) -> None:
        """Say which runs this program will not read again, because it has dropped their pools."""
        dropped = self._reading.keys() - self._pools.keys() - self._wanted.keys()
        for run in dropped:
            resumed = self._reading.pop(run)
            with contextlib.suppress(OSError):
                if resumed:
                    self._files.remove(self.base.reader(run, self._token()))
                else:
                    self._files.write_new(self.base.let_go(run), [b""])

    def _tidy(self, seconds: float = STEP_S) -> None:
        """Between other work, for a moment: let go of runs, and remove old ones (see `OldRuns`)."""
        now = self._clock.monotonic()
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            self._let_go_of_dropped()
        if self._old_runs is not None:
            self._old_runs.step(seconds)

    def open(
        self,
        shared: Any = None,
        *,
        project: str = "",
        keep: bool = False,
        one_job_per_letter: bool = False,
    ) -> JobPool:
        """Open an empty run, for jobs that come one by one: `pool.submit(job).result()`.

        Use `one_job_per_letter` for jobs that have nothing in common: no job then waits behind a
        long one while another agent is idle.
        """
        with self._using("open a run"):
            pool = self._submit(
                [],
                shared,
                project=project,
                keep=keep,
                one_job_per_letter=one_job_per_letter,
                recycled=not keep,
            )
            pool.is_open = True
            return pool

    def cancel(self, pool: JobPool, jobs: Collection[int], reason: str) -> bool:
        """Cancel jobs that wait; False: only the acting Master may, and this is not it."""
        with self._using("cancel jobs"):
            if self._dispatcher is None:
                return False
            self._dispatcher.cancel(pool.run, jobs, reason)
            return True

    def withdraw(self, pool: JobPool, number: int) -> bool:
        """Cancel a job that no agent has; False: one has it, or it has an outcome."""
        with self._using("cancel a job"):
            dispatcher = self._dispatcher
            if dispatcher is None:
                return self._ask_to_withdraw(pool, number)
            for again in (True, False):
                dispatcher.cancel(pool.run, [number], "cancelled by its program")
                if pool.is_cancelled(number):
                    return True
                if again and number not in self.jobs_sent(pool):
                    # It was appended just now, and the dispatcher has not seen it yet.
                    dispatcher.hint({pool.run})
                    dispatcher.step(self._clock.monotonic(), send=False)
            return False

    def _ask_to_withdraw(self, pool: JobPool, number: int) -> bool:
        """Have the Master that acts cancel a job that is in no letter."""
        run, files, base = pool.run, self._files, self.base
        letters = [read_letter(files, base, agent) for agent in list_agents(files, base)]
        sent = any(one and one.run == run and one.first <= number < one.stop for one in letters)
        if sent or first_missing(files, base, run, number, number + 1) > number:
            return False
        self.stop_jobs(pool, [number], "its program")
        return True

    def stop_jobs(self, pool: JobPool, numbers: Collection[int], by: str) -> None:
        """Cancel jobs that wait, and end those that run, whichever Master acts."""
        jobs = JobIds([JobId(pool.run, number) for number in numbers])
        with self._using("end jobs"):
            ask(self._files, self.base, Request(RequestVerb.KILL, jobs=jobs, by=by))
        self.wake()

    def jobs_sent(self, pool: JobPool) -> list[int]:
        """The jobs of a pool that agents have, where this Master acts."""
        sent: list[int] = []
        if self._dispatcher is not None:
            for agent in list(self._dispatcher.agents.values()):
                letter = agent.letter
                if letter is not None and letter.run == pool.run:
                    sent += range(agent.reached, letter.stop)
        return sent

    def jobs_begun(self, pool: JobPool) -> list[int]:
        """Those that agents run: the rest of a letter is given back if that takes a while."""
        agents = [] if self._dispatcher is None else list(self._dispatcher.agents.values())
        letters = [(agent.letter, agent.reached) for agent in agents]
        return [
            reached
            for letter, reached in letters
            if letter is not None and letter.run == pool.run and reached < letter.stop
        ]

    def leave_run(self, pool: JobPool) -> None:
        """No more jobs come to an open run: keep nothing of it open."""
        pool.is_open = False
        self._release(pool)

    def nudge(self) -> None:
        """End a pause between rounds, from a thread that has said elsewhere what is to be done."""
        if not self._closed.is_set():
            self._waiter.nudge()

    def carry_out_requests(self) -> bool:
        """Act for a moment, if no other Master does: carry out requests, and begin no job."""
        with self._using("carry out requests"):
            if self._dispatcher is None:
                self._try_to_act()
            if self._dispatcher is None:
                return False
            self._dispatcher.hint(set())
            self._dispatcher.step(self._clock.monotonic(), send=False)
            return True

    def rest(self) -> None:
        """Stop watching for events: nothing more is waited for, and `close` becomes fast."""
        with self._polling:
            self._waiter.rest()

    def wake(self) -> None:
        """End a pause between rounds, from any thread."""
        self._waiter.wake()

    def append(self, pool: JobPool, job: Job) -> int:
        """Append one job to a run, send it if an agent is idle, and return its number.

        It is on disk when this returns. Others may append to the same run: their jobs between ours
        join the pool.
        """
        check_job(job)
        # What `_using` does, in place: a context manager costs a tenth of a small job.
        with self._guard:
            self._check_open("submit jobs")
            try:
                (number,) = self._append(pool, [job])
            except OSError as error:
                raise cannot("submit jobs", self.base.root, error) from error
            if self._dispatcher is None or self._dispatcher.is_due(pool.run):
                self._step(self._clock.monotonic())
            self._was_used()
            return number

    def extend(self, pool: JobPool, jobs: Sequence[Job]) -> list[int]:
        """Append jobs to a run, and return their numbers; see `append`."""
        with self._using("submit jobs"):
            return self._append(pool, jobs)

    def _append(
        self,
        pool: JobPool,
        jobs: Sequence[Job],
        *,
        apart: bool = False,
        batch: Batch | None = None,
        file: ParcelFile | None = None,
        called: int | None = None,
    ) -> list[int]:
        """Append jobs to the log of a run: as they are, as a deployed `batch`, or in a `file`.

        Errors call the first of them by the number `called`, if that is not its own.
        """
        info, run, known, dispatcher = pool.info, pool.run, len(pool.jobs), self._dispatcher
        records: list[Record] = []
        failure: OSError | None = None
        if info.embedded and run not in self._wanted:  # it was done, and gets more jobs
            self._want(run)
        for job in jobs:
            if job.task not in info.kernels:
                info.kernels[job.task] = source_version(info.import_folder, job.task)
        # An embedded run is wanted already.
        kept = contextlib.nullcontext() if info.embedded else appending(self._files, self.base, run)
        with kept:
            try:
                append_log = self._append_log(info)
                if batch is None:
                    guess = known if called is None else called
                    log_jobs(append_log, jobs, guess=guess, apart=apart, records=records)
                else:
                    if file is None:
                        file = append_log.write_file(pack_batch(batch, called=known))
                    records.append(append_log.name_file(len(jobs), file, task=jobs[0].task))
                    append_log.settle()
            except OSError as error:
                failure = error
        numbers = [n for record in records for n in range(record.number, record.stop)]
        jobs = jobs[: len(numbers)]  # on a full disk, only some of them are in
        self._note_parcels(pool, records)
        if numbers and numbers[-1] >= known + len(jobs):  # others appended, too
            pool.jobs += self._read_pool(info, Job).jobs[known : numbers[-1] + 1]
            for number, job in zip(numbers, jobs, strict=True):
                pool.jobs[number] = job
            pool.refresh()
        else:
            pool.jobs += jobs
        if dispatcher is None:
            with contextlib.suppress(OSError):  # without the event it is found within a second
                self._files.touch(self.base.run_folder(run))
        elif failure is not None:  # what may not be synced is read again
            dispatcher.hint({run})
        else:
            for record in records:
                dispatcher.extended(run, record)
        if failure is not None:
            raise failure
        return numbers

    def _note_parcels(self, pool: JobPool, records: Sequence[Record]) -> None:
        folder = self.base.run_folder(pool.run)
        for record in records:
            pool.logged(record)
            if record.file:
                path = f"{folder}/{record.file}"
                pool.parcels.add(record.number, record.jobs, path, record.size)

    def _append_log(self, info: RunInfo) -> AppendLogWriter:
        append_log = self._append_logs.get(info.run)
        if append_log is None:
            append_log = AppendLogWriter(self._files, self.base, info.run, durable=info.durable)
            self._append_logs[info.run] = append_log
        return append_log

    def resume(
        self, run: str | None = None, *, job: type[Job] = Job, failed: bool = False
    ) -> JobPool:
        """Resume a run, by default the newest unfinished one: only missing jobs run.

        With `failed`, its failed jobs run again, too (`JobPool.retry`), and a run that has some
        counts as unfinished.
        """
        with self._using("resume a run"):
            pool = self._resume(run or self._newest_unfinished(failed=failed), job)
        return pool.retry() if failed else pool

    def rerun(self, run: str, jobs: Sequence[int]) -> JobPool:
        """Submit some jobs of a run again, in a run of their own that is always served."""
        with self._using("run jobs again"), appending(self._files, self.base, run):
            old = self._read_pool(read_run_info(self._files, self.base, run), Job)
            copies = [old.copy_of(number) for number in jobs]
            folder = old.info.import_folder
            info = replace(
                old.info,
                run=new_run_id(),
                embedded=False,
                durable=True,
                created_at=self._clock.wall(),
                host=socket.gethostname(),
                user=user_name(),
                kernels={job.task: source_version(folder, job.task) for job in copies},
            )
            return self._begin(info, copies)

    def look(self, run: str) -> JobPool:
        """Look at a run without having it served."""
        with self._using("look at a run"):
            info = read_run_info(self._files, self.base, run)
            return self._read_pool(info, Job)

    def _resume(self, run: str, job: type[Job]) -> JobPool:
        try:
            info = read_run_info(self._files, self.base, run)
        except OtherVersionError:
            raise
        except (FileNotFoundError, BadFileError):
            known = ", ".join(list_runs(self._files, self.base)[-5:]) or "none"
            raise PostroomError(
                f"there is no run {run!r} in {self.base.root}; the newest are: {known}"
            ) from None
        if info.embedded:
            self._want(run)
        # A run that is removed while it is read would seem to be empty.
        kept = contextlib.nullcontext() if info.embedded else appending(self._files, self.base, run)
        with kept:
            pool = self._read_pool(info, job)
            self._hold(pool, resumed=True)
        if info.planned > len(pool.jobs):
            self._say(
                f"run {run} has {len(pool.jobs)} of {info.planned} jobs: its program ended while "
                "it was writing them; submit the others again"
            )
        return self._watch(pool)

    def _want(self, run: str) -> None:
        self._wanted[run] = want(self._files, self.base, run)
        self._files.touch(self.base.run_folder(run))

    def _watch(self, pool: JobPool) -> JobPool:
        self._pools[pool.run] = pool
        if self._dispatcher is not None:
            self._dispatcher.hint({pool.run})
        return pool

    def _read_pool(self, info: RunInfo, job: type[Job]) -> JobPool:
        """The pool of a run, with its jobs and results as they are on disk."""
        jobs: list[Job] = []
        pool = JobPool(self._files, self.base, info, jobs, self)
        pool.parcels.recycled = False  # its jobs refer to them
        for sheet in read_sheets(self._files, self.base, info.run, recycled=info.recycled):
            if isinstance(sheet, GoneParcel):  # recycled: its jobs are done
                jobs += [job(sheet.task or "postroom:recycled")] * sheet.jobs
                continue
            pool.parcels.add(sheet.first, sheet.count, sheet.parcel.path, sheet.nbytes)
            for number in range(sheet.first, sheet.first + sheet.count):
                made = job(sheet.task)
                made.arguments = sheet.arguments(number)
                made.name, made.settings = sheet.name(number) or None, sheet.options
                jobs.append(made)
        pool.is_stored = True
        pool.jobs = JobList(jobs)
        pool.pass_taken(read_taken(self._files, self.base, info.run).ranges)
        pool.refresh()
        pool.find_copies()
        return pool

    def _newest_unfinished(self, *, failed: bool) -> str:
        for run in reversed(list_runs(self._files, self.base)):
            asked = logged_until(self._files, self.base.append_log(run))
            with contextlib.suppress(FileNotFoundError, BadFileError):
                info = read_run_info(self._files, self.base, run)
                if info.queue:
                    continue  # it is no program's
                if asked > count_done(self._files, self.base, run):
                    return run
                if failed and self._has_failures(info):
                    return run
        what = "is unfinished or has failed jobs" if failed else "is unfinished"
        raise PostroomError(f"no run in {self.base.root} {what}: there is nothing to resume")

    def _has_failures(self, info: RunInfo) -> bool:
        """Whether jobs of a finished run failed, and were not run again with success."""
        for first in list_firsts(self._files, self.base.result_folder(info.run)):
            path = self.base.result(info.run, first)
            if FAILED_FLAG in read_trailer(path, self._files.tail(path, TRAILER_SIZE)).flags:
                return self._read_pool(info, Job).n_failed > 0
        return False

    @contextlib.contextmanager
    def _using(self, what: str) -> Iterator[None]:
        """Make a call of the user: one thread at a time, on an open Master."""
        with self._guard, explaining(what, self.base.root):
            self._check_open(what)
            try:
                yield
            finally:
                self._was_used()

    def _check_open(self, what: str) -> None:
        if self._closed.is_set():
            raise PostroomError(f"cannot {what}: this Master is closed; make a new one")

    # Working

    def step(self, now: float) -> bool:
        """One round: schedule, or wait for the lock; True when something moved."""
        with self._guard:
            self._check_open("work")
            return self._step(now)

    def _step(self, now: float) -> bool:
        try:
            if now >= self._check_base_at:
                self._check_base_at = now + CHECK_BASE_S
                self._check_base()
                for pool in [pool for pool in self._pools.values() if not pool.done]:
                    pool.catch_up()
            if self._dispatcher is None:
                self._stand_by(now)
            moved = self._dispatcher.step(now) if self._dispatcher else self._refresh(now)
            self._blocked = ""
            return moved
        except (OSError, OtherVersionError) as error:
            # Where another version acts, this one cannot know the epoch of its letters.
            self._step_down()
            self._ask_at = now + STAND_BY_S
            why = cannot("work", self.base.root, error) if isinstance(error, OSError) else error
            self._blocked = str(why)
            self._journal.log("error", f"blocked, and trying again: {error}")
        return False

    def _check_base(self) -> None:
        # An absent folder is listed as an empty one, so check it explicitly.
        if not self._files.exists(self.base.root):
            raise BaseFolderError(
                f"the base {self.base.root} was removed while it was in use: use a new one"
            )
        lock = self._lock
        if isinstance(lock, LocalLock) and not lock.is_at(self.base.master_lock):
            self._step_down()  # another Master may act on the base that is there now
            raise BaseFolderError(
                f"the base {self.base.root} was moved while it was in use, and another is in its "
                "place: make a new Master, for the one that you want"
            )

    def _stand_by(self, now: float) -> None:
        if now >= self._ask_at:
            self._ask_at = now + STAND_BY_S
            self._try_to_act()

    def _refresh(self, now: float) -> bool:
        self._refresh_is_late = now < self._refresh_at
        if self._refresh_is_late:
            return False
        pools = [pool for pool in list(self._pools.values()) if not pool.done]
        self._waiter.follow([self.base.result_folder(pool.run) for pool in pools])
        moved = [pool.refresh() for pool in pools]
        # A long listing may take at most a tenth of the time.
        took = self._clock.monotonic() - now
        self._refresh_at = now + min(max(REFRESH_S, 10 * took), took + REFRESH_AT_LEAST_S)
        return any(moved)

    def _step_down(self) -> None:
        """Stop acting. What is in memory may be incomplete: acting again begins with recovery."""
        self._dispatcher = self._old_runs = None
        self._journal.catch_up()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def let_go(self) -> bool:
        """Stop acting unless somebody waits in here, so that another Master may act."""
        with self._guard:
            if self._waits:
                return False
            self._step_down()
            return True

    def _was_used(self) -> None:
        """Let go in a while, if no other call follows."""
        self._used_at = time.monotonic()
        if self._dispatcher is None or self._is_watched:
            return
        if isinstance(self._files, LocalFiles):
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next call tries
                threading.Thread(target=self._let_go_when_idle, daemon=True).start()
                self._is_watched = True

    def _let_go_when_idle(self) -> None:
        idle = False
        while not idle and not self._closed.wait(IDLE_S / 2):
            with self._guard:
                with contextlib.suppress(OSError):
                    self._tidy(IDLE_STEP_S)
                idle = self._dispatcher is None or (
                    time.monotonic() >= self._used_at + IDLE_S and self.let_go()
                )
                self._is_watched = not idle

    def _release(self, pool: JobPool) -> None:
        """Keep nothing of a finished run open."""
        with self._guard:
            lock = self._wanted.pop(pool.run, None)
            if lock is not None:
                lock.release()
                if self._dispatcher is not None:
                    self._dispatcher.hint({pool.run})
            append_log = self._append_logs.pop(pool.run, None)
            if append_log is not None:
                append_log.close()

    @property
    def obstacle(self) -> str:
        """What has kept every job from running for some seconds; "": nothing."""
        return self._stall.said

    def _see_obstacle(self, pool: JobPool, now: float) -> None:
        if now >= self._look_at and isinstance(self._files, LocalFiles):
            self._look_at = now + CHECK_BASE_S
            self._check_base()
            self._tend_agents(pool)
            if self.acting and has_pilots(self._files, self.base):
                self._keep_pilots()
            if not self._files.exists(self.base.run_folder(pool.run)):
                raise RunRemovedError(
                    f"run {pool.run} was removed, and {len(pool) - pool.n_done} of its results "
                    "were not collected before: submit its jobs again"
                )
            reason = self._blocked or find_obstacle(self._files, self.base, acting=self.acting)
            self._stall.look(now, reason)

    def _keep_pilots(self) -> None:
        """Have their keeper live, where no standing queue sees to that."""
        from .session.sessions import Sessions

        self._pilots = self._pilots or Sessions(self.base)
        self._pilots.keep_pilots()

    def _tend_agents(self, pool: JobPool) -> None:
        """Start those of our own agents again that have died; SlotsFailed: none can start."""
        with self._guard:
            if self._own_agents is not None and not self._closed.is_set():
                if pool.n_done != self._done_before:
                    self._done_before = pool.n_done
                    self._own_agents.forgive()
                self._own_agents.step(time.monotonic())

    def _leave_wait(self) -> None:
        with self._guard:
            self._waits -= 1
            if not self._closed.is_set():
                self._was_used()

    def rounds(
        self,
        pool: JobPool,
        timeout_s: float | None = None,
        *,
        until: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """Work round by round until a pool is done (or `until`), or the time is up."""
        done = until or (lambda: pool.done)
        now = self._clock.monotonic()
        deadline = None if timeout_s is None else now + timeout_s
        with self._guard:
            self._waits += 1
        try:
            while not done():
                moved = self.step(now)
                yield
                now = self._clock.monotonic()
                if deadline is not None and now >= deadline:
                    return
                feeder = pool.source
                if moved:
                    self._waiter.expect_more(now)
                    if isinstance(feeder, Feeder):
                        feeder.came(now)
                elif isinstance(feeder, Feeder) and self._feed(pool, feeder, now):
                    now = self._clock.monotonic()
                else:
                    self._see_obstacle(pool, now)
                    self._pause(now, deadline)
                    now = self._clock.monotonic()
            if pool.done and not pool.is_open:
                self._release(pool)
        finally:
            self._leave_wait()

    def wait(
        self,
        pool: JobPool,
        timeout_s: float | None = None,
        *,
        progress: Progress = None,
    ) -> None:
        """Work until a pool is done; `progress` is called after each round, True shows a bar.

        Raises TimeoutError when the time is up.
        """
        show = self._shown(pool, progress)
        try:
            for _ in self.rounds(pool, timeout_s):
                if show is not None:
                    show(pool)
            if show is not None:
                show(pool)
        finally:
            if isinstance(show, PoolProgress):
                show.close()
        if not pool.done:
            raise TimeoutError(f"{len(pool) - pool.n_done} jobs of run {pool.run} are not done")

    def serve(self, stop: Callable[[], bool]) -> None:
        """Run the scheduler for a base until `stop` returns True."""
        with self._guard:
            self._waits += 1
        try:
            with FolderWatcher(self.base.job_pool, self._waiter.notify):
                while not stop():
                    now = self._clock.monotonic()
                    if self.step(now):
                        self._waiter.expect_more(now)
                    else:
                        self._stall.look(now, self._blocked)
                        self._pause(now, None)
        finally:
            self._leave_wait()

    def _pause(self, now: float, deadline: float | None) -> None:
        self._journal.catch_up()
        dispatcher = self._dispatcher
        at_work = dispatcher is not None and dispatcher.at_work
        seconds = 0.05 if at_work else STAND_BY_S
        if dispatcher is None and self._refresh_is_late:
            seconds = min(seconds, max(self._refresh_at - now, 0.0))
        if deadline is not None:
            seconds = min(seconds, max(deadline - now, 0.0))
        ready = dispatcher.is_answered if dispatcher is not None else _never
        if not self._polling.acquire(timeout=seconds):
            return  # another thread hears the events, and acts on them
        try:
            if self._closed.is_set():
                return
            if self._waiter.wait(seconds, ready):
                names = self._waiter.take_names()
                if dispatcher is not None:
                    dispatcher.hint(names)
                else:
                    self._at_rest.difference_update(self._at_rest if names is None else names)
                seconds = 0.0
        finally:
            self._polling.release()
        if seconds >= QUIET_PAUSE_S:  # nothing has happened for a while
            with self._guard, contextlib.suppress(OSError):
                self._tidy()

    def _try_to_act(self) -> None:
        lock = self._files.try_lock(self.base.master_lock)
        if lock is None:
            return
        self._lock = lock
        dispatcher = Dispatcher(
            self._files,
            self.base,
            clock=self._clock,
            journal=self._journal,
            deliver=self._deliver,
            sweep=self._sweep,
            sessions=self._sessions,
            at_rest=self._at_rest,
        )
        self._waiter.follow([])
        # Before the first letter: the next Master's epoch must be higher than this one.
        self._write_info(dispatcher.epoch)
        self._dispatcher = dispatcher
        self._old_runs = OldRuns(
            self._files,
            self.base,
            clock=self._clock,
            journal=self._journal,
            retention=self.retention,
            is_awaited=dispatcher.is_awaited,
        )
        self._journal.event("acts", epoch=dispatcher.epoch)
        for pool in list(self._pools.values()):
            pool.refresh()

    def retention(self) -> Retention:
        """How long results of runs that are over stay while this Master acts."""
        _, disk_bytes = self._files.disk_space(self.base.root)
        return retention_of(self._files, self.base, self._keep, disk_bytes=disk_bytes)

    def _sweep(self, agent_id: str) -> int:
        if not isinstance(self._files, LocalFiles):
            return 0  # in a simulation there are no processes
        from .system import cgroups
        from .system.process_tree import mark_of, sweep

        mark = mark_of(self.base.root, agent_id)
        info = read_agent_info(self._files, self.base, agent_id)
        ended = sweep(mark, held=self.base.agent_tree(agent_id))
        return ended + (cgroups.end(info.cgroup, mark) if info is not None else 0)

    def _write_info(self, epoch: int) -> None:
        me = myself()
        host = socket.gethostname()
        info = MasterInfo(epoch, me.pid, host, me.started_ticks, me.boot_id, me.pid_namespace)
        replace_file(self._files, self.base.temporary(), self.base.master_info, info.encode())

    def _deliver(self, run: str, sheet: OutcomeSheet) -> None:
        pool = self._pools.get(run)
        if pool is not None:
            pool.deliver(sheet)


def _may_find_room(error: OSError, pool: JobPool) -> bool:
    """Whether the disk is full, and jobs of this pool that are on their way will make room."""
    return error.errno == errno.ENOSPC and pool.n_done < len(pool.jobs)


def _tell(text: str) -> None:
    print(f"postroom: {printable(text)}", file=sys.stderr, flush=True)


def _never() -> bool:
    return False
