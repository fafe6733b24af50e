"""asyncio: calls on GPUs of their own, awaited. python examples/with_asyncio.py"""

from __future__ import annotations

import asyncio

import postroom


def train(lr: float) -> float:
    """Stand in for a training; return its loss."""
    return (lr - 0.3) ** 2


async def sweep(executor: postroom.Executor, rates: list[float]) -> list[float]:
    """Train with every rate, all at once."""
    loop = asyncio.get_running_loop()
    return await asyncio.gather(*(loop.run_in_executor(executor, train, lr) for lr in rates))


def main(executor: postroom.Executor) -> list[float]:
    """Run the example."""
    return asyncio.run(sweep(executor, [0.1, 0.3, 0.5]))


if __name__ == "__main__":
    with postroom.Executor() as executor:
        print(main(executor))
