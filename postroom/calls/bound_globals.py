"""What the initializer of a program has bound, for its other functions.

A function that travels by value has globals of its own. In its program, an initializer that says
`global model` binds a name that all functions of the script see. So it is in a worker, too: what
the initializer has bound is put among the globals of each function of its module that is opened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cloudpickle.cloudpickle import _function_setstate  # type: ignore[import-untyped]

T = TypeVar("T")


class Bound(NamedTuple):
    """Names that an initializer has bound in its module."""

    module: str
    names: dict[str, Any]


NOTHING = Bound("", {})
_given = NOTHING  # to the functions that are opened now


def bound_by(initializer: Callable[..., Any], run: Callable[[], object]) -> Bound:
    """Run an initializer; return what it has bound where no other function would see it."""
    while isinstance(initializer, partial):
        initializer = initializer.func
    home = getattr(initializer, "__globals__", None)
    module = getattr(initializer, "__module__", None) or ""
    before = dict(home or {})
    run()
    if home is None or home is vars(sys.modules.get(module, sys)):
        return NOTHING
    return Bound(
        module,
        {name: it for name, it in home.items() if name not in before or before[name] is not it},
    )


def giving(bound: Bound, opening: Callable[[], T]) -> T:
    """Open something, whose functions see what was bound."""
    global _given
    _given = bound
    try:
        return opening()
    finally:
        _given = NOTHING


def given() -> int:
    """A number for what is given now: functions that were given something else are others."""
    return id(_given)


def set_function_state(function: Any, state: Any) -> None:
    """What makes a function out of its pickle, as cloudpickle does."""
    _function_setstate(function, state)
    if _given.names and function.__module__ == _given.module:
        function.__globals__.update(_given.names)
