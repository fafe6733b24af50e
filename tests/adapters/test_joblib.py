"""joblib and scikit-learn over agents; `foreign.py` runs joblib's own tests over it."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from joblib.externals.loky.backend import resource_tracker

from postroom import Master
from postroom.adapters.joblib import register
from postroom.session.sessions import Sessions
from postroom.testing import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
register()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two agents for all tests, each with a card."""
    resource_tracker.ensure_running()  # one process of joblib's for all tests; ends with this one
    folder = tmp_path_factory.mktemp("module-executor")
    (folder / "ledger").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        patch.setenv("POSTROOM_FAKE_GPUS", "2x24G")
        patch.setenv("POSTROOM_LEDGER", str(folder / "ledger"))
        with Master(folder / "base") as master:
            made = master.base
        with Sessions(made, 2, options={"preload": "numpy,cloudpickle,joblib"}):
            yield str(folder / "base")


def card_and_kind(array: Any) -> tuple[str, bool]:
    return os.environ["CUDA_VISIBLE_DEVICES"], isinstance(array, np.memmap)


def fail_when_the_other_runs(folder: str, number: int) -> None:
    Path(folder, str(number)).touch()
    if number == 0:
        while not Path(folder, "1").exists():
            time.sleep(0.01)
        raise ValueError("this one failed")
    time.sleep(600)


def test_a_grid_search_fits_on_the_cards_of_its_agents(base: str) -> None:
    search = importlib.import_module("with_joblib").main(base=base)
    assert search.best_params_["alpha"] == 1.0
    cards = set(np.concatenate([search.cv_results_[f"split{n}_test_gpu"] for n in range(2)]))
    assert cards <= {0, 1}
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_large_arrays_are_mapped_and_their_files_are_removed(base: str, tmp_path: Path) -> None:
    arrays = [np.zeros(10), np.zeros(1 << 18)]
    with joblib.parallel_config("postroom", base=base, temp_folder=str(tmp_path)):
        small, large = joblib.Parallel()(joblib.delayed(card_and_kind)(a) for a in arrays)
        assert (small[1], large[1]) == (False, True)
        assert {small[0], large[0]} <= {"0", "1"}
    assert os.listdir(tmp_path) == []


def test_an_error_kills_what_still_runs_and_the_agents_stay(base: str, tmp_path: Path) -> None:
    with joblib.parallel_config("postroom", base=base):
        with pytest.raises(ValueError, match="this one failed"):
            joblib.Parallel(batch_size=1)(
                joblib.delayed(fail_when_the_other_runs)(str(tmp_path), n) for n in range(2)
            )
        # Both agents are free again, though one of the calls would sleep for ten minutes.
        roots = joblib.Parallel(batch_size=1)(joblib.delayed(abs)(n) for n in range(-20, 0))
    assert sum(roots) == 210


def test_one_gpu_has_one_agent_which_ends_with_its_parallel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x24G")
    parallel = joblib.Parallel(n_jobs=-1, backend="postroom")
    pids = set(parallel(joblib.delayed(os.getpid)() for _ in range(3)))
    assert len(pids) == 1
    assert pids != {os.getpid()}
    # Nobody collects garbage here: what is left would stay for as long as the program runs.
    pool = parallel._backend._executor._pool
    del parallel
    wait_until(pool.gone.is_set, what="the end of its agent")
