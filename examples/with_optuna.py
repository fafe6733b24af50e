"""Optuna: each trial on a GPU of its own. python examples/with_optuna.py"""

from __future__ import annotations

import optuna

import postroom
from postroom.adapters.optuna import optimize


def objective(trial: optuna.Trial) -> float:
    """Stand in for a training that reports its loss, and may be pruned."""
    x = trial.suggest_float("x", -10, 10)
    for step in range(3):
        trial.report((x - 2) ** 2 + 3 - step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return (x - 2) ** 2


def main(executor: postroom.Executor | None = None, n_trials: int = 6) -> optuna.Study:
    """Run the example; any storage, sampler and pruner will do."""
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=2))
    optimize(study, objective, n_trials=n_trials, n_jobs=2, executor=executor)
    return study


if __name__ == "__main__":
    print(main().best_params)
