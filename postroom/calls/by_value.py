"""Objects that a pickle names, and that travel by value where nobody else can import them."""

from __future__ import annotations

from typing import Any

# The task of a job whose function sessions cannot import, and the argument that holds its pickle.
BY_VALUE = "postroom.calls.call:function_by_value"
FUNCTION = "*function"


class ByValue:
    """The base class of such objects; light, since decorating a function imports it."""

    def reduce_by_value(self) -> Any:
        """As `__reduce__`; NotImplemented: its name will do."""
        return NotImplemented
