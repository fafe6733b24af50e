"""scipy: a whole generation at once, each member on a GPU. python examples/with_scipy.py"""

from __future__ import annotations

from scipy.optimize import OptimizeResult, differential_evolution

import postroom


def loss(x: list[float]) -> float:
    """Stand in for a simulation on a GPU."""
    return float((x[0] - 1) ** 2 + (x[1] + 2) ** 2)


def main(executor: postroom.Executor) -> OptimizeResult:
    """Run the example."""
    bounds = [(-5, 5), (-5, 5)]
    return differential_evolution(
        loss, bounds, workers=executor.map, updating="deferred", maxiter=3, popsize=5, seed=0
    )


if __name__ == "__main__":
    with postroom.Executor() as executor:
        print(main(executor).x)
