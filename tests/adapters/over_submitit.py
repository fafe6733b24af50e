"""Puts our executor in the place of submitit's local one; each job has a simulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from submitit.core import plugins
from submitit.local import local

from postroom.adapters.submitit import PostroomExecutor, PostroomJob

# They expect a job to run at once; ours waits for its GPU first, and is PENDING.
AT_ONCE = ("test_killed", "test_cancel")


@pytest.fixture(autouse=True)
def _gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WithGpu, "gpus", int(request.node.name not in AT_ONCE))


class WithGpu(PostroomExecutor):
    """As ours, but with a GPU where the test asks for none."""

    gpus = 1

    def __init__(self, folder: str | Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.parameters["gpus_per_node"] = self.gpus


local.LocalExecutor = WithGpu  # type: ignore[misc]
local.LocalJob = PostroomJob  # type: ignore[misc]
known = dict(plugins.get_executors())
plugins.get_executors = lambda: known | {"local": WithGpu}  # type: ignore[assignment]
