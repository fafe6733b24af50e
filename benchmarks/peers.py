"""The peers, each through its normal interface, with two workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import kernels
from .lines import Figures, Sizes
from .systems import WORKERS, Kernel, cpu_share, measure

# What lies idle: long enough for start-up work to be over.
SETTLE_S = 0.5

Jobs = Sequence[dict[str, Any]]


class FutureSystem:
    """Whatever speaks `submit(function, ...).result()`."""

    def __init__(self, submit: Callable[..., Any]) -> None:
        self._submit = submit

    def call(self, kernel: Kernel, **arguments: Any) -> Any:
        return self._submit(kernel, **arguments).result()

    def each(self, kernel: Kernel, jobs: Iterable[dict[str, Any]]) -> list[Any]:
        futures = [self._submit(kernel, **arguments) for arguments in jobs]
        return [future.result() for future in futures]

    def batch(self, kernel: Kernel, jobs: Jobs) -> list[Any] | None:
        return None

    def stream(self, kernel: Kernel, jobs: Jobs) -> list[Any]:
        return self.each(kernel, jobs)

    def share(self, kernel: Kernel, data: Any, jobs: Jobs) -> list[Any] | None:
        return None


# ProcessPoolExecutor hands data to all workers by an initializer, which puts it into a global.
_shared: Any = None


def _keep(data: Any) -> None:
    global _shared
    _shared = data


def _look_up_kept(k: int) -> Any:
    return kernels.look_up(_shared, k)


def _double_arguments(arguments: dict[str, Any]) -> Any:
    return kernels.double(**arguments)


class _PoolSystem(FutureSystem):
    def __init__(self, pool: Any) -> None:
        super().__init__(pool.submit)
        self._pool = pool

    def batch(self, kernel: Kernel, jobs: Jobs) -> list[Any]:
        return list(self._pool.map(_double_arguments, jobs, chunksize=64))

    def share(self, kernel: Kernel, data: Any, jobs: Jobs) -> list[Any]:
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(WORKERS, initializer=_keep, initargs=(data,)) as pool:
            futures = [pool.submit(_look_up_kept, job["k"]) for job in jobs]
            return [future.result() for future in futures]


class _JoblibSystem(FutureSystem):
    def batch(self, kernel: Kernel, jobs: Jobs) -> list[Any]:
        from joblib import Parallel, delayed

        return list(Parallel(n_jobs=WORKERS)(delayed(kernel)(**job) for job in jobs))

    def share(self, kernel: Kernel, data: Any, jobs: Jobs) -> list[Any]:
        from joblib import Parallel, delayed

        return list(Parallel(n_jobs=WORKERS)(delayed(kernel)(data, **job) for job in jobs))


class _RayTasks:
    def call(self, kernel: Kernel, **arguments: Any) -> Any:
        import ray

        return ray.get(self._remote(kernel).remote(**arguments))

    def each(self, kernel: Kernel, jobs: Iterable[dict[str, Any]]) -> list[Any]:
        import ray

        remote = self._remote(kernel)
        return list(ray.get([remote.remote(**arguments) for arguments in jobs]))

    def batch(self, kernel: Kernel, jobs: Jobs) -> list[Any] | None:
        return None

    def stream(self, kernel: Kernel, jobs: Jobs) -> list[Any]:
        return self.each(kernel, jobs)

    def share(self, kernel: Kernel, data: Any, jobs: Jobs) -> list[Any]:
        import ray

        reference, remote = ray.put(data), self._remote(kernel)
        return list(ray.get([remote.remote(reference, **job) for job in jobs]))

    def _remote(self, kernel: Kernel) -> Any:
        import ray

        known = self.__dict__.setdefault("_known", {})
        if kernel not in known:
            known[kernel] = ray.remote(kernel)
        return known[kernel]


class _RayActors(_RayTasks):
    def __init__(self) -> None:
        import ray

        @ray.remote(num_cpus=1)
        class Actor:
            def work(self, kernel: Kernel, *data: Any, **arguments: Any) -> Any:
                return kernel(*data, **arguments)

        self._actors = [Actor.remote() for _ in range(WORKERS)]
        self._turn = 0

    def _remote(self, kernel: Kernel) -> Any:
        class Call:
            @staticmethod
            def remote(*data: Any, **arguments: Any) -> Any:
                self._turn += 1
                actor = self._actors[self._turn % WORKERS]
                return actor.work.remote(kernel, *data, **arguments)

        return Call


class _DaskSystem(FutureSystem):
    def __init__(self, client: Any) -> None:
        super().__init__(lambda kernel, **arguments: client.submit(kernel, **arguments, pure=False))
        self._client = client

    def each(self, kernel: Kernel, jobs: Iterable[dict[str, Any]]) -> list[Any]:
        futures = [self._submit(kernel, **arguments) for arguments in jobs]
        return list(self._client.gather(futures))

    def batch(self, kernel: Kernel, jobs: Jobs) -> list[Any]:
        return list(self._client.gather(self._client.map(_double_arguments, jobs, pure=False)))

    def share(self, kernel: Kernel, data: Any, jobs: Jobs) -> list[Any]:
        place = self._client.scatter(data, broadcast=True)
        return list(
            self._client.gather(
                [self._client.submit(kernel, place, **job, pure=False) for job in jobs]
            )
        )


class _ExecutorlibSystem(FutureSystem):
    def share(self, kernel: Kernel, data: Any, jobs: Jobs) -> list[Any]:
        from executorlib import SingleNodeExecutor

        with SingleNodeExecutor(
            max_workers=WORKERS, block_allocation=True, init_function=lambda: {"shared": data}
        ) as pool:
            futures = [pool.submit(kernel, **job) for job in jobs]
            return [future.result() for future in futures]


def _measure_all(name: str, system: Any, sizes: Sizes) -> Figures:
    figures = measure(name, system, sizes)
    # Told beside ours; for what most of them use, a short look is enough.
    cpu_share(SETTLE_S)
    figures["idle"] = {name: 100 * cpu_share(sizes.idle_s / 4)}
    return figures


def process_pool(sizes: Sizes) -> Figures:
    """Python's own."""
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(WORKERS) as pool:
        return _measure_all("ProcessPoolExecutor", _PoolSystem(pool), sizes)


def loky(sizes: Sizes) -> Figures:
    """What joblib runs on."""
    # The package, not the copy inside joblib, whose executor is joblib's own.
    from loky import get_reusable_executor

    with get_reusable_executor(max_workers=WORKERS, timeout=None) as pool:
        return _measure_all("loky", _JoblibSystem(pool.submit), sizes)


@contextlib.contextmanager
def _ray() -> Iterator[None]:
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=2 << 30,
        # Its workers make way for others by default, which nobody else here does.
        _system_config={"worker_niceness": 0},
    )
    try:
        yield
    finally:
        ray.shutdown()


def ray(sizes: Sizes) -> Figures:
    """Ray: tasks, and then actors, which are processes that stay."""
    with _ray():
        figures = _measure_all("Ray tasks", _RayTasks(), sizes)
        for line, by_system in measure("Ray actors", _RayActors(), sizes).items():
            figures[line] |= by_system
        return figures


def dask(sizes: Sizes) -> Figures:
    """Dask distributed, on this machine alone."""
    from distributed import Client, LocalCluster

    options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": None}
    with (
        LocalCluster(host="127.0.0.1", silence_logs=50, **options) as cluster,
        Client(cluster) as client,
    ):
        return _measure_all("Dask", _DaskSystem(client), sizes)


def executorlib(sizes: Sizes) -> Figures:
    """Executors for clusters, on this machine alone, with workers that stay."""
    from executorlib import SingleNodeExecutor

    with SingleNodeExecutor(max_workers=WORKERS, block_allocation=True) as pool:
        return _measure_all("executorlib", _ExecutorlibSystem(pool.submit), sizes)
