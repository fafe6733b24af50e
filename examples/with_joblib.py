"""joblib and scikit-learn: each fit of a search on a GPU of its own.

python examples/with_joblib.py
"""

from __future__ import annotations

import os
from typing import Any

import joblib
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import GridSearchCV

from postroom.adapters.joblib import register


class Ridge(RegressorMixin, BaseEstimator):
    """Stands in for a model that is fitted on a GPU."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def fit(self, x: Any, y: Any) -> Ridge:
        """Fit it."""
        self.gpu_ = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.weights_ = np.linalg.solve(x.T @ x + self.alpha * np.eye(x.shape[1]), x.T @ y)
        return self

    def predict(self, x: Any) -> Any:
        """Predict."""
        return x @ self.weights_


def on_gpu(model: Ridge, x: Any, y: Any) -> int:
    """Say which GPU a fit ran on; the search keeps it with the scores."""
    return int(model.gpu_ or -1)


def main(**options: Any) -> GridSearchCV:
    """Run the example; the options are those of `postroom.Executor`."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 4))
    y = x @ np.array([1.0, -2.0, 3.0, 0.0]) + generator.normal(size=200)
    grid, scores = {"alpha": [0.01, 1.0, 100.0]}, {"r2": "r2", "gpu": on_gpu}
    register()
    with joblib.parallel_config("postroom", **options):
        return GridSearchCV(Ridge(), grid, scoring=scores, refit="r2", cv=2).fit(x, y)


if __name__ == "__main__":
    search = main()
    print(search.best_params_, "on GPUs", search.cv_results_["split0_test_gpu"])
