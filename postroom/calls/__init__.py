"""Calls of Python functions as jobs: how they travel, and the futures that stand for them."""
