from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import pytest

from postroom.calls.call import open_call, pack_call
from postroom.calls.packed_functions import packed_once


def of_a_script(source: str, **known: Any) -> Callable[..., Any]:
    """The function `f` of a script that nobody can import."""
    names = {"__name__": "__main__", **known}
    exec(source, names)
    found: Callable[..., Any] = names["f"]
    return found


class Pack:
    """Counts how often a function is pickled."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, function: Callable[..., Any]) -> bytes:
        self.times += 1
        return b"%d" % self.times


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return 2 * x",
        "f = lambda x: sorted(x)",
        "import json\ndef f(x): return json.dumps(x)",
        "import json\ndef f(x): return [json.dumps(y) for y in x]",
    ],
)
def test_a_function_that_is_the_same_each_time_is_pickled_once(source: str) -> None:
    function, pack = of_a_script(source), Pack()
    assert packed_once(function, pack) == packed_once(function, pack) == b"1" and pack.times == 1


@pytest.mark.parametrize(
    "source",
    [
        "rate = 2\ndef f(x): return rate * x",
        "rate = 2\ndef f(x): return [rate * y for y in x]",
        "def f(x, rate=[2]): return rate[0] * x",
        "def f(x, *, rate=2): return rate * x",
        "def make():\n    rate = [2]\n    return lambda x: rate[0] * x\nf = make()",
        "def f(x): return 2 * x\nf.rate = 2",
        "def g(x): return 2 * x\ndef f(x): return g(x)",
        "import types\nmade = types.ModuleType('made')\ndef f(x): return made",
        "import functools\nf = functools.partial(max, 2)",
    ],
)
def test_a_function_with_something_that_may_change_is_pickled_each_time(source: str) -> None:
    assert packed_once(of_a_script(source), Pack()) is None


def test_a_function_that_has_changed_is_pickled_again() -> None:
    function, pack = of_a_script("import json\ndef f(x): return json"), Pack()
    packed_once(function, pack)
    function.__globals__["json"] = types
    assert packed_once(function, pack) == b"2"
    function.__code__ = of_a_script("def f(x): return 3 * x").__code__
    assert packed_once(function, pack) == b"3"
    function.__globals__["x"] = np.zeros(2)  # no global of this code
    assert packed_once(function, pack) == b"3"


def test_a_name_that_becomes_a_global_counts() -> None:
    function, pack = of_a_script("def f(x): return later * x"), Pack()
    assert packed_once(function, pack) == b"1"
    function.__globals__["later"] = np.zeros(2)
    assert packed_once(function, pack) is None


def test_such_a_call_arrives_and_two_share_the_function() -> None:
    function = of_a_script("import json\ndef f(x): return json.loads(x)", json=json)
    first, second = (open_call(pack_call(function, (text,), {})) for text in ("1", "[2]"))
    assert first.function(*first.args) == 1 and second.function(*second.args) == [2]
    assert first.function is second.function is not function


def test_code_of_a_module_that_travels_is_pickled_each_time() -> None:
    function = of_a_script("import json\ndef f(x): return json")
    assert packed_once(function, Pack()) is not None
    cloudpickle.register_pickle_by_value(json)
    try:
        assert packed_once(function, Pack()) is None
    finally:
        cloudpickle.unregister_pickle_by_value(json)
