"""`postroom.lease`, on simulated cards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import lease
from postroom.errors import CardHeld, GpuError, PostroomError
from postroom.functions import in_process
from postroom.gpus.cards.simulated import Claim
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from tests.gpus.ledgerkit import needs


def held() -> list[tuple[tuple[str, ...], int | None]]:
    return [(entry.cards, entry.memory_mib) for entry in open_ledger().holders()]


def test_a_block_holds_its_gpu_and_sees_only_that_one() -> None:
    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-0",))):
        pass  # so that card 0 is the last that is handed out
    with lease(memory="8G", name="mine") as gpus:
        (card,) = gpus
        assert os.environ["CUDA_VISIBLE_DEVICES"] == card.visible_id != "0"
        assert os.environ["POSTROOM_GPU"] == card.uuid
        assert held() == [((card.uuid,), 8192)]
        assert [entry.name for entry in open_ledger().holders()] == ["mine"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert held() == []


def test_an_error_in_the_block_frees_the_gpu() -> None:
    with pytest.raises(ValueError, match="mine"), lease():
        raise ValueError("mine")
    assert held() == []


def test_several_gpus_are_leased_at_once_or_by_name() -> None:
    with lease(count=2) as gpus:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(card.visible_id for card in gpus)
        assert len(gpus) == 2
    with lease(gpus="1,3") as gpus:
        assert [card.index for card in gpus] == [1, 3]


def test_a_block_inside_another_is_part_of_it() -> None:
    @postroom.job
    def train() -> str:
        return os.environ["POSTROOM_GPU"]

    with lease(memory="8G") as outer:
        with lease() as inner:
            assert inner == outer
            assert train() == outer[0].uuid
        assert held() == [((outer[0].uuid,), 8192)]
        with pytest.raises(GpuError, match="all GPUs at once"), lease(count=2):
            pass


def test_a_block_in_another_thread_has_its_turn_afterwards() -> None:
    seen: list[int] = []

    def other() -> None:
        with lease():
            seen.append(len(held()))

    with lease():
        thread = threading.Thread(target=other)
        thread.start()
        assert seen == []
    thread.join()
    assert seen == [1]


def test_who_waits_too_long_is_told_who_holds_it_and_the_lease_ends_with_its_process() -> None:
    code = "import sys, postroom\nwith postroom.lease(count=4, name='all'):\n    "
    code += "print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(CardHeld, match="'all'"), lease(timeout_s=0.01):
            pytest.fail("it was granted")
        process.send_signal(signal.SIGKILL)
    with lease(timeout_s=60):
        pass


def test_a_process_that_uses_cuda_leases_the_same_gpu_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path))
    with Claim("FAKE-2", 500):
        with lease() as (card,):
            assert card.uuid == "FAKE-2"
        with pytest.raises(GpuError, match=r"CUDA on GPU 2.*cannot\s+move"), lease(gpus="1"):
            pass


def test_with_cuda_on_an_unknown_gpu_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "_last_card", "")
    monkeypatch.setattr(in_process, "_fixed_on", "")
    torch: Any = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 2)
    torch.get_device_module = lambda kind: torch.cuda
    torch.device = lambda kind, number: (kind, number)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(PostroomError, match="before anything uses CUDA"), lease():
        pass
    assert held() == []


def test_a_driver_that_has_read_the_environment_is_noticed(tmp_path: Path) -> None:
    """As after torch.cuda.is_available(): torch does not call that initialised."""
    source = tmp_path / "cuda.c"
    source.write_text(
        "static int up; int cuInit(unsigned flags) { up = 1; return 0; }\n"
        "int cuDeviceGetCount(int *count) { *count = 4; return up ? 0 : 3; }\n"
    )
    library = tmp_path / "libcuda.so.1"
    compile_ = [needs("gcc"), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source)]
    subprocess.run([*compile_, "-o", str(library)], check=True)
    code = f"""
import ctypes, postroom
with postroom.lease():
    pass
driver = ctypes.CDLL({str(library)!r})
with postroom.lease():
    pass
driver.cuInit(0)
with postroom.lease():
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "line 9" in done.stderr, done.stderr
    assert "already initialised CUDA" in done.stderr
