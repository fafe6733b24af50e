"""The examples of the recipes, run with agents that all of them share; and the page shows them."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.gpus.ledger.protocol import open_ledger

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def _two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G")


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield


def example(name: str) -> Any:
    return importlib.import_module(f"with_{name}")


@pytest.fixture(scope="module")
def executor(_path: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[postroom.Executor]:
    """Two agents for all examples."""
    folder = tmp_path_factory.mktemp("module-executor")
    with postroom.Executor(folder / "base", agents=2, gpus=0) as made:
        made.submit(int).result(60)
        yield made


def test_asyncio_awaits_calls(executor: postroom.Executor) -> None:
    assert example("asyncio").main(executor) == pytest.approx([0.04, 0, 0.04])


def test_dask_computes_a_graph(executor: postroom.Executor) -> None:
    assert example("dask").main(executor) == 0


def test_tqdm_and_scipy_map_over_it(executor: postroom.Executor, monkeypatch: Any) -> None:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # no thread that outlives the test
    assert len(example("tqdm").main(executor)) == 10
    assert example("scipy").main(executor).nfev > 10


def test_trials_of_optuna_run_in_agents_and_are_pruned_there(executor: postroom.Executor) -> None:
    study = example("optuna").main(executor, n_trials=12)
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 12
    assert set(states) == {"COMPLETE", "PRUNED"}, states
    assert study.best_value == (study.best_params["x"] - 2) ** 2


def test_a_lease_for_a_part_of_a_program() -> None:
    assert example("lease").main() in ("0", "1")
    assert open_ledger().holders() == []


def test_a_sweep_of_hydra_resumes(tmp_path: Path) -> None:
    sweep = f"hydra.sweep.dir={tmp_path}/sweep"
    words = ["--multirun", "hydra/launcher=postroom", "hydra.launcher.resume=true", sweep]
    command = [sys.executable, str(EXAMPLES / "with_hydra.py"), *words]

    def run(rates: str) -> str:
        done = subprocess.run(
            [*command, f"lr={rates}"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first = run("0.1,0.2")
    assert sorted(re.findall(r"lr (\S+) on GPU [01]", first)) == ["0.1", "0.2"]
    assert sorted(os.listdir(tmp_path / "sweep" / ".postroom")) == ["0.pkl", "1.pkl"]
    second = run("0.1,0.3,0.2")
    assert "#0 : lr=0.1 has ended before" in second
    assert sorted(re.findall(r"lr (\S+) on GPU [01]", second)) == ["0.2", "0.3"]


def test_the_recipes_show_what_the_examples_do() -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/recipes.md").read_text(), re.MULTILINE | re.DOTALL
    )
    sources = [path.read_text() for path in EXAMPLES.glob("with_*.py")]
    assert len(blocks) >= 8
    for block in blocks:
        assert any(block in source for source in sources), block
