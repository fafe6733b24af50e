"""Batches: the arguments of jobs that are alike on a new first axis, and the result split again.

    jobs     f(x=array of shape (3,), k=1), f(x=array of shape (3,), k=2)
    a batch  f(x=array of shape (2, 3), k=array([1, 2]))  ->  an array of shape (2, ...)

Arrays, tensors and numbers are stacked. All else has to be equal in all jobs of a batch, and is
passed once. A kernel returns an array, tensor or list with a row for each job, or a dict or tuple
of such.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import PostroomError
from ..parcel.tensors import is_tensor

# A worker begins with batches of one and doubles them, so that a job that kills it is soon found.
MOST_JOBS = 256


class NotAlike(PostroomError):
    """Jobs cannot share a batch."""


class NoRows(PostroomError):
    """A kernel returned something that cannot be split among the jobs of its batch."""


def stack(passed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The arguments of one call for many jobs; NotAlike: they need a call each."""
    names = tuple(passed[0])
    if any(tuple(one) != names for one in passed):
        raise NotAlike("they are passed different arguments")
    return {name: _stacked(name, [one[name] for one in passed]) for name in names}


def _stacked(name: str, column: list[Any]) -> Any:
    model = column[0]
    kind = type(model)
    if any(type(one) is not kind for one in column):
        raise NotAlike(f"{name} has different types")
    if is_tensor(model) or kind is np.ndarray:
        if any(one.shape != model.shape or one.dtype != model.dtype for one in column):
            raise NotAlike(f"{name} has different shapes")
        return np.stack(column) if kind is np.ndarray else sys.modules["torch"].stack(column)
    if kind in (bool, int, float, complex) or isinstance(model, np.generic):
        return np.array(column)
    if any(one is not model and one != model for one in column):
        raise NotAlike(f"{name} differs, and is neither an array nor a number")
    return model


def split(value: Any, jobs: int) -> list[Any]:
    """What a call for many jobs returned, for each of them."""
    if isinstance(value, dict):
        columns = [split(item, jobs) for item in value.values()]
        rows = zip(*columns, strict=True) if columns else [()] * jobs
        return [dict(zip(value, row, strict=True)) for row in rows]
    if type(value) is tuple:
        columns = [split(item, jobs) for item in value]
        return list(zip(*columns, strict=True)) if columns else [()] * jobs
    if value is None:
        return [None] * jobs
    is_array = is_tensor(value) or isinstance(value, np.ndarray)
    if (is_array and value.ndim and len(value) == jobs) or (
        type(value) is list and len(value) == jobs
    ):
        return [value[number, ...] if is_array else value[number] for number in range(jobs)]
    shape = f"of shape {tuple(value.shape)}" if is_array else f"{value!r:.40}"
    raise NoRows(
        f"the kernel returned {type(value).__name__} {shape} for a batch of {jobs} jobs: return an "
        "array, a tensor or a list with a row for each job, or a dict or tuple of them"
    )
