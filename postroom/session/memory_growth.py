"""Decides whether a worker leaks a card's memory: what stays in use grows from job to job.

A kernel that keeps a model, or fills a cache, grows and then stops. One that grows at LOOKS looks
in a row, by at least GROWTH_MIB in all, and after garbage was collected, leaks: its worker is
replaced before a job runs out of memory for it.
"""

from __future__ import annotations

from ..gpus.devices.device import Device

LOOKS = 8
GROWTH_MIB = 256
# Asking takes some 50 us: after a short job it is done only every so often.
LONG_S = 0.01
EVERY = 32


class MemoryGrowth:
    """What was in use after the last jobs of one worker."""

    def __init__(self) -> None:
        self._seen: list[int] = []
        self._short = 0  # jobs since the last look

    def after_job(self, device: Device, seconds: float) -> str:
        """A job has ended; return why the worker must be replaced, if it must."""
        self._short += 1
        if seconds < LONG_S and self._short < EVERY:
            return ""
        self._short = 0
        try:
            return self._look(device)
        except Exception:  # a broken context: the worker is replaced anyway
            return ""

    def _look(self, device: Device) -> str:
        now_mib = device.memory().allocated_mib
        if self._seen and now_mib <= self._seen[-1]:
            self._seen.clear()
        self._seen.append(now_mib)
        if len(self._seen) <= LOOKS or now_mib - self._seen[0] < GROWTH_MIB:
            return ""
        device.free()
        kept_mib = device.memory().allocated_mib
        first_mib, before_mib = self._seen[0], self._seen[-2]
        self._seen.clear()
        if kept_mib <= before_mib:
            return ""
        return (
            f"the memory that its jobs leave in use on the GPU grew from {first_mib} to {kept_mib} "
            f"MiB: does a kernel keep tensors in a global?"
        )
