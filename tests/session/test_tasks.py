from __future__ import annotations

import sys
from argparse import Namespace
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.gpus.devices import scripted_device
from postroom.gpus.devices.device import Device
from postroom.gpus.devices.scripted_device import ScriptedDevice, open_scripted
from postroom.jobs import Job
from postroom.session.job_seed import seed_of
from postroom.session.tasks import own, to_device
from tests.in_one_process import in_one_process

torch = pytest.importorskip("torch")

TENSORS = """
from __future__ import annotations
from argparse import Namespace
import numpy as np
import torch

def annotated(x: torch.Tensor, y, many: list[torch.Tensor], maybe: torch.Tensor | None = None):
    return [type(v).__name__ for v in (x, y, many[0], maybe)]

def shares(shared: dict[str, torch.Tensor], change=False):
    if change:
        shared["w"] += 1
    return [type(shared["w"]).__name__, float(shared["w"][0])]

def anything(**arguments: torch.Tensor):
    return sorted(f"{name} {type(value).__name__}" for name, value in arguments.items())

def plain(x, y=None):
    return [type(x).__name__, type(y).__name__]

def returns(x: torch.Tensor):
    return {"double": x * 2, "on": str(x.device)}

def given(x, many, shared):
    kinds = [str(tensor.dtype) for tensor in (x, many[0], shared["w"])]
    return {"x": x, "many": many, "w": shared["w"], "kinds": kinds}

def asked(x: torch.Tensor, many: list[torch.Tensor], shared: dict[str, torch.Tensor]):
    return given(x, many, shared)

def echo(values):
    return values

BUFFER = Namespace(x=np.zeros(2))

def reuses(n):
    BUFFER.x[:] = n
    return BUFFER

def where(device):
    return str(device)

def everywhere(devices):
    return [str(device) for device in devices]
"""


@pytest.fixture(autouse=True)
def _clean_modules() -> Iterator[None]:
    yield
    sys.modules.pop("kernels", None)


def run(tmp_path: Path, job: Job, shared: Any = None) -> Any:
    with in_one_process(tmp_path, TENSORS) as room:
        pool = room.run([job], shared).raise_for_failed()
        return pool.results()[0]


def test_annotated_arguments_arrive_as_tensors_and_others_as_arrays(tmp_path: Path) -> None:
    x = np.ones(3)
    job = Job("kernels:annotated", x=x, y=x, many=[x])
    assert run(tmp_path, job) == ["Tensor", "ndarray", "Tensor", "NoneType"]


def test_a_job_can_ask_for_tensors_itself(tmp_path: Path) -> None:
    job = Job("kernels:plain", x=np.ones(3), y=2).options(tensors=True)
    assert run(tmp_path, job) == ["Tensor", "int"]


def test_an_annotated_rest_takes_tensors(tmp_path: Path) -> None:
    job = Job("kernels:anything", a=np.ones(1), b=np.ones(1))
    assert run(tmp_path, job) == ["a Tensor", "b Tensor"]


def test_shared_data_comes_as_tensors_where_they_are_asked_for(tmp_path: Path) -> None:
    job = Job("kernels:shares")
    assert run(tmp_path, job, {"w": np.zeros(2)}) == ["Tensor", 0.0]


def test_a_job_that_writes_shared_data_fails_and_the_next_one_finds_them_as_they_were(
    tmp_path: Path,
) -> None:
    jobs = [Job("kernels:shares", change=change) for change in (False, True, False)]
    with in_one_process(tmp_path, TENSORS) as room:
        pool = room.run(jobs, {"w": np.zeros(2)})
        assert [pool[n].result() for n in (0, 2)] == [["Tensor", 0.0]] * 2
        assert "the kernel changed shared['w']" in str(pool[1].error)


@pytest.mark.parametrize("task", ["given", "asked"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "complex64", "bool"])
def test_a_tensor_stays_a_tensor_annotated_or_not(tmp_path: Path, dtype: str, task: str) -> None:
    tensor = torch.ones(3).to(getattr(torch, dtype))
    seen = run(tmp_path, Job(f"kernels:{task}", x=tensor, many=[tensor[0]]), {"w": tensor})
    for back in (seen["x"], seen["w"], seen["many"][0]):
        assert type(back) is torch.Tensor
        assert back.dtype is tensor.dtype
        assert back.device.type == "cpu"
    assert seen["kinds"] == [str(tensor.dtype)] * 3
    assert seen["x"].to(torch.complex64).tolist() == [1, 1, 1]


def test_what_is_not_a_tensor_stays_what_it_was(tmp_path: Path) -> None:
    point = namedtuple("point", "x y")
    values = {"a": OrderedDict(b=np.ones(2), a=(1, {2})), "p": Path("/x"), "n": Namespace(k=1)}
    back = run(tmp_path, Job("kernels:echo", values=values))
    assert repr(back) == repr(values)
    made = to_device({"p": point(np.ones(1), 2), "o": OrderedDict(z=np.ones(1))}, Device())
    assert type(made["p"]) is point
    assert type(made["p"].x) is type(made["o"]["z"]) is torch.Tensor
    assert type(made["o"]) is OrderedDict


def test_a_result_that_cannot_be_copied_is_published_before_the_next_job(tmp_path: Path) -> None:
    with in_one_process(tmp_path, TENSORS) as room:
        pool = room.run([Job("kernels:reuses", n=n) for n in range(300)]).raise_for_failed()
        assert [int(result.x[0]) for result in pool.results()] == list(range(300))


def test_the_device_is_passed_to_those_who_name_it(tmp_path: Path) -> None:
    assert run(tmp_path, Job("kernels:where")) == "cpu"


def test_all_devices_are_passed_to_those_who_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert run(tmp_path / "one", Job("kernels:everywhere")) == ["cpu"]
    device = open_scripted(["FAKE-0", "FAKE-1"])
    monkeypatch.setattr("postroom.session.tasks.open_device", lambda *_, **__: device)
    assert run(tmp_path / "two", Job("kernels:everywhere")) == ["scripted:0", "scripted:1"]


def test_read_only_and_foreign_arrays_become_writable_tensors() -> None:
    array = np.arange(4, dtype=">f4")
    array.flags.writeable = False
    tensor = to_device({"x": (array,)}, Device())["x"][0]
    tensor += 1
    assert tensor.tolist() == [1, 2, 3, 4] and array[0] == 0


def test_owning_a_result_copies_what_the_kernel_could_change() -> None:
    array, tensor = np.zeros(2), torch.zeros(2, requires_grad=True)
    owned = own({"a": [array], "t": (tensor, "text")})
    array += 1
    with torch.no_grad():
        tensor += 1
    assert owned["a"][0].tolist() == [0, 0]
    assert owned["t"][0].tolist() == [0, 0]
    for unknown in ([Namespace(x=array)], {"s": {1}}):
        with pytest.raises(TypeError):
            own(unknown)


LATE = """
import sys
sys.modules["torch"] = sys.modules["torch_of_the_test"]  # as if it were imported only now

import numpy as np
from postroom.testing import scripted_device

def double(x):
    return scripted_device().launch(np.multiply, x, 2)
"""


def test_the_device_is_chosen_when_a_kernel_first_imports_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session that preloads something else; its very first job is seeded and finished."""
    monkeypatch.setitem(sys.modules, "torch_of_the_test", torch)
    monkeypatch.delitem(sys.modules, "torch")
    device = ScriptedDevice(["FAKE-0"])
    monkeypatch.setattr(scripted_device, "opened", device)
    monkeypatch.setattr(
        "postroom.session.tasks.open_device",
        lambda *_, **__: device if "torch" in sys.modules else None,
    )
    with in_one_process(tmp_path, LATE) as room:
        (tasks,) = room.tasks
        assert tasks.device.count == 0
        pool = room.run([Job("kernels:double", x=4)]).raise_for_failed()
        assert pool.results() == [8] and tasks.device is device
        assert device.seeded == seed_of(pool.run, 0)
