"""A sweep with plain multiprocessing: each process waits until a GPU has enough free memory.

python examples/sweep.py
POSTROOM_FAKE_GPUS=2x24G python examples/sweep.py      on simulated GPUs
"""

from __future__ import annotations

import multiprocessing

from train import train


def main() -> None:
    """Try every width with every learning rate, four at a time."""
    grid = [(width, 100, lr) for width in (16, 64) for lr in (0.003, 0.03)]
    # "spawn": a process that was forked after CUDA was used cannot use CUDA.
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        losses = pool.starmap(train, grid)
    for (width, _, lr), loss in sorted(zip(grid, losses, strict=True), key=lambda row: row[1]):
        print(f"width {width:>3}  lr {lr:<6} loss {loss:.5f}")


if __name__ == "__main__":
    main()
