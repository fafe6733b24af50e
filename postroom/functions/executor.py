"""`postroom.Executor`: the standard interface for calls in other processes, each on its own GPU.

with postroom.Executor() as executor:            an agent for each GPU, or each core of the CPU
    future = executor.submit(train, lr=0.1)
    losses = list(executor.map(train, [0.1, 0.2]))

It is a `concurrent.futures.Executor`. Functions and arguments are whatever cloudpickle can carry:
lambdas, closures, functions of this script or notebook. Where no base is named, the Executor has a
private one, which is removed with its agents when the Executor is shut down, or when this process
ends, however it ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, TypeVar

from ..calls.call import CALL, context_here, pack_call
from ..futures.calls_progress import CallsProgress
from ..futures.future_pool import FuturePool, JobFuture
from ..futures.in_order import results_in_order
from ..futures.program_end import wait_at_end
from ..jobs import Job, JobPool
from ..master import Master
from ..session.slot_plan import Agents, plan_slots
from ..store.base import create_base
from ..store.files import LocalFiles
from ..store.kernel_output import OutputFollower
from ..store.pilot_records import read_groups
from ..store.removal import remove_run
from ..store.snapshot import living_agents
from .session_keeper import SessionKeeper, quiet

R = TypeVar("R")

# What a session of an Executor imports at its start: functions import what they need themselves.
PRELOAD = "numpy,cloudpickle"


class Executor(futures.Executor):
    """Makes calls in agents: processes that each have a GPU of their own, or run on the CPU."""

    def __init__(
        self,
        base: str | os.PathLike[str] | None = None,
        agents: Agents | None = None,
        *,
        gpus: int | None = None,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        max_tasks_per_child: int | None = None,
        preload: str = PRELOAD,
        show_output: bool = True,
        progress: bool = False,
    ) -> None:
        """Nothing is started before the first call.

        `base`: the base folder; by default a private one. Agents that live there are used.
        `agents`: how many agents to start, "all" for one on each GPU, or GPUs such as "0,1" or
        [0, 1]. By default one for each GPU; without GPUs one for each core. `max_workers` is
        another name for a number of agents.
        `gpus`: how many GPUs each agent has; 0: none.
        `initializer`, `initargs`: called once in each worker, before its first call.
        `max_tasks_per_child`: replace a worker after that many calls.
        `preload`: modules that an agent imports when it starts, such as "torch".
        `show_output`: print here what the calls print.
        `progress`: show a line, or in a notebook a bar, that says how far the calls are.
        """
        agents = max_workers if agents is None else agents
        if isinstance(agents, int) and agents <= 0:
            raise ValueError("max_workers must be greater than 0")
        if max_tasks_per_child is not None and max_tasks_per_child <= 0:
            raise ValueError("max_tasks_per_child must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._base = None if base is None else os.fspath(base)
        self._agents = agents
        self._gpus = gpus
        self._context = context_here(initializer, initargs, max_tasks_per_child)
        self._preload = preload
        self._show_output = show_output
        self._progress = CallsProgress() if progress else None
        self._making = threading.Lock()
        self._pool: FuturePool | None = None
        self._pid = os.getpid()
        self._is_shut = False

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> futures.Future[R]:
        """Have a call made; returns its future at once."""
        pool = self._pool or self._start()
        try:
            job = Job(CALL, **pack_call(fn, args, kwargs))
        except BaseException as error:
            # As others do: what cannot be pickled is the error of its future.
            failed = JobFuture(pool, Job(CALL))
            failed.set_exception(error)
            return failed
        job.name = getattr(fn, "__qualname__", None)
        return pool.submit(job)

    def map(
        self,
        fn: Callable[..., R],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """Call a function with each tuple of arguments; yield the results in order.

        `chunksize` calls travel together. With `buffersize`, at most that many are under way, and
        the iterables may be endless; without it, all are submitted at once.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        deadline = None if timeout is None else time.monotonic() + timeout
        calls = zip(*iterables, strict=False)
        if chunksize == 1:
            each = (self.submit(fn, *args) for args in calls)
            return results_in_order(each, buffersize, deadline)
        chunks = iter(lambda: tuple(itertools.islice(calls, chunksize)), ())
        lists = (self.submit(call_chunk, fn, chunk) for chunk in chunks)
        results: Iterator[list[R]] = results_in_order(lists, buffersize, deadline)
        return itertools.chain.from_iterable(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; end the agents that were started here when the others are done."""
        with self._making:
            self._is_shut = True
            pool = self._pool
        if pool is not None and os.getpid() == self._pid:
            pool.close(cancel=cancel_futures)
            if wait:
                pool.gone.wait()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After Ctrl-C, or an interrupted cell, the user does not want to wait for the rest.
        if self._pool is not None and kind is not None and issubclass(kind, KeyboardInterrupt):
            self._pool.close(now=True)
        self.shutdown()

    @property
    def n_agents(self) -> int:
        """How many calls run at once: one in each agent."""
        if self._base is not None and self._agents is None:
            base, files = create_base(self._base), LocalFiles()
            groups = read_groups(files, base).groups.values()
            pilots = sum(group.most for group in groups if not group.drained)
            if living := max(len(living_agents(files, base)), pilots):
                return living
        return len(plan_slots(self._agents, self._gpus))

    @property
    def _max_workers(self) -> int:
        """The same, as dask asks the executors of the standard library."""
        return self.n_agents

    @property
    def _broken(self) -> bool:
        """Whether no more calls can be made, as other executors call it."""
        return self._pool is not None and self._pool.broken is not None

    def _start(self) -> FuturePool:
        with self._making:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._pool is None:
                self._pool = wait_at_end(self._make_pool)
                weakref.finalize(self, self._pool.close).atexit = False
            return self._pool

    def _make_pool(self) -> FuturePool:
        private = self._base is None
        folder = tempfile.mkdtemp(prefix="postroom-") if self._base is None else self._base
        master = Master(folder, say=quiet if private else None)
        agents, gpus, context = self._agents, self._gpus, self._context
        keeper = SessionKeeper(
            master.base,
            lambda: plan_slots(agents, gpus),
            always=private or agents is not None,
            options={
                "preload": self._preload,
                "threads": 1,
                **({"private": True} if private else {}),
            },
            say=quiet,
        )
        shown: dict[str, OutputFollower] = {}

        def open_run() -> JobPool:
            return master.open(context._asdict(), project="calls")

        def show(pool: JobPool) -> None:
            if pool.run not in shown:
                shown[pool.run] = OutputFollower(master.base, pool.run)
            for is_error, text in shown[pool.run].read():
                print_here(text, is_error=is_error)

        def over(pool: JobPool) -> None:
            shown.pop(pool.run, None)
            if private:
                remove_run(LocalFiles(), master.base, pool.run, jobs=len(pool.jobs))

        def ended() -> None:
            master.close()
            if private:
                LocalFiles().remove_tree(folder)

        return FuturePool(
            master,
            open_run,
            keeper=keeper,
            over=over,
            ended=ended,
            show=show if self._show_output else None,
            progress=self._progress,
        )


def call_chunk(fn: Callable[..., Any], chunk: tuple[tuple[Any, ...], ...]) -> list[Any]:
    """Make several calls, in an agent."""
    return [fn(*args) for args in chunk]


def print_here(text: str, *, is_error: bool) -> None:
    """Print what a call has printed."""
    stream = sys.stderr if is_error else sys.stdout
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or None
        stream.write(text)
        stream.flush()
