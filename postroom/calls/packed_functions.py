"""Functions that travel by value, pickled once.

To pickle a function of a script takes 150 us, and to make it again nearly as long: more than all
else that a small call needs. So the pickle is kept, as long as it would be the same: the function
has no closure, no defaults and no attributes, and the globals that it names are modules, which are
the same ones as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from operator import is_
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import cloudpickle  # type: ignore[import-untyped]


class _Kept(NamedTuple):
    code: CodeType
    names: tuple[str, ...]  # all that the code may take for a global
    found: list[Any]  # what they were
    data: bytes


_kept: WeakKeyDictionary[FunctionType, _Kept] = WeakKeyDictionary()


def packed_once(
    function: Callable[..., Any], pack: Callable[[Callable[..., Any]], bytes]
) -> bytes | None:
    """The pickle of a function, which `pack` makes; None: it may be another one each time."""
    if type(function) is not FunctionType or _has_state(function):
        return None
    if cloudpickle.list_registry_pickle_by_value():
        return None  # the code of some modules travels, too, and may change
    kept, known = _kept.get(function), function.__globals__.get
    if (
        kept is not None
        and kept.code is function.__code__
        and all(map(is_, map(known, kept.names), kept.found))
    ):
        return kept.data
    names = tuple(_names(function.__code__))
    found = list(map(known, names))
    if not all(one is None or _is_imported(one) for one in found):
        return None
    data = pack(function)
    _kept[function] = _Kept(function.__code__, names, found, data)
    return data


def _has_state(function: FunctionType) -> bool:
    return bool(
        function.__closure__
        or function.__defaults__
        or function.__kwdefaults__
        or function.__dict__
    )


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_imported(value: object) -> bool:
    """Whether it is a module that any process imports by its name."""
    if not isinstance(value, ModuleType) or value.__spec__ is None:
        return False
    return sys.modules.get(value.__name__) is value
