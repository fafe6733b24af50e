"""joblib: `register()`, then `joblib.parallel_config("postroom")`, also for scikit-learn.

    from postroom.adapters.joblib import register
    register()
    with joblib.parallel_config("postroom"):          # n_jobs: by default one for each GPU
        GridSearchCV(model, grid).fit(X, y)           # each fit runs on a GPU of its own

Each call, or batch of short calls, runs in an agent. Arrays above `max_nbytes` are written once and
memory-mapped by the agents, by joblib's own reducers. Agents live as long as the `with` block; a
`Parallel(backend="postroom")` without one has its own, which end with it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pickle import PicklingError
from typing import Any

import joblib
from joblib._memmapping_reducer import (
    TemporaryResourcesManager,
    get_memmapping_reducers,
)
from joblib._parallel_backends import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)
from joblib.externals.loky.backend.reduction import dumps, loads

from ..functions.executor import Executor
from ..session.slot_plan import Agents
from ..system.process_tree import MARK

INITIALIZER = ("initializer", "initargs")
REDUCED = ("max_nbytes", "mmap_mode", "verbose", "prewarm")


def register() -> None:
    """Make "postroom" known to joblib as a backend."""
    joblib.register_parallel_backend("postroom", PostroomBackend)


class PostroomBackend(AutoBatchingMixin, ParallelBackendBase):
    """Runs the batches of joblib in agents."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        base: str | os.PathLike[str] | None = None,
        agents: Agents | None = None,
        gpus: int | None = None,
        **options: Any,
    ) -> None:
        """`base`, `agents`, `gpus` and other options are those of `postroom.Executor`."""
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._options: dict[str, Any] = {"base": base, "gpus": gpus, **options}
        self._agents = agents
        self._executor: Executor | None = None
        self._made_for: tuple[int, dict[str, Any]] | None = None
        self._workers: JoblibWorkers | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many calls run at once: at most one in each agent."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or MARK in os.environ:  # inside an agent: it has one GPU
            return 1
        slots = Executor(agents=self._agents, **self._options).n_agents  # which starts nothing
        return max(slots + 1 + n_jobs, 1) if n_jobs < 0 else min(n_jobs, slots)

    def configure(
        self,
        n_jobs: int | None = 1,
        parallel: Any = None,
        prefer: str | None = None,
        require: str | None = None,
        **options: Any,
    ) -> int:
        """Have agents for this many calls at once; return their number."""
        count = self.effective_n_jobs(n_jobs)
        if n_jobs == 1 or MARK in os.environ:  # asked for no other process, or already in an agent
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        initializer = {name: value for name, value in options.items() if name in INITIALIZER}
        # It owns us: a reference would keep both, with the agents, until a collection of garbage.
        self.parallel = weakref.proxy(parallel)
        files = ArrayFiles(options.get("temp_folder"), parallel._id)
        reducers = get_memmapping_reducers(
            # The agents do not share joblib's tracker of resources: this process removes the files.
            unlink_on_gc_collect=False,
            temp_folder_resolver=files.folder,
            **{name: value for name, value in options.items() if name in REDUCED},
        )[0]
        self._workers = JoblibWorkers(
            self._executor_for(count, initializer),
            self._prepare_worker_env(count),
            reducers,
            files,
        )
        return max(count, 2)  # with 1, joblib would make the calls in this process, without a GPU

    def _executor_for(self, count: int, initializer: dict[str, Any]) -> Executor:
        """Keep the agents of the call before, if they are what this one needs."""
        if self._executor is not None:
            if self._made_for == (count, initializer):
                return self._executor
            self._executor.shutdown()
        # Agents that live in a base are used as they are, and named GPUs are those.
        fixed = self._options["base"] is not None or isinstance(self._agents, str | list | tuple)
        agents = self._agents if fixed else count
        self._executor = Executor(agents=agents, **self._options, **initializer)
        self._made_for = count, initializer
        return self._executor

    def submit(self, func: Callable[[], Any], callback: Any = None) -> Future[Any]:
        """Have a batch run in an agent."""
        assert self._workers is not None
        future = self._workers.submit(func)
        if callback is not None:
            # Told once and dropped: a future keeps its callbacks, and this one keeps the future.
            told = [callback]
            future.add_done_callback(lambda done: told.pop()(done))
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return the results of a batch, or raise its error."""
        return loads(out.result())

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End what runs and cancel what waits; the agents stay ready."""
        if self._workers is not None:
            self._workers.kill()
            self._workers = replace(self._workers, running=set()) if ensure_ready else None

    def terminate(self) -> None:
        """Remove the files of large arrays; the agents stay ready for the next call."""
        if self._workers is not None:
            self._workers.files.remove()
            self._workers = None
        self.reset_batch_stats()


class ArrayFiles:
    """The folder of the large arrays of one call; joblib knows of it from the first array on."""

    def __init__(self, root: str | None, context: str) -> None:
        self._root = root
        self._context = context
        self._files: TemporaryResourcesManager | None = None

    def folder(self) -> str:
        """Return the folder for an array."""
        if self._files is None:
            self._files = TemporaryResourcesManager(self._root, self._context)
        return str(self._files.resolve_temp_folder_name())

    def remove(self) -> None:
        """Remove the folder with all arrays."""
        if self._files is not None:
            self._files._clean_temporary_resources(force=False, allow_non_empty=True)
            self._files = None


@dataclass(frozen=True)
class JoblibWorkers:
    """The agents, as one call of `Parallel` uses them."""

    executor: Executor
    environment: dict[str, str]  # how many threads the libraries of a worker may use
    reducers: Any
    files: ArrayFiles
    running: set[Future[Any]] = field(default_factory=set)

    def submit(self, func: Callable[[], Any]) -> Future[Any]:
        """Have a batch run; what cannot be pickled is the error of its future.

        joblib dispatches in callbacks, too, where an error would be lost, and all would wait.
        """
        future: Future[Any]
        try:
            try:
                batch = bytes(dumps(func, reducers=self.reducers))
            except Exception as error:
                raise PicklingError(f"could not pickle the task to send: {error}") from error
            future = self.executor.submit(run_batch, batch, self.environment)
        except Exception as error:
            future = Future()
            future.set_exception(error)
        self.running.add(future)
        future.add_done_callback(self.running.discard)
        return future

    def kill(self) -> None:
        """End what runs and cancel what waits."""
        for future in list(self.running):
            getattr(future, "kill", future.cancel)()


def run_batch(batch: bytes, environment: dict[str, str]) -> bytes:
    """Run a batch, in an agent; arrays that are mapped from a file come back as copies."""
    os.environ.update(environment)  # the agent puts it back, for its next call
    with _threads(environment):
        results = loads(batch)()
    return bytes(dumps(results, reducers=get_memmapping_reducers()[1]))


def _threads(environment: dict[str, str]) -> AbstractContextManager[Any]:
    """Limit the threads of libraries that are loaded already: they do not read variables again."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    blas, openmp = environment["OPENBLAS_NUM_THREADS"], environment["OMP_NUM_THREADS"]
    limits: AbstractContextManager[Any] = threadpool_limits(
        {"blas": int(blas), "openmp": int(openmp)}
    )
    return limits
