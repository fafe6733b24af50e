"""What `gpu_check` has a GPU do: as jobs of a session, and as a program of its own.

    python -m postroom.session.gpu_check_kernels hold 256

The same functions run on a real card through torch and, for tests, on the scripted device.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from ..gpus.devices.device import FAKE_DEVICE, Device, open_device


def product(size: int, seed: int) -> Any:
    """Multiply two matrices of whole numbers on the card; the session copies the result back."""
    import numpy as np

    random = np.random.default_rng(seed)
    left, right = (random.integers(-9, 9, (size, size)).astype("float32") for _ in range(2))
    if _is_scripted():
        return _scripted().launch(np.matmul, left, right)
    torch, device = _torch()
    return torch.from_numpy(left).to(device) @ torch.from_numpy(right).to(device)


def fail(*, wait: bool) -> float:
    """Trip a device-side assert; with `wait` for it, else return as if nothing had happened."""
    if _is_scripted():
        _scripted().fail_later()
        if wait:
            _scripted().synchronise()
        return 1.0
    torch, device = _torch()
    _ = torch.zeros(4, device=device)[torch.tensor([1 << 20], device=device)]
    if wait:
        torch.accelerator.synchronize()
    return 1.0


def hang() -> None:
    """Queue work that ends long after the job's time limit."""
    if _is_scripted():
        _scripted().hang()
        return
    torch, _ = _torch()
    torch.cuda._sleep(1 << 46)  # cycles: about half a day


def hold(memory_mib: int) -> None:
    """Use memory of the card, and drop it."""
    _held = _take(memory_mib)


def bandwidth(memory_mib: int) -> dict[str, float]:
    """Copy to the card from plain and from pinned memory; return GB/s of each."""
    torch, device = _torch()
    found = {}
    for name in ("plain", "pinned"):
        memory = torch.ones(memory_mib << 20, dtype=torch.uint8, pin_memory=name == "pinned")
        host = torch.from_numpy(memory.numpy())  # as arguments come that were read ahead
        best_s = float("inf")
        for _ in range(3):
            torch.accelerator.synchronize()
            began = time.perf_counter()
            _copy = host.to(device)
            torch.accelerator.synchronize()
            best_s = min(best_s, time.perf_counter() - began)
        found[name] = round(host.numel() / best_s / 1e9, 1)
    return found


def _is_scripted() -> bool:
    return FAKE_DEVICE in os.environ and bool(os.environ.get("POSTROOM_GPU"))


def _scripted() -> Any:
    from ..gpus.devices.scripted_device import scripted_device

    return scripted_device()


def _torch() -> tuple[Any, Any]:
    import torch

    return torch, torch.accelerator.current_accelerator()


def _take(memory_mib: int) -> Any:
    if _is_scripted():
        return _scripted().hold(memory_mib)
    torch, device = _torch()
    return torch.ones(memory_mib << 20, dtype=torch.uint8, device=device)


def main(words: list[str]) -> None:
    """Use the cards of POSTROOM_GPU, take memory, say so in JSON, and end with stdin."""
    facts: dict[str, Any] = {"pid": os.getpid()}
    if not _is_scripted():
        import torch

        facts |= {"torch": torch.__version__, "cuda": torch.version.cuda or torch.version.hip}
    device = open_device(os.environ["POSTROOM_GPU"]) or Device()
    device.touch()
    facts |= {"kind": device.kind, "uuids": device.uuids()}
    _held = _take(int(words[1]))
    device.synchronise()
    print(json.dumps(facts), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
