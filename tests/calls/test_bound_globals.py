from __future__ import annotations

from functools import partial
from typing import Any

from postroom.calls.bound_globals import NOTHING, bound_by, giving
from postroom.calls.call import Call, open_call, pack_call

SCRIPT = """
model, rate = None, 0.1

def load(size):
    global model, extra
    model = [size]
    extra = size

def look(*_):
    return model, rate

def more():
    return extra

def grow():
    model.append(len(model))
"""


def script() -> dict[str, Any]:
    """The globals of a program that no other process imports."""
    found: dict[str, Any] = {"__name__": "a_script"}
    exec(SCRIPT, found)
    return found


def sent(function: Any, *args: Any) -> Call:
    """A call as it arrives."""
    return open_call(pack_call(function, args, {}))


def test_what_an_initializer_binds_is_seen_by_the_functions_of_its_script() -> None:
    here = script()
    call = sent(partial(here["load"], 3))
    bound = bound_by(call.function, lambda: call.function(*call.args))
    assert bound.names == {"model": [3], "extra": 3}
    for args in [(), (object(),)]:  # with plain arguments, and in a pickle with others
        assert giving(bound, lambda args=args: sent(here["look"], *args)).function() == ([3], 0.1)
    assert giving(bound, lambda: sent(here["more"])).function() == 3
    giving(bound, lambda: sent(here["grow"])).function()
    assert bound.names["model"] == [3, 1]  # as in a script, they share it
    # The same function of a program with another initializer, or with none, is another function.
    assert sent(here["look"]).function() == (None, 0.1)
    assert here["model"] is None


def test_functions_of_other_modules_are_given_nothing() -> None:
    here, other = script(), script()
    other["look"].__module__ = "another"
    call = sent(here["load"], 3)
    bound = bound_by(call.function, lambda: call.function(*call.args))
    assert giving(bound, lambda: sent(other["look"])).function() == (None, 0.1)


def test_an_initializer_that_can_be_imported_needs_none_of_it() -> None:
    ran: list[int] = []
    assert bound_by(bound_by, lambda: ran.append(1)) is NOTHING
    assert bound_by(print, lambda: ran.append(2)) is NOTHING
    assert ran == [1, 2]
