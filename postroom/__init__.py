"""Postroom spreads jobs over GPUs through nothing but a folder.

from postroom import Job, Master

with Master("./base", agents=2) as master:
    pool = master.run([Job("expensive_task:expensive_task", a=a) for a in arrays])
outputs = pool.results()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatch.feeder import Window
    from .errors import JobFailed, PostroomError
    from .functions.decorator import job
    from .functions.executor import Executor
    from .functions.lease_block import lease
    from .jobs import Job, JobPool, Status
    from .master import Master
    from .project.settings import read_settings

__all__ = [
    "Master",
    "Job",
    "JobPool",
    "Window",
    "Executor",
    "Status",
    "JobFailed",
    "PostroomError",
    "job",
    "lease",
    "read_settings",
]

# What `pytest -p postroom` loads; nothing else reads it.
pytest_plugins = ("postroom.adapters.pytest",)

_HOMES = {
    "Master": "master",
    "Job": "jobs",
    "JobPool": "jobs",
    "Status": "jobs",
    "Window": "dispatch.feeder",
    "Executor": "functions.executor",
    "JobFailed": "errors",
    "PostroomError": "errors",
    "job": "functions.decorator",
    "lease": "functions.lease_block",
    "read_settings": "project.settings",
}


def __getattr__(name: str) -> Any:
    # Late, so that `postroom gpu get` does not import numpy.
    if name not in _HOMES:
        raise AttributeError(f"module 'postroom' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
