"""Has Optuna's own loop call each objective in an agent, as `optimize` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from optuna.study import _optimize

import postroom
from postroom.adapters.optuna import OnAgent

own_run_trial = _optimize._run_trial


@pytest.fixture(autouse=True, scope="session")
def _agents() -> Iterator[None]:
    with postroom.Executor(agents=1) as executor:

        def run_trial(study: Any, func: Any, catch: Any) -> int:
            return own_run_trial(study, OnAgent(func, executor), catch)

        _optimize._run_trial = run_trial
        yield
    _optimize._run_trial = own_run_trial
