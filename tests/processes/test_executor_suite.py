"""CPython's own tests of executors, driven over `postroom.Executor`.

The tests are not in this repository: they are found in an installed Python (on Debian in the
package libpython3-testsuite). Each class of tests there is a mixin that makes `self.executor`; here
it is combined with a mixin that makes ours.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import unittest
from concurrent import futures
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, ClassVar

import pytest

import postroom
from postroom.errors import RemoteTraceback

MISSING = "no installed Python has its own tests: apt-get install libpython3-testsuite"


PARTS = (
    *(".util", ".test_init", ".test_shutdown", ".test_wait", ".test_as_completed"),
    *(".test_process_pool", ".test_deadlock"),
)


def _find_suite() -> list[Any]:
    """The modules with the suite of a Python of this version: of this one, or of the system's."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for prefix in (sys.base_prefix, "/usr/local", "/usr"):
        folder = Path(prefix, "lib", version, "test")
        found = sorted(folder.glob("test_concurrent_futures*"))
        if found:
            home = tempfile.mkdtemp()
            atexit.register(shutil.rmtree, home, ignore_errors=True)
            Path(home, "test").symlink_to(folder)
            sys.path.insert(0, home)  # agents have it, too
            for name in [name for name in sys.modules if name.partition(".")[0] == "test"]:
                del sys.modules[name]
            name = "test.test_concurrent_futures"
            parts = PARTS if found[0].is_dir() else [""]  # from 3.13 on it is a package
            return [importlib.import_module(f"{name}{part}") for part in parts]
    if os.environ.get("CI"):
        raise RuntimeError(MISSING)
    return []


suite = _find_suite()
pytestmark = pytest.mark.skipif(not suite, reason=MISSING)


class PoolExecutor(postroom.Executor):
    """Our executor, made as the suite makes executors: a start method means nothing to it."""

    def __init__(self, max_workers: int | None = None, mp_context: Any = None, **kwargs: Any):
        super().__init__(max_workers=max_workers, gpus=0, **kwargs)


# Tests whose calls have to begin within a time: on a busy machine, agents may still be starting.
WARM = ("test_cancel_futures", "test_map_timeout", "test_timeout")


class PostroomMixin:
    worker_count = 2
    executor_type = PoolExecutor
    executor_kwargs: ClassVar[dict[str, Any]] = {}

    def setUp(self) -> None:
        # The suite collects garbage up to a hundred times after a test. What other tests of this
        # process have left in memory need not be looked at each time: it made that minutes.
        gc.freeze()
        self.addCleanup(gc.unfreeze)  # type: ignore[attr-defined]
        super().setUp()  # type: ignore[misc]
        if self._testMethodName in WARM:  # type: ignore[attr-defined]
            list(self.executor.map(time.sleep, [0.1, 0.1]))  # type: ignore[attr-defined]

    def tearDown(self) -> None:
        super().tearDown()  # type: ignore[misc]
        resource_tracker._resource_tracker._stop()

    def get_context(self) -> Any:
        return multiprocessing.get_context("spawn")


# Tests that look into private members of ProcessPoolExecutor, or need what only its processes have.
LEFT_OUT = {
    "test_processes_terminate": "counts `_processes`, and passes a semaphore by inheritance",
    "test_context_manager_shutdown": "joins `_processes`",
    "test_del_shutdown": "joins `_executor_manager_thread`, `_processes` and `_call_queue`",
    "test_shutdown_no_wait": "joins `_executor_manager_thread`, `_processes` and `_call_queue`",
    "test_killed_child": "kills one of `_processes`",
    "test_saturation": "counts `_processes`, and passes a semaphore by inheritance",
    "test_idle_process_reuse_one": "counts `_processes`",
    "test_idle_process_reuse_multiple": "counts `_processes`",
    "test_max_tasks_per_child": "counts `_processes`",
    "test_max_tasks_per_child_defaults_to_spawn_context": "looks at `_mp_context`",
    "test_shutdown_deadlock_pickle": "joins `_executor_manager_thread`",
    "test_python_finalization_error": "makes ProcessPoolExecutor fail to start one of its threads",
}


def _classes() -> list[type]:
    if not suite:
        return []
    futures.process._RemoteTraceback = RemoteTraceback  # type: ignore[attr-defined]
    found = {name: value for module in reversed(suite) for name, value in vars(module).items()}
    names = [
        "InitializerMixin", "FailingInitializerMixin", "ProcessPoolShutdownTest", "WaitTests",
        "AsCompletedTests", "ProcessPoolExecutorTest", "ExecutorDeadlockTest",
    ]  # fmt: skip
    made = []
    for name in names:
        mixin = found[name]
        bases = (mixin, PostroomMixin, found["ExecutorMixin"], found["BaseTestCase"])
        left_out = {
            one: unittest.skip(why)(lambda self: None)
            for one, why in LEFT_OUT.items()
            if hasattr(mixin, one)
        }
        made.append(type(f"Test{name}", bases, {**left_out, "__module__": __name__}))
    return made


globals().update({made.__name__: made for made in _classes()})


if suite:
    _run_python = importlib.import_module("test.support.script_helper").assert_python_ok

    def _over_ours(*words: str, **options: Any) -> Any:
        """Run a program of the suite, which imports an executor by its name, with ours."""
        text = re.sub(
            r"from concurrent\.futures import PoolExecutor",
            f"from {__name__} import PoolExecutor",
            words[-1],
        )
        paths = os.pathsep.join([os.getcwd(), sys.path[0]])
        return _run_python(*words[:-1], text, **options, PYTHONPATH=paths, POSTROOM_QUIET="1")

    for module in suite:
        module.assert_python_ok = _over_ours  # type: ignore[attr-defined]
