from __future__ import annotations

from postroom.gpus.devices.scripted_device import HeldMemory, ScriptedDevice
from postroom.session.memory_growth import LOOKS, MemoryGrowth


def looks(growth: MemoryGrowth, device: ScriptedDevice, *, leak: int, jobs: int) -> list[str]:
    kept: list[HeldMemory] = []
    said = []
    for _ in range(jobs):
        if leak:
            kept.append(device.hold(leak))
        said.append(growth.after_job(device, 1.0))
    return said


def test_a_worker_that_grows_with_every_job_is_replaced() -> None:
    said = looks(MemoryGrowth(), ScriptedDevice(["FAKE-0"]), leak=100, jobs=LOOKS + 1)
    assert said[:-1] == [""] * LOOKS
    assert "grew from 100 to 900 MiB" in said[-1]


def test_one_that_keeps_a_model_or_grows_and_shrinks_is_not() -> None:
    device, growth = ScriptedDevice(["FAKE-0"]), MemoryGrowth()
    model = device.hold(9000)
    for _ in range(5):
        assert not any(looks(growth, device, leak=100, jobs=LOOKS - 1))
    assert not any(looks(growth, device, leak=0, jobs=50))
    assert not any(looks(growth, device, leak=1, jobs=50)), "a little is nobody's concern"
    del model


def test_after_short_jobs_it_is_asked_now_and_then() -> None:
    device, growth = ScriptedDevice(["FAKE-0"]), MemoryGrowth()
    kept = []
    said = []
    for _ in range(32 * (LOOKS + 1)):
        kept.append(device.hold(10))
        said.append(growth.after_job(device, 0.0001))
    assert [bool(word) for word in said].index(True) == len(said) - 1
