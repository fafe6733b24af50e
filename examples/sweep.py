"""A sweep with plain multiprocessing: each process asks for room, and waits until there is some.

python examples/sweep.py
POSTROOM_FAKE_GPUS=2x24G python examples/sweep.py      on invented cards
"""

from __future__ import annotations

import multiprocessing

from train import train


def main() -> None:
    """Try every width with every rate; at most so many at once as the pool has processes."""
    grid = [(width, 100, lr) for width in (16, 64) for lr in (0.003, 0.03)]
    # "spawn": a forked child of a process that has used CUDA could not use it.
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        losses = pool.starmap(train, grid)
    for (width, _, lr), loss in sorted(zip(grid, losses, strict=True), key=lambda row: row[1]):
        print(f"width {width:>3}  lr {lr:<6} loss {loss:.5f}")


if __name__ == "__main__":
    main()
