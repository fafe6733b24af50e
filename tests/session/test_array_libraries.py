"""Arrays of JAX and CuPy for kernels that ask for them; the examples, run as people do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from postroom.session.array_libraries import converter_to, library_asked_for, to_numpy

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


@pytest.mark.parametrize(
    ("library", "shown"), [("jax", "lr 0.1   w [ 1. -2.  3.]"), ("numba", ".-:%--.%%%%%")]
)
def test_an_example_runs_on_the_cpu(library: str, shown: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{library} is not installed")
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
