"""What programs on leased cards find in their environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.commands.job_environment import JobEnvironment
from postroom.gpus.ledger.lease_environment import granted_over, lease_environment

# Both programs have their port at the same time: each waits for the other's file.
MEETING = 'touch "$0"; for i in {1..600}; do [ -e "$1" ] && exit 0; sleep 0.1; done; exit 1'


def test_a_default_replaces_nothing_of_the_users_but_what_came_from_an_outer_lease() -> None:
    first, second = (lease_environment(name, shared=True) for name in ("19-aa", "19-bb"))
    assert first["MASTER_PORT"] == first["PET_MASTER_PORT"] != second["MASTER_PORT"]
    assert granted_over({}, first) == first
    assert granted_over(first, second) == second
    own = {"MASTER_PORT": "1234", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    assert granted_over(own, first) == {**first, **own}
    assert granted_over({**first, **own}, second) == {**second, **own}


def test_only_on_shared_cards_do_jax_and_tensorflow_take_memory_as_needed() -> None:
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    assert lease_environment("x", shared=True)[name] == "false"
    assert name not in lease_environment("x", shared=False)


def test_a_job_does_not_take_along_the_port_of_the_shell_that_submits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in lease_environment("19-aa", shared=False).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PET_MASTER_PORT", "1234")
    taken = JobEnvironment.of_this_process().variables
    assert "MASTER_PORT" not in taken
    assert taken["PET_MASTER_PORT"] == "1234"


@pytest.mark.usefixtures("folder")
def test_two_torchruns_at_once_have_a_port_each(start: Callable[..., Any], tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a", "b")]
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--no-python")
    running = [
        start(
            *(sys.executable, "-m", "postroom", "gpu", "run", "--"),
            *(*torchrun, "bash", "-c", MEETING, mine, other),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for mine, other in (names, names[::-1])
    ]
    assert [process.wait() for process in running] == [0, 0]
