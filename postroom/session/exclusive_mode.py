"""Compute mode EXCLUSIVE_PROCESS: set by `--exclusive`, and reset afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def exclusive_mode(gpu_uuid: str, *, wanted: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Keep every other process off the GPU while the block runs, where the driver allows it.

    The driver usually allows it only to root. If it refuses, this is reported, and the session goes
    on: the ledger keeps other sessions off the GPU anyway.
    """
    if not wanted:
        yield
        return
    if not gpu_uuid.startswith("GPU-"):
        say(f"--exclusive does nothing on {gpu_uuid}: only whole NVIDIA cards have compute modes")
        yield
        return
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        before = pynvml.nvmlDeviceGetComputeMode(handle)
        pynvml.nvmlDeviceSetComputeMode(handle, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    except pynvml.NVMLError as error:
        say(f"compute mode EXCLUSIVE_PROCESS could not be set ({error}); going on without it")
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlDeviceSetComputeMode(handle, before)
            pynvml.nvmlShutdown()
