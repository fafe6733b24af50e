"""Values that JSON can hold as they are: recognised, copied and measured without numpy."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from types import NoneType
from typing import Any

# Among the arguments of a job, the name of those that have none.
POSITIONAL = "*"

_MOST_DEPTH = 16
_SCALARS = frozenset({NoneType, bool, int, float, complex})
_WORD = 8


def plain_values(values: Sequence[Any]) -> object:
    """What `encode` makes of values that JSON can hold as they are."""
    trees = list(values)
    # Compared as text, since 1, 1.0 and True are equal, and so are dicts in another order.
    if len(trees) > 1 and all(repr(tree) == repr(trees[0]) for tree in trees):
        del trees[1:]
    return {"first": 0, "count": len(values), "arrays": {}, "trees": trees}


def is_json(value: Any, depth: int = 0) -> bool:
    """Whether JSON can hold a value as it is, so that `encode` would not change it."""
    if depth > _MOST_DEPTH:
        return False  # deep, or endless: `encode` says which
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or key.startswith("$"):
                return False
            if not is_json(item, depth + 1):
                return False
        return True
    if kind is list:
        return all(is_json(item, depth + 1) for item in value)
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    return kind in (bool, NoneType) or (kind is float and isfinite(value))


def copied(tree: Any) -> Any:
    """A copy of a plain tree; ten times as fast as `deepcopy`."""
    if isinstance(tree, dict):
        return {key: copied(item) for key, item in tree.items()}
    return [copied(item) for item in tree] if isinstance(tree, list) else tree


def is_plain(tree: Any, depth: int = 0) -> bool:
    """Whether a tree is plain JSON: no key begins with `$`, the sign of an encoded value."""
    if depth > _MOST_DEPTH:
        return False
    if isinstance(tree, dict):
        return all(
            not key.startswith("$") and is_plain(item, depth + 1) for key, item in tree.items()
        )
    return not isinstance(tree, list) or all(is_plain(item, depth + 1) for item in tree)


def weight(value: Any) -> int:
    """Roughly how many bytes a value takes in a parcel; whatever it is, this raises nothing."""
    try:
        return _weight(value)
    except Exception:  # it contains itself, say, or is no data at all: `encode` says so
        return _WORD


def _weight(value: Any) -> int:
    kind = type(value)
    if kind in _SCALARS:
        return _WORD
    if kind is str or kind is bytes:
        return len(value)
    if isinstance(value, dict):
        return sum(map(_weight, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_weight, value))
    nbytes = getattr(value, "nbytes", None)
    return _weight_of_object(value) if nbytes is None else int(nbytes)


def _weight_of_object(value: Any) -> int:
    """A frame knows its size; of other objects the arrays among their attributes count."""
    if hasattr(value, "memory_usage"):
        return int(value.memory_usage().sum())
    if hasattr(value, "estimated_size"):
        return int(value.estimated_size())
    attributes = getattr(value, "__dict__", {}).values()
    return _WORD + sum([int(getattr(one, "nbytes", _WORD)) for one in attributes])
