"""One call of a function, on its way to an agent and back.

    function the agent can import, plain arguments   {"function": "module:name", "args": [1, 2]}
    a function of a script, plain arguments          {"function": its pickle, "args": [1, 2]}
    any other call                                   {"pickle": bytes, "buffers": [array, ...]}
    its result                                       the value itself, or a pickle as above
    its exception                                    a pickle beside the traceback of the failure

Plain means: numbers, texts, and lists and dicts of them, which need no pickle. All else is pickled
by cloudpickle, so that lambdas, closures, and functions and classes of a script or a notebook
travel by value. The memory of arrays is not copied into the pickle: it lies beside it, as members
of the parcel.

A pickle runs code when it is read. What is read here was written by a process of this user into a
base that nobody else can write to (see SECURITY.md).
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from ..errors import PostroomError
from ..parcel.jsonable import is_json
from .bound_globals import given, set_function_state
from .broken_pool import UnreadableCall
from .by_value import ByValue
from .packed_functions import packed_once

# The task of such a job. A session that finds it runs what the arguments say.
CALL = "postroom.calls.call:perform"

# The key of a dict that holds a pickle, which no plain value can have: `is_json` refuses "$".
_PICKLE, _BUFFERS = "pickle", "buffers"


class Call(NamedTuple):
    """A function and what it is passed."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def perform() -> None:
    """The name that such jobs have; a session looks into their arguments instead."""
    raise PostroomError("a call has to be run by a session of this version of Postroom")


def function_by_value() -> None:
    """The name that jobs have whose function is among their arguments."""
    raise PostroomError("such a job has to be run by a session of this version of Postroom")


def pack_function(function: Callable[..., Any]) -> bytes:
    """A function that travels by value."""
    return packed_once(function, _pack_function) or _pack_function(function)


def _pack_function(function: Callable[..., Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(function)
    return file.getvalue()


def open_function(data: bytes) -> Callable[..., Any]:
    """The function; the jobs of a worker share it, as they share a module."""
    return _opened(data, given())


@lru_cache(maxsize=64)
def _opened(data: bytes, _given: int) -> Callable[..., Any]:
    function: Callable[..., Any] = open_pickle({_PICKLE: data, _BUFFERS: []}, "the function")
    return function


def pack_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a job that makes this call; raises what pickling raises."""
    passed = [list(args), kwargs]
    if is_json(passed):
        found: str | bytes | None = address_of(function) or packed_once(function, _pack_function)
        if found is not None:
            return {"function": found, "args": passed[0], "kwargs": kwargs}
    return pack_pickle(Call(function, args, kwargs))


def open_call(arguments: Mapping[str, Any]) -> Call:
    """The call that a job makes; what its pickle raises is the cause of an UnreadableCall."""
    if _PICKLE in arguments:
        call: Call = open_pickle(arguments, "the call")
        return call
    sent = arguments["function"]
    function = find(sent) if isinstance(sent, str) else open_function(bytes(sent))
    return Call(function, arguments["args"], arguments["kwargs"])


def mentions(arguments: Mapping[str, Any], *words: str) -> bool:
    """Whether the function of a call has one of these in its address, or in its pickled code."""
    sent = arguments.get(_PICKLE) or arguments["function"]
    return any((word if isinstance(sent, str) else word.encode()) in sent for word in words)


def pack_result(value: Any) -> Any:
    """What a call has returned, as the result of its job."""
    return {"value": value} if is_json(value) else pack_pickle(value)


def open_result(packed: Mapping[str, Any]) -> Any:
    """What the call has returned."""
    return packed["value"] if "value" in packed else open_pickle(packed, "the result of the call")


def pack_exception(error: BaseException) -> str:
    """An exception as text, for the failure of a job; "" if it cannot be pickled."""
    try:
        return b64encode(cloudpickle.dumps(error)).decode()
    except Exception:  # it holds an open file, say: its text and traceback have to do
        return ""


def open_exception(text: str) -> BaseException | None:
    """The exception; None if there is none, or it cannot be made again here."""
    try:
        error = pickle.loads(b64decode(text)) if text else None  # noqa: S301 - see above
    except BaseException:  # a class whose __init__ wants other arguments, say
        return None
    return error if isinstance(error, BaseException) else None


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ByValue):
            reduced = value.reduce_by_value()
            if reduced is not NotImplemented:
                return reduced
        reduced = super().reducer_override(value)
        if type(value) is FunctionType and type(reduced) is tuple:
            return *reduced[:-1], set_function_state
        return reduced


def pack_pickle(value: Any) -> dict[str, Any]:
    """A pickle, with the memory of large arrays beside it."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return {
        _PICKLE: file.getvalue(),
        _BUFFERS: [np.frombuffer(one.raw(), np.uint8) for one in buffers],
    }


def open_pickle(packed: Mapping[str, Any], what: str) -> Any:
    """The value that was pickled."""
    try:
        # Copied, since the function may write into an array, and what is mapped is read-only.
        buffers = [bytearray(one) for one in packed[_BUFFERS]]
        return pickle.loads(packed[_PICKLE], buffers=buffers)  # noqa: S301 - see above
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
        raise UnreadableCall(f"{what} cannot be unpickled: {said}") from error


# Functions that others can import; a cache, since every call asks.
_addresses: dict[Callable[..., Any], str] = {}


def address_of(function: Callable[..., Any]) -> str | None:
    """`module:name` of a function that another process imports; None if it has to be pickled."""
    try:
        known = _addresses.get(function)
    except TypeError:  # it has no hash
        return None
    if known is not None:
        return known
    home, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    module = sys.modules.get(home) if isinstance(home, str) else None
    if module is None or not isinstance(name, str) or home == "__main__":
        return None
    # A module that was made by hand has no spec, and nobody else can import it.
    if getattr(module, "__spec__", None) is None or _is_sent_by_value(str(home)):
        return None
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        return None
    _addresses[function] = address = f"{home}:{name}"
    return address


def _is_sent_by_value(module: str) -> bool:
    registered: set[str] = cloudpickle.list_registry_pickle_by_value()
    return any(module == one or module.startswith(f"{one}.") for one in registered)


def find(address: str) -> Callable[..., Any]:
    """Import a function by its address."""
    import importlib

    home, _, name = address.partition(":")
    found: Any = sys.modules.get(home) or importlib.import_module(home)
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


class CallContext(NamedTuple):
    """What all calls of one program have in common; it is sent once, as shared data of the run."""

    paths: list[str]
    folder: str
    most_calls: int | None  # of one worker; then it is replaced
    authkey: bytes  # of multiprocessing: with it, proxies of a Manager can be passed
    start: Mapping[str, Any]  # the initializer and what it is passed, pickled

    def initializer(self) -> Call | None:
        """What a worker calls first; for it, the paths must be known."""
        call: Call | None = open_pickle(self.start, "the initializer")
        return call


def context_here(
    initializer: Callable[..., object] | None = None,
    initargs: tuple[Any, ...] = (),
    most_calls: int | None = None,
) -> CallContext:
    """The context of this process."""
    import multiprocessing

    return CallContext(
        [os.path.abspath(path) for path in sys.path],
        os.getcwd(),
        most_calls,
        bytes(multiprocessing.current_process().authkey),
        pack_pickle(initializer and Call(initializer, initargs, {})),
    )
