"""Values that never change, defined as frozen dataclasses are, at none of their cost.

`postroom gpu get` is called in shell loops. To import `dataclasses` takes longer than to take a
lease, and each class that it makes costs another half millisecond: together as much as three bare
Pythons. A type checker sees dataclasses here; what runs is below.
"""

from __future__ import annotations

# Known to type checkers by its name, so that nobody pays for `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeVar, dataclass_transform

    F = TypeVar("F", bound="Frozen")
else:

    def dataclass_transform(**_):
        """Do nothing: only type checkers ask."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Frozen:
    """A value: its fields are the annotations of its class, in their order."""

    _fields: tuple[str, ...] = ()
    _names: frozenset[str]
    _defaults: dict[str, Any]

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)
        cls._names = frozenset(cls._fields)
        cls._defaults = {name: vars(cls)[name] for name in cls._fields if name in vars(cls)}

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self.__dict__
        fields.update(self._defaults)
        fields.update(zip(self._fields, values, strict=False))
        fields.update(named)
        if (
            fields.keys() != self._names
            or len(values) > len(self._fields)
            or (named and not named.keys().isdisjoint(self._fields[: len(values)]))
        ):
            raise TypeError(
                f"{type(self).__name__} has the fields {', '.join(self._fields)}; "
                f"it was given {len(values)} by place and {', '.join(named) or 'none'} by name"
            )

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be removed")

    def _key(self) -> tuple[Any, ...]:
        return tuple(self.__dict__[name] for name in self._fields)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        values = (f"{name}={self.__dict__[name]!r}" for name in self._fields)
        return f"{type(self).__name__}({', '.join(values)})"


def replace(value: F, **changes: Any) -> F:
    """Return a copy with some fields changed."""
    return type(value)(**(value.__dict__ | changes))
