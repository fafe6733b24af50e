"""Which random numbers a job draws depends on the job alone."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from postroom.calls.call import CALL, context_here, open_result, pack_call
from postroom.jobs import Job
from postroom.session.job_seed import seed_of
from tests.in_one_process import InOneProcess, in_one_process

KERNELS = """
def draw(spoils=False):
    import helper
    if spoils:
        helper.spoil()
    return helper.draw()

def plain():
    return 1
"""
HELPER = """
import random
import numpy as np

def draw():
    return [random.random(), float(np.random.rand())]

def spoil():
    random.seed(1)
    np.random.seed(1)
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InOneProcess]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, states = os.getcwd(), (random.getstate(), np.random.get_state())
    with in_one_process(tmp_path, KERNELS) as opened:
        yield opened
    os.chdir(before)
    random.setstate(states[0])
    np.random.set_state(states[1])
    for name in ("kernels", "helper"):
        sys.modules.pop(name, None)


def drawn_by(run: str, job: int) -> list[float]:
    seed = seed_of(run, job)
    made = random.Random(seed).random()
    return [made, float(np.random.RandomState((seed >> 32 ^ seed) & 0xFFFFFFFF).rand())]


def test_a_job_draws_its_own_numbers_whatever_ran_before(room: InOneProcess) -> None:
    room.write_kernels("import helper\n" + KERNELS)
    (room.import_folder / "helper.py").write_text(HELPER)
    draw = Job("kernels:draw")
    pool = room.run([draw, Job("kernels:draw", spoils=True), draw, draw])
    drawn = pool.results()
    assert [drawn[n] for n in (0, 2, 3)] == [drawn_by(pool.run, n) for n in (0, 2, 3)]
    assert drawn[1] != drawn_by(pool.run, 1)


def test_a_kernel_that_draws_nothing_is_not_seeded(room: InOneProcess) -> None:
    random.seed(7)
    before = random.getstate()
    room.run([Job("kernels:plain")]).raise_for_failed()
    assert random.getstate() == before


def test_a_call_draws_its_own_numbers_too(room: InOneProcess) -> None:
    """One that is pickled, and one whose module says so, which is imported only with the call."""
    (room.import_folder / "helper.py").write_text(HELPER)
    calls = [Job(CALL, **pack_call(lambda: [random.random(), float(np.random.rand())], (), {}))]
    calls.append(Job(CALL, function="helper:draw", args=[], kwargs={}))
    pool = room.run(calls * 2, shared=context_here()._asdict())
    drawn = [open_result(value) for value in pool.results()]
    assert drawn == [drawn_by(pool.run, number) for number in range(4)]
