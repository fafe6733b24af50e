"""Hydra's tests for launchers, over ours; `foreign.py` runs this file.

The agents of one base serve all tests: an agent for each would be most of the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)

from postroom import Master
from postroom.session.sessions import Sessions

BASE = os.environ["POSTROOM_BASE"]
IN_BASE = [f"hydra.launcher.base={BASE}"]


@pytest.fixture(scope="session", autouse=True)
def _agents() -> Iterator[None]:
    with Master(BASE) as master:
        base = master.base
    with Sessions(base, 2, options={"preload": "numpy,cloudpickle,hydra"}):
        yield


@pytest.mark.parametrize(("launcher_name", "overrides"), [("postroom", IN_BASE)])
class TestLauncher(LauncherTestSuite):
    """Sweeps in this process."""


@pytest.mark.parametrize(
    ("launcher_name", "overrides"),
    [("postroom", [*IN_BASE, "hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2"])],
)
class TestBatches(BatchedSweeperTestSuite):
    """Sweeps in batches."""


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"),
    [({}, ["-m", "hydra/launcher=postroom", *IN_BASE])],
)
class TestPrograms(IntegrationTestSuite):
    """Programs of their own, which sweep."""
