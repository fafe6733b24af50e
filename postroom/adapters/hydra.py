"""Hydra: `python train.py --multirun hydra/launcher=postroom lr=0.1,0.2` with a GPU for each job.

Every job of a sweep is a call in an agent. Its outcome is kept below `.postroom/` in the sweep's
folder, written by the agent as soon as the job has ended. With `hydra.launcher.resume=true` and the
same `hydra.sweep.dir`, jobs that ended well, with the same overrides, are not run again: what was
killed at night goes on in the morning.

    hydra.launcher.agents=2     how many agents; by default one for each GPU
    hydra.launcher.base=DIR     a base whose agents are used; by default a private one
    hydra.launcher.resume=true  take the outcomes that are there
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import (
    JobReturn,
    JobStatus,
    configure_log,
    filter_overrides,
    run_job,
    setup_globals,
)
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

from ..errors import PostroomError
from ..store.files import LocalFiles

LOG = logging.getLogger(__name__)
OUTCOMES = ".postroom"
LONGEST = 1 << 30  # bytes of an outcome


@dataclass
class LauncherOptions:
    """The options below `hydra.launcher`; `None` is what `postroom.Executor` does by default."""

    base: str | None = None
    agents: int | None = None
    gpus: int | None = None
    preload: str | None = None
    resume: bool = False


class Launches(Launcher):
    """The launcher; Hydra accepts it only under a name in `hydra_plugins`."""

    def __init__(self, resume: bool = False, **options: Any) -> None:
        self._resume = resume
        self._options = {name: value for name, value in options.items() if value is not None}

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Keep what Hydra says."""
        self._context = hydra_context
        self._task = task_function
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a batch of jobs, each in an agent; return what became of them, in order."""
        from ..functions.executor import (
            Executor,
        )  # late: Hydra loads all plugins with every program

        setup_globals()
        config = self.config
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        sweep = Path(str(config.hydra.sweep.dir)).absolute()
        sweep.mkdir(parents=True, exist_ok=True)
        (sweep / OUTCOMES).mkdir(mode=0o700, exist_ok=True)
        found: dict[int, JobReturn] = {}
        futures: dict[int, Future[JobReturn]] = {}
        with contextlib.ExitStack() as stack:
            executor = stack.enter_context(Executor(**self._options))
            stack.callback(_end, futures)  # what is left if this is interrupted
            for place, overrides in enumerate(job_overrides):
                number = initial_job_idx + place
                outcome = sweep / OUTCOMES / f"{number}.pkl"
                words = list(filter_overrides(overrides))
                kept = _read(outcome, words) if self._resume else None
                state = "has ended before" if kept else ""
                LOG.info("\t#%d : %s %s", number, " ".join(words), state)
                if kept is not None:
                    found[place] = kept
                    continue
                job = self._job(list(overrides), number)
                futures[place] = executor.submit(run_in_agent, job, str(outcome), words)
            for place, future in list(futures.items()):
                found[place] = future.result()
                del futures[place]
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        return [found[place] for place in range(len(job_overrides))]

    def _job(self, overrides: list[str], number: int) -> bytes:
        config = self._context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            # As on a cluster: the id is the number, and both are known before the job runs.
            config.hydra.job.id = f"{number}"
            config.hydra.job.num = number
        parts = self._context, self._task, config, Singleton.get_state()
        return bytes(cloudpickle.dumps(parts))


def _end(futures: dict[int, Future[JobReturn]]) -> None:
    for future in futures.values():
        getattr(future, "kill", future.cancel)()


def run_in_agent(job: bytes, outcome: str, words: list[str]) -> JobReturn:
    """Run one job, in an agent; keep its outcome if it ended well."""
    context, task, config, state = pickle.loads(job)  # noqa: S301 - of this user's own process
    setup_globals()
    Singleton.set_state(state)
    HydraConfig.instance().set_config(config)
    done = run_job(
        hydra_context=context,
        task_function=task,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    if done.status is JobStatus.COMPLETED:
        # Renamed when it is whole: who is killed here runs again.
        part = f"{outcome}.{os.getpid()}"
        LocalFiles().write_new(part, [cloudpickle.dumps((words, done))])
        os.replace(part, outcome)
    return done


def _read(path: Path, words: list[str]) -> JobReturn | None:
    """Return the outcome of a job that ended well with these overrides."""
    try:
        # Refused if it is not this user's own: the folder of a sweep may be open to others.
        kept, done = pickle.loads(LocalFiles().read(os.fspath(path), LONGEST))  # noqa: S301
    except FileNotFoundError:
        return None
    except Exception as error:
        raise PostroomError(
            f"{path} cannot be read: {error}; remove it to run that job again"
        ) from error
    return done if kept == words else None
