"""dask: a graph of tasks whose nodes run on GPUs of their own. python examples/with_dask.py"""

from __future__ import annotations

import dask

import postroom


def train(lr: float) -> float:
    """Stand in for a training; return its loss."""
    return (lr - 0.3) ** 2


def main(executor: postroom.Executor) -> float:
    """Run the example: three trainings, and the best of them."""
    losses = [dask.delayed(train)(lr) for lr in (0.1, 0.3, 0.5)]
    best = dask.delayed(min)(losses)
    return best.compute(scheduler=executor)


if __name__ == "__main__":
    with postroom.Executor() as executor:
        print(main(executor))
