"""Puts our backend in the place of loky; the agents of one base serve nearly all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

import joblib.parallel
import pytest
from joblib import _parallel_backends

from postroom import Master
from postroom.adapters.joblib import PostroomBackend
from postroom.session.sessions import Sessions

BASE = os.environ["POSTROOM_BASE"]
CARDS = 4
# It counts the processes that an initializer ran in: agents of a base stay.
WITH_OWN_AGENTS = "test_initializer_not_reused"


class LokyBackend(PostroomBackend):
    """As ours, with the agents of the base, and with the defaults that the tests name."""

    default_n_jobs = 1
    where: ClassVar[dict[str, Any]] = {"base": BASE}

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**self.where, **options})


@pytest.fixture(scope="session", autouse=True)
def _agents() -> Iterator[None]:
    with Master(BASE) as master:
        base = master.base
    with Sessions(base, CARDS, options={"preload": "numpy,cloudpickle,joblib"}):
        yield


@pytest.fixture(autouse=True)
def _own_agents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if WITH_OWN_AGENTS in request.node.name:
        monkeypatch.setattr(LokyBackend, "where", {"agents": CARDS, "gpus": 0})


_parallel_backends.LokyBackend = LokyBackend  # what the tests compare with
joblib.parallel.BACKENDS["loky"] = LokyBackend
OTHERS = ("multiprocessing", "threading", "sequential")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs only over backends that are not ours."""
    gone = [
        item
        for item in items
        if any(word in item.name for word in OTHERS) and "loky" not in item.name
    ]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in gone]
