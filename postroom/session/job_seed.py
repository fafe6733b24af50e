"""The seed of each job: which random numbers it draws depends on the job alone.

Before each job the generators of torch (on the CPU and on the cards), of `random` and of
`numpy.random` are seeded with a number made of the run and the number of the job. So a job draws
the same numbers in whichever session it runs, whatever ran there before, and when it is tried
again; two jobs draw different ones. A generator that a kernel makes (`numpy.random.default_rng`) is
the kernel's own.

Seeding takes 8 us, and 2 to 5 more with torch: too much for small jobs that draw nothing. So it is
done where a card is used, for installed kernels, and for kernels and calls whose code mentions
torch or the word "random"; elsewhere the generators go on from job to job.
"""

from __future__ import annotations

import random
import zlib

import numpy as np

from ..gpus.devices.device import Device
from .torch_state import TorchState


def seed_of(run: str, job: int) -> int:
    """The number with which generators are seeded for a job; numpy's, which takes half as many
    bits, with both halves of it in one (`^`)."""
    return zlib.crc32(run.encode()) << 32 | job & 0xFFFFFFFF


class JobSeed:
    """Seeds the generators of one worker."""

    def __init__(self) -> None:
        self._run, self._high = "", 0  # the run of the last job, and its part of the seed

    def begin(self, run: str, job: int, *, torch: TorchState, device: Device) -> None:
        """Seed all generators for a job."""
        if run != self._run:
            self._run, self._high = run, seed_of(run, 0)
        seed = self._high | job & 0xFFFFFFFF
        random.seed(seed)
        np.random.seed((seed >> 32 ^ seed) & 0xFFFFFFFF)
        torch.seed(seed, device)
