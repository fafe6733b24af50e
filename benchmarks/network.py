"""A small network: what a warm session does not have to set up again.

python -m benchmarks.network SEED    the cold way
"""

from __future__ import annotations

import os
import sys

LAYERS = 4


def infer(seed: int) -> float:
    """Its forward pass."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 64, generator=generator)
    weights = torch.eye(64)
    for _ in range(LAYERS):
        x = torch.relu(x @ weights)
    return float(x.sum())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(infer(int(sys.argv[1])))
