"""Doors for other frameworks: joblib, Hydra, Optuna, submitit, pytest.

Each module is imported only by those who use that framework, and each has an extra of its name.
"""
