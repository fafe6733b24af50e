"""Objects that a pickle names, and that travel by value where nobody else can import them."""

from __future__ import annotations

from typing import Any


class ByValue:
    """The base class of such objects; light, since decorating a function imports it."""

    def reduce_by_value(self) -> Any:
        """As `__reduce__`; NotImplemented: its name will do."""
        return NotImplemented
