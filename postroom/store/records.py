"""JSON files with a version and typed fields: the base of every small record in a base folder.

A record is a dataclass that inherits from `JsonRecord`. The annotations of its fields say what may
be in the file. These are understood: str, int, float, bool, None, Any, unions of them, enums,
nested dataclasses, tuple, list, set and dict, and classes that have `parse` (written as their
`str`, such as a JobId). Whatever else a file holds is one BadFileError with its path.

A file of another version is not bad: it is an OtherVersionError, which everybody leaves where it
is. So are an unknown field and an unknown word of an enum, which only a later version can have
written.

What is written or read for every letter (letters, `in_hand/`, trailers, sheets, the headers of an
append log) is encoded by hand instead: a letter takes 1.5 µs to encode and 4.8 µs to decode that
way, and would take 7.7 µs and 8.3 µs here.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from ..errors import BadFileError, OtherVersionError, PostroomError

_Reader = Callable[[Any], Any]
_T = TypeVar("_T")


class JsonRecord:
    """The base of a dataclass that is stored as a JSON object in a file of its own."""

    VERSION: ClassVar[int] = 1
    CALLED: ClassVar[str] = "a record"  # what an error says that the file is not
    INDENT: ClassVar[int | None] = 1  # None: in one line, for what no person reads

    def check(self) -> None:
        """Raise ValueError or PostroomError if the fields make no sense together."""

    def encode(self) -> bytes:
        """The content of the file."""
        separators = (",", ":") if self.INDENT is None else None
        content = {"version": self.VERSION, **to_fields(self)}
        return json.dumps(content, indent=self.INDENT, separators=separators).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """Read the content of the file at `path`; raises BadFileError if it is no such record."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            raise BadFileError(path, f"is not {cls.CALLED}: it is not JSON") from None
        version = content.pop("version", None) if isinstance(content, dict) else None
        if type(version) is not int:
            raise BadFileError(path, f"is not {cls.CALLED}: it states no version")
        if version != cls.VERSION:
            raise OtherVersionError(path, f"it is {cls.CALLED} of version {version}")
        try:
            record = from_fields(cls, content)
            record.check()
        except UnknownError as error:
            raise OtherVersionError(path, str(error)) from None
        except (ValueError, PostroomError) as error:
            raise BadFileError(path, f"is not {cls.CALLED}: {error}") from None
        return record


class UnknownError(ValueError):
    """A field, or a word of an enum, that this version does not know."""


def to_fields(record: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values."""
    return {name: _to_json(getattr(record, name)) for name in _shape_of(type(record)).readers}


def from_fields(kind: type[_T], content: Any) -> _T:
    """Make a dataclass from a JSON object; ValueError if a field is missing or wrong.

    An UnknownError says that a later version has written it.
    """
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    readers, required = _shape_of(kind)
    # First of all: a later version that adds a field may also write another one differently.
    if not content.keys() <= readers.keys():
        raise UnknownError(f"it has an unknown field {min(content.keys() - readers.keys())!r:.60}")
    values = {}
    for name, value in content.items():
        try:
            values[name] = readers[name](value)
        except UnknownError:
            raise
        except (ValueError, TypeError) as error:
            raise ValueError(f"its field {name!r} is wrong: {error}") from None
    missing = required.difference(values)
    if missing:
        raise ValueError(f"it has no field {min(missing)!r}")
    return kind(**values)


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "parse"):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_json(item) for item in value]
    if isinstance(value, set):
        return sorted(map(_to_json, value))
    if isinstance(value, enum.Enum):
        return value.value
    return to_fields(value)


class _Shape(typing.NamedTuple):
    readers: dict[str, _Reader]
    required: frozenset[str]


def _shape(kind: Any) -> _Shape:
    hints = typing.get_type_hints(kind)
    required = (f for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return _Shape(
        {field.name: _reader(hints[field.name]) for field in fields(kind)},
        frozenset(field.name for field in required),
    )


_shape_of: Callable[[Any], _Shape] = cache(_shape)


def _reader(hint: Any) -> _Reader:
    """The function that checks a JSON value against a type, and converts it to that type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _union_reader([_reader(argument) for argument in arguments])
    if origin in (list, set) or (origin is tuple and arguments[1:] == (...,)):
        return _list_reader(origin, _reader(arguments[0]))
    if origin is tuple:
        return _tuple_reader([_reader(argument) for argument in arguments])
    if origin is dict:
        key = int if arguments[0] is int else _reader(arguments[0])  # a key of JSON is a text
        return _dict_reader(key, _reader(arguments[1]))
    if hint is Any:
        return lambda value: value
    if hint is float:
        return _read_float
    if issubclass(hint, enum.Enum):
        return _enum_reader(hint)
    if hasattr(hint, "parse"):
        return lambda value: hint.parse(_exactly(str, value))
    if hasattr(hint, "__dataclass_fields__"):
        return lambda value: from_fields(hint, value)
    return lambda value: _exactly(hint, value)


def _exactly(kind: type[_T], value: Any) -> _T:
    # Not `isinstance`: True is an int.
    if type(value) is not kind:
        raise ValueError(f"{value!r:.60} is not {_NAMES.get(kind, kind.__name__)}")
    return value


_NAMES = {str: "a text", int: "a whole number", bool: "true or false", type(None): "null"}


def _read_float(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{value!r:.60} is not a number")
    return float(value)


def _enum_reader(kind: type[enum.Enum]) -> _Reader:
    def read(value: Any) -> enum.Enum:
        try:
            return kind(_exactly(str, value))
        except ValueError as error:
            raise UnknownError(str(error)) if type(value) is str else error from None

    return read


def _union_reader(readers: list[_Reader]) -> _Reader:
    def read(value: Any) -> Any:
        problems = []
        for reader in readers:
            try:
                return reader(value)
            except UnknownError:
                raise
            except ValueError as error:
                problems.append(str(error))
        raise ValueError(", ".join(problems))

    return read


def _list_reader(kind: type[Any], item: _Reader) -> _Reader:
    return lambda value: kind(map(item, _exactly(list, value)))


def _tuple_reader(items: list[_Reader]) -> _Reader:
    def read(value: Any) -> tuple[Any, ...]:
        given = _exactly(list, value)
        if len(given) != len(items):
            raise ValueError(f"{value!r:.60} does not have {len(items)} parts")
        return tuple(reader(one) for reader, one in zip(items, given, strict=True))

    return read


def _dict_reader(key: _Reader, item: _Reader) -> _Reader:
    return lambda value: {key(k): item(v) for k, v in _exactly(dict, value).items()}
