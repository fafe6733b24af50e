"""Each job finds torch as the first one did, on a scripted card."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.gpus.devices.device import Device
from postroom.jobs import Job
from postroom.session.job_seed import seed_of
from postroom.session.torch_state import TorchState
from tests.in_one_process import InOneProcess, in_one_process

torch = pytest.importorskip("torch")

KERNELS = """
import torch
from postroom.testing import scripted_device

def describe():
    c = torch._C
    return [
        str(torch.get_default_dtype()), str(torch.get_default_device()), torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu")),
        torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled,
        torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(),
        list(scripted_device().settings()[:2]), scripted_device().settings()[2][0],
    ]

def spoil(what):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.autocast("cpu", dtype=torch.float16).__enter__()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(torch.get_num_threads() + 1)
    card = scripted_device()
    card.stream = 7
    card.limit(0.5)
    if what == "raises":
        raise ValueError(what)
    return what

def new_way():
    torch.backends.cuda.matmul.fp32_precision = "tf32"

def draw(seed=None):
    if seed is not None:
        torch.manual_seed(seed)
    return [torch.rand(1).item(), scripted_device().seeded]

KEPT = torch.inference_mode()

def infer():
    KEPT.__enter__()
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InOneProcess]:
    cards = tmp_path / "cards"
    cards.mkdir()
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(cards))
    monkeypatch.setenv("POSTROOM_FAKE_DEVICE", "1")
    before = os.getcwd()
    with in_one_process(tmp_path, KERNELS, gpu="FAKE-0") as opened:
        yield opened
    os.chdir(before)
    sys.modules.pop("kernels", None)


def test_each_job_starts_with_torch_as_the_first_one_did(room: InOneProcess) -> None:
    look = Job("kernels:describe")
    jobs = [look, Job("kernels:spoil", what="returns"), look, Job("kernels:spoil", what="raises")]
    pool = room.run([*jobs, look, Job("kernels:new_way"), look])
    seen: list[Any] = [pool[number].done.value for number in (0, 2, 4, 6)]
    assert seen == [seen[0]] * 4
    assert pool[1].done.value == "returns" and "raises" in str(pool[3].error)


def test_a_job_draws_its_own_numbers_whatever_ran_before(room: InOneProcess) -> None:
    draw = Job("kernels:draw")
    pool = room.run([draw, Job("kernels:draw", seed=1), draw, draw])
    drawn = [pool[number].done.value for number in range(4)]
    assert len({value for value, _ in drawn}) == 4
    seeds = [seed for _, seed in drawn]
    assert seeds == [seed_of(pool.run, number) for number in range(4)]
    torch.manual_seed(seeds[3])
    assert drawn[3][0] == torch.rand(1).item()


def test_a_mode_that_cannot_be_left_costs_the_worker(room: InOneProcess) -> None:
    room.run([Job("kernels:infer")])
    sys.modules["kernels"].KEPT.__exit__(None, None, None)
    assert "never left it" in room.runners[0].used_up


PLAIN = """
def plain():
    return 1

def late():
    import helper
    return helper.spoil()
"""


def test_without_a_card_only_kernels_that_may_use_torch_are_looked_after(tmp_path: Path) -> None:
    before = os.getcwd()
    with in_one_process(tmp_path, PLAIN) as room:
        helper = "import torch\n\ndef spoil():\n    torch.set_default_dtype(torch.float64)\n"
        (room.import_folder / "helper.py").write_text(helper)
        (tasks,) = room.tasks
        room.run([Job("kernels:plain")]).raise_for_failed()
        tasks.restore(-1, 0.0)
        assert not tasks.state.torch.watching
        room.run([Job("kernels:late")]).raise_for_failed()
        tasks.restore(-1, 0.0)
        assert torch.get_default_dtype() is torch.float32
    os.chdir(before)
    for name in ("kernels", "helper"):
        sys.modules.pop(name, None)


def test_what_the_job_that_loads_torch_sets_is_put_back_too() -> None:
    state = TorchState()
    state.watching = True
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        state.restore(Device())
        assert torch.get_default_dtype() is torch.float32
    finally:
        torch.set_default_dtype(before)


def test_a_module_that_is_called_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's own, or torch itself, if the job failed while it was being imported."""
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    state = TorchState()
    state.watching = True
    state.save(Device())
    state.seed(1, Device())
    state.restore(Device())
    assert not state.used_up
