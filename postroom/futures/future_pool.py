"""Futures for jobs: one thread drives one Master, and serves any number of threads.

    submit (any thread) ──► waiting ──thread: append──► pending ──result──► the future is set
                               │                           │
                            cancel                 cancel, while no agent has it; kill

While nothing is pending, the thread sleeps and the Master lets go of its base. Jobs are appended to
a run, each in a letter of its own: no call waits behind another while an agent is idle. After some
thousand jobs the next ones go into a new run, so that nothing grows for ever.

Futures are set by the thread, or cancelled by the caller, never while a lock is held: a callback
may do what it likes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from ..calls.broken_pool import BrokenPool, InitializerFailed
from ..calls.call import CALL, open_exception, open_result
from ..errors import PostroomError, RemoteTraceback
from ..jobs import Finished, Job, JobPool
from ..parcel.sheets import Failure, Outcome
from ..text.safe_text import printable

# The most jobs of one run; the next go into a new one.
RUN_JOBS = 4000
RUN_BYTES = 256 << 20
LOGGER = logging.getLogger("concurrent.futures")

# How often sessions are looked after, and output of jobs that run is shown.
STEP_S = 0.1


class CallMaster(Protocol):
    """What the thread needs of a Master."""

    def extend(self, pool: JobPool, jobs: Sequence[Job], /) -> list[int]: ...

    def rounds(
        self,
        pool: JobPool,
        timeout_s: float | None = None,
        *,
        until: Callable[[], bool] | None = None,
    ) -> Iterator[None]: ...

    def withdraw(self, pool: JobPool, number: int) -> bool: ...

    def cancel(self, pool: JobPool, jobs: Collection[int], reason: str, /) -> bool: ...

    def stop_jobs(self, pool: JobPool, numbers: Collection[int], by: str) -> None: ...

    def jobs_begun(self, pool: JobPool) -> list[int]: ...

    def nudge(self) -> None: ...

    def leave_run(self, pool: JobPool) -> None: ...


class Keeper(Protocol):
    """Has sessions for the jobs that are pending."""

    def step(self, now: float, pending: int) -> None:
        """Start what is missing; PostroomError: none can be had."""

    def job_ended(self) -> None:
        """A job has an outcome: the sessions work."""

    def close(self, *, now: bool) -> None:
        """End the sessions that were started here, after their jobs or now."""


class JobFuture(Future[Any]):
    """The result of one job, as a standard future."""

    def __init__(self, futures: FuturePool, job: Job) -> None:
        super().__init__()
        self._futures = futures
        self.job: Job | None = job  # until it is appended
        self._run: _RunFutures | None = None
        self._number = -1
        self._withdrawn = False  # cancelled before its number was known

    @property
    def job_id(self) -> str:
        """The id of the job, as listings show it; "" until it is written."""
        return "" if self._run is None else f"{self._run.pool.run}/{self._number}"

    def cancel(self) -> bool:
        """Cancel the job if no agent has begun it; True if that worked."""
        if self.done() or self.running() or not self._futures.take_back(self):
            return self.cancelled()
        return super().cancel()

    def kill(self) -> None:
        """Cancel the job, or end it if it runs: its worker is killed, and starts again."""
        if not self.cancel() and not self.done():
            self._futures.stop(self)


class _RunFutures:
    """One run, and the futures of its jobs."""

    def __init__(self, pool: JobPool) -> None:
        self.pool = pool
        self.pending: dict[int, JobFuture] = {}
        self.running: set[int] = set()
        self.nbytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.pool.jobs) >= RUN_JOBS or self.nbytes >= RUN_BYTES


class FuturePool:
    """Runs jobs through one Master, and sets their futures."""

    def __init__(
        self,
        master: CallMaster,
        open_run: Callable[[], JobPool],
        *,
        keeper: Keeper | None = None,
        over: Callable[[JobPool], None] | None = None,
        ended: Callable[[], None] | None = None,
        show: Callable[[JobPool], None] | None = None,
        progress: Callable[[FuturePool], None] | None = None,
    ) -> None:
        """`open_run` makes an empty run; `over` is told of one that is done and gets no more jobs.

        `show` shows what the jobs of a run have printed, `progress` how far they all are. `ended`
        is called by the thread when all is over.
        """
        self._master = master
        self._open_run = open_run
        self._keeper = keeper
        self._over = over
        self._ended = ended
        self._show = show
        self._progress = progress
        self.n_done = self.n_failed = 0  # since nothing was pending
        self._waiting: deque[JobFuture] = deque()
        self._runs: list[_RunFutures] = []  # the last takes new jobs
        self._step_at = 0.0
        # Collecting garbage may close us in a thread that has it: the owner's Executor is gone.
        self._lock = threading.RLock()
        self._wake = threading.Lock()  # free: there is something to do
        self._wake.acquire()
        self._parked = False
        self._closing = False
        self._cancelling = False
        self._stopping = False
        self._pid = os.getpid()
        self.broken: BaseException | None = None
        self.gone = threading.Event()
        self._started = False
        self._is_leaving = False  # the Master is closed, or soon is

    # For any thread

    def submit(self, job: Job) -> JobFuture:
        """Have a job run; its future is returned at once."""
        future = JobFuture(self, job)
        if os.getpid() != self._pid:  # before any lock: its holder may not exist in a fork
            raise RuntimeError("it was made in another process: make a new one after a fork")
        with self._lock:
            if self.broken is not None:
                raise _because(self.broken)
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            first = not self._waiting
            self._waiting.append(future)
            if not self._started:
                self._started = True
                threading.Thread(target=self._live, name="postroom calls", daemon=True).start()
        if first:
            self._call_thread()
        return future

    def _call_thread(self) -> None:
        with self._lock:
            parked, self._parked = self._parked, False
        if parked:
            self._wake.release()
        else:
            self._nudge()

    def _nudge(self) -> None:
        with self._lock:  # else its descriptor may be closed meanwhile, and be a file of the user's
            if not self._is_leaving:
                self._master.nudge()

    def take_back(self, future: JobFuture) -> bool:
        """Take back a job that no agent has begun; False: it is too late."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            run = future._run
            if run is None:
                future._withdrawn = True
                return True
        taken = False
        with self._unless_leaving():
            taken = self._master.withdraw(run.pool, future._number)
        self._nudge()  # waiters are told by the thread
        return taken

    def stop(self, future: JobFuture) -> None:
        """End a job that runs."""
        run = future._run
        if run is not None:
            with self._unless_leaving():
                self._master.stop_jobs(run.pool, [future._number], "kill()")
            self._nudge()

    @contextlib.contextmanager
    def _unless_leaving(self) -> Iterator[None]:
        """Where the Master is closed meanwhile, all futures are done."""
        try:
            yield
        except PostroomError:
            if not self._is_leaving:
                raise

    def close(self, *, cancel: bool = False, now: bool = False) -> None:
        """Take no more jobs; cancel those that wait, if asked; `now`: end those that run, too.

        The thread ends when the others are done: see `gone`.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closing = True
            self._cancelling |= cancel or now
            self._stopping |= now
            if not self._started:
                self.gone.set()
        if not self.gone.is_set():
            self._call_thread()

    def cancel_waiting(self) -> None:
        """Cancel the jobs that wait; those that run go on, and new ones may come."""
        if os.getpid() == self._pid and not self.gone.is_set() and self.n_pending:
            self._cancelling = True
            self._call_thread()

    @property
    def n_pending(self) -> int:
        """How many jobs have no outcome yet."""
        return len(self._waiting) + sum(len(run.pending) for run in self._runs)

    @property
    def n_running(self) -> int:
        """How many of them run."""
        return sum(len(run.running) for run in self._runs)

    # The thread

    def _live(self) -> None:
        try:
            while not self._parks():
                self._serve()
        except BaseException as error:
            self._give_up(error)
        finally:
            with self._lock:
                self._is_leaving = True
            if self._keeper is not None:
                with contextlib.suppress(Exception):
                    self._keeper.close(now=self._stopping or self.broken is not None)
            if self._ended is not None:
                with contextlib.suppress(Exception):
                    self._ended()
            self._runs.clear()  # which hold files open, for as long as anybody has this
            self.gone.set()

    def _parks(self) -> bool:
        """Sleep while there is nothing to do; True: it is over."""
        while True:
            with self._lock:
                if self._waiting or any(run.pending for run in self._runs):
                    return False
                if self._closing:
                    return True
                self._parked = True
            self._wake.acquire()

    def _serve(self) -> None:
        self._append_waiting()
        if not self._runs:
            return
        newest = self._runs[-1].pool
        for _ in self._master.rounds(newest, until=self._is_idle):
            if self._cancelling:
                self._cancel_all()
            self._settle()
            now = time.monotonic()
            if now >= self._step_at:
                self._step_at = now + STEP_S
                self._look_after(now)
            if newest is not self._runs[-1].pool:
                return
        self._show_progress()
        self.n_done = self.n_failed = 0

    def _show_progress(self) -> None:
        if self._progress is not None:
            self._progress(self)

    def _cancel_all(self) -> None:
        """Cancel what waits, and if asked, end what runs. Idle agents have got their jobs."""
        for run in self._runs:
            numbers = list(run.pending)
            if self._stopping:
                self._master.stop_jobs(run.pool, numbers, "Ctrl-C")
            elif not self._master.cancel(run.pool, numbers, "cancelled by its program"):
                for number in numbers:
                    self._master.withdraw(run.pool, number)
        self._cancelling = False

    def _look_after(self, now: float) -> None:
        if self._keeper is not None:
            self._keeper.step(now, self.n_pending)
        if self._show is not None:
            for run in self._runs:
                self._show(run.pool)
        self._show_progress()

    def _is_idle(self) -> bool:
        """Before each round: append what waits; True: nothing is pending."""
        if self._waiting:
            self._append_waiting()
        return not any(run.pending for run in self._runs)

    def _append_waiting(self) -> None:
        """Write what waits into the newest run."""
        while self._waiting:
            if not self._runs or self._runs[-1].is_full:
                self._runs.append(_RunFutures(self._open_run()))
            run = self._runs[-1]
            room = max(RUN_JOBS - len(run.pool.jobs), 1)
            batch: list[JobFuture] = []
            with self._lock:
                while self._waiting and len(batch) < room:
                    batch.append(self._waiting.popleft())
            for future in batch:
                if future._withdrawn:
                    Future.cancel(future)
                    future.set_running_or_notify_cancel()
            self._append(run, [future for future in batch if not future._withdrawn])

    def _append(self, run: _RunFutures, batch: list[JobFuture]) -> None:
        """Append jobs to a run that nobody else appends to; those that cannot travel fail."""
        known = len(run.pool.jobs)
        failure: BaseException | None = None
        try:
            self._master.extend(run.pool, [one.job for one in batch if one.job])
        except PostroomError as error:
            failure = error
        taken = len(run.pool.jobs) - known  # on a full disk, only some of them are in
        with self._lock:
            for number, future in enumerate(batch[:taken], known):
                future.job, future._run, future._number = None, run, number
                run.pending[number] = future
        for number, future in enumerate(batch[:taken], known):
            if future._withdrawn:
                self._master.withdraw(run.pool, number)
        if failure is None:
            return
        if len(batch) - taken == 1:
            _fail(batch[-1], failure)
            return
        for future in batch[taken:]:
            self._append(run, [future])

    def _settle(self) -> None:
        """Set the futures of jobs that have begun, or have an outcome."""
        for run in self._runs:
            if not run.pending:
                continue
            arrived = run.pool.take_arrived()
            if arrived:
                if self._show is not None:
                    self._show(run.pool)
                if self._keeper is not None:
                    self._keeper.job_ended()
                for number in arrived:
                    self._end(run, number)
            for number in self._master.jobs_begun(run.pool):
                if number not in run.running and number in run.pending:
                    run.running.add(number)
                    run.pending[number].set_running_or_notify_cancel()
        if len(self._runs) > 1 and any(not run.pending for run in self._runs[:-1]):
            self._leave_runs()

    def _leave_runs(self) -> None:
        for run in self._runs[:-1]:
            if not run.pending:
                self._runs.remove(run)
                self._master.leave_run(run.pool)
                if self._over is not None:
                    self._over(run.pool)

    def _end(self, run: _RunFutures, number: int) -> None:
        future = run.pending.pop(number, None)
        finished = run.pool[number] if future is not None else None
        ran = number in run.running
        run.running.discard(number)
        self.n_done += 1
        if future is None or finished is None:
            return
        if finished.outcome is Outcome.CANCELLED and not ran:
            Future.cancel(future)
        if not ran and not future.set_running_or_notify_cancel():
            run.pool.release(number)
            return
        result, error = _outcome_of(finished)
        run.nbytes += run.pool.release(number)
        if isinstance(error, InitializerFailed):
            run.pending[number] = future
            run.running.add(number)
            raise error
        if error is not None:
            self.n_failed += 1
            future.set_exception(error)
        else:
            future.set_result(result)

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            self.broken = error
            futures = [*self._waiting, *(f for run in self._runs for f in run.pending.values())]
            pending = [(run, list(run.pending)) for run in self._runs]
            self._waiting.clear()
            for run in self._runs:
                run.pending.clear()
        if isinstance(error, InitializerFailed):
            LOGGER.critical("Exception in initializer: %s", error.__cause__ or error)
        for future in futures:
            _fail(future, _because(error))
        for run, numbers in pending:  # nobody waits for them any more
            with contextlib.suppress(PostroomError):
                self._master.cancel(run.pool, numbers, "its program gave up")
                self._master.leave_run(run.pool)


def _fail(future: JobFuture, error: BaseException) -> None:
    if future.running() or future.set_running_or_notify_cancel():
        future.set_exception(error)


def _because(error: BaseException) -> BrokenPool:
    """The error for a call that cannot be made any more."""
    broken = BrokenPool(f"no more calls can be made: {error}")
    broken.__cause__ = error
    return broken


def _outcome_of(finished: Finished) -> tuple[Any, BaseException | None]:
    """What a job returned, or the error for its future."""
    failure = finished.done.failure
    if failure is None:
        try:
            value = finished.result()
            return (open_result(value) if finished.job.task == CALL else value), None
        except BaseException as error:  # unpickling, and `collect`, run code of the user
            return None, error
    return None, error_of(finished, failure)


def error_of(finished: Finished, failure: Failure) -> BaseException:
    """The error of a job that failed: of a call the exception itself, else JobFailed."""
    said = finished.error
    assert said is not None
    if failure.outcome is Outcome.LOST:
        return BrokenPool(str(said))
    own = open_exception(failure.exception)
    if own is None:
        return said
    own.__cause__ = RemoteTraceback(printable(failure.traceback.expandtabs()))
    return own
