"""Shared data of a run, in one session: every job is passed the same tensors, so none may change
them.

Arrays are views of a read-only file. Tensors can be written, and torch counts that: after each job
the version of every tensor, its `grad` and its `requires_grad` are compared, and the items of the
dicts and lists around them. A write that torch does not see (`.data`, `.numpy()`) is not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import PostroomError
from ..parcel.tensors import is_tensor

# In a structure with more items than this, only its tensors are compared.
MOST_ITEMS = 64


class SharedDataChanged(PostroomError):
    """A kernel has changed data that it shares with all other jobs of its run."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the kernel changed {what}: all jobs of the run are passed the same; change a copy of "
            "it, as in `x = shared.clone()`"
        )


class SharedData:
    """The data, and how they were when they were loaded."""

    def __init__(self, value: Any) -> None:
        self.value = value
        items = list(_items("shared", value))
        self._few = len(items) <= MOST_ITEMS
        kept = [(name, item) for name, item in items if self._few or is_tensor(item)]
        self._items = [(name, item, _state(item)) for name, item in kept]
        self._can_change = not isinstance(value, np.ndarray)  # which nobody can write
        self.nbytes = sum(item.nbytes for _, item in kept if is_tensor(item))

    def changed(self) -> str:
        """What has been changed; "" if nothing has."""
        if not self._can_change:
            return ""
        for name, item, state in self._items:
            if _state(item) != state:
                return name
        if self._few:
            now = [item for _, item in _items("shared", self.value)]
            if len(now) != len(self._items):
                return "the items of its shared data"
            for item, (name, before, _) in zip(now, self._items, strict=True):
                if item is not before:
                    return name
        return ""


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _items(f"{name}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _items(f"{name}[{number}]", item)
    else:
        yield name, value


def _state(item: Any) -> tuple[Any, ...] | None:
    if not is_tensor(item):
        return None
    version = 0 if item.is_inference() else item._version
    return version, item.requires_grad, item.grad is None
