"""Arrays of JAX and CuPy for kernels that ask for them; the examples, run as people do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.jobs import Job
from postroom.session.array_libraries import converter_to, library_asked_for, to_numpy
from tests.in_one_process import in_one_process

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("annotation", "library"),
    [
        ("jax.Array", "jax"),
        ("dict[str, jax.Array] | None", "jax"),
        ("jnp.ndarray", "jax"),
        ("cupy.ndarray", "cupy"),
        ("list[cp.ndarray]", "cupy"),
        ("np.ndarray", ""),
        ("torch.Tensor", ""),
        (np.ndarray, ""),
        (int, ""),
    ],
)
def test_an_annotation_asks_for_arrays_of_a_library(annotation: object, library: str) -> None:
    assert library_asked_for(annotation) == library


def test_arrays_reach_cupy_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy cannot run without a GPU: this holds us only to the calls that it documents."""

    class CupyArray:
        __dlpack_device__ = staticmethod(lambda: (2, 0))

        def __init__(self, value: np.ndarray) -> None:
            self.get = lambda: value

    CupyArray.__module__ = "cupy._core.core"
    cupy = types.ModuleType("cupy")
    cupy.asarray = CupyArray  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    given = np.arange(3)
    placed = converter_to("cupy")(given)
    assert isinstance(placed, CupyArray)
    assert to_numpy(placed) is given
    assert converter_to("cupy")("a word") == "a word"
    assert to_numpy(given) is given


def test_a_job_that_breaks_cupys_context_fails_by_itself_and_costs_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session with a GPU that never loads torch."""
    pending: list[str] = []

    def synchronise() -> None:
        if pending:
            raise RuntimeError(pending[0])

    runtime = types.SimpleNamespace(deviceSynchronize=synchronise)
    cupy: Any = types.ModuleType("cupy")
    cupy.cuda, cupy.pending = types.SimpleNamespace(runtime=runtime), pending
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("postroom.session.tasks.open_device", lambda *_, **__: None)
    before = os.getcwd()
    with in_one_process(tmp_path, LATE) as room:
        (tasks,) = room.tasks
        pool = room.run([Job("kernels:fine"), Job("kernels:breaks")])
        assert pool[0].result() == 1
        assert "illegal address" in str(pool[1].error)
        assert "context on the GPU unusable" in tasks.used_up
    os.chdir(before)
    sys.modules.pop("kernels", None)


LATE = """
import sys

def fine():
    return 1

def breaks():
    sys.modules["cupy"].pending.append("illegal address")
    return 1.0
"""
JAX = """
import sys
from pathlib import Path
from postroom.jobs import Job
from tests.in_one_process import in_one_process

KERNELS = '''
import jax

KEPT = []

@jax.jit
def power(x):
    return jax.lax.fori_loop(0, 60, lambda _, y: y @ y / 600, x)

def launch():
    KEPT.append(power(jax.numpy.ones((600, 600))))
    return 1.0

def look():
    return [one.is_ready() for one in KEPT]
'''

with in_one_process(Path(sys.argv[1]), KERNELS) as room:
    launch, look = Job("kernels:launch"), Job("kernels:look")
    print(room.run([launch, look, launch, look]).results())
"""


def test_a_job_of_jax_ends_when_its_work_has(tmp_path: Path) -> None:
    needs_library("jax")
    done = subprocess.run(
        [sys.executable, "-c", JAX, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[1.0, [True], 1.0, [True, True]]\n", done.stderr


def needs_library(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed")


@pytest.mark.parametrize(
    ("library", "shown"), [("jax", "lr 0.1   w [ 1. -2.  3.]"), ("numba", ".-:%--.%%%%%")]
)
def test_an_example_runs_on_the_cpu(library: str, shown: str, tmp_path: Path) -> None:
    needs_library(library)
    shutil.copy(REPOSITORY / "examples" / f"with_{library}.py", tmp_path)
    (tmp_path / "ledger").mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, f"with_{library}.py"],
        cwd=tmp_path,
        env=os.environ
        | {
            "POSTROOM_PRELOAD": "numpy",
            "POSTROOM_LEDGER": str(tmp_path / "ledger"),
            "PYTHONPATH": str(REPOSITORY),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.parametrize("made", ["numpy", "torch"])
def test_an_array_or_a_tensor_becomes_one_of_the_library_that_is_asked_for(made: str) -> None:
    jax = pytest.importorskip("jax")
    given = pytest.importorskip(made).ones(3)
    changed = converter_to("jax")(given)
    assert isinstance(changed, jax.Array)
    assert changed.sum() == 3
    assert converter_to("jax")("a word") == "a word"
