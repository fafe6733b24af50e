"""Calls of Python functions, on their way to an agent and back."""
