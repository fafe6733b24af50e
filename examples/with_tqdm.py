"""tqdm: a bar that moves with the results. python examples/with_tqdm.py"""

from __future__ import annotations

from tqdm import tqdm

import postroom


def train(lr: float) -> float:
    """Stand in for a training; return its loss."""
    return (lr - 0.3) ** 2


def main(executor: postroom.Executor) -> list[float]:
    """Run the example."""
    rates = [number / 10 for number in range(10)]
    return list(tqdm(executor.map(train, rates), total=len(rates)))


if __name__ == "__main__":
    with postroom.Executor() as executor:
        print(min(main(executor)))
