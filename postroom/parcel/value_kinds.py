"""Values that travel as their parts: sets, paths, dates, namespaces; dataclasses by their address.

A kind says what parts a value of one class has, and how it is made of them again. Parts are values
that a parcel can hold, so kinds may contain each other. A class of the user is found by its address
(`module:Class`): it is imported, has to be a dataclass, a named tuple or an enum, and none of its
own code is run. Modules of the standard library are imported when such a value is read.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from . import frames


class ValueKind(NamedTuple):
    """One class: its parts are of the type `takes`, and `build` makes a value of them again."""

    tag: str  # what marks its values in a tree
    module: str
    name: str
    takes: type
    parts: Callable[[Any], Any]
    build: Callable[[Any, Any], Any]  # of the class and the parts
    fields: bool = False  # the parts are attributes


def _numbers(parts: list[Any]) -> list[int]:
    if not all(type(part) is int for part in parts):
        raise TypeError("not whole numbers")
    return parts


def _set_fields(made: Any, fields: dict[str, Any]) -> Any:
    for name, value in fields.items():
        if type(name) is not str or name.startswith("__"):
            raise TypeError("not attributes")
        object.__setattr__(made, name, value)
    return made


def _of_one(cls: Any, parts: Any) -> Any:
    return cls(parts)


def _of_numbers(cls: Any, parts: list[Any]) -> Any:
    return cls(*_numbers(parts))


def _of_all(cls: Any, parts: list[Any]) -> Any:
    return cls(*parts)


def _of_fields(cls: Any, parts: dict[str, Any]) -> Any:
    return _set_fields(cls(), parts)


def _of_clock(cls: Any, parts: dict[str, Any]) -> Any:
    *numbers, fold = _numbers(parts["at"])
    return cls(*numbers, tzinfo=parts["tzinfo"], fold=fold)


def _sorted(value: Any) -> list[Any]:
    return sorted(value, key=repr)  # so that equal sets make equal parcels


def _bounds(value: Any) -> list[Any]:
    return [value.start, value.stop, value.step]


def _time(value: Any) -> dict[str, Any]:
    at = [value.hour, value.minute, value.second, value.microsecond, value.fold]
    return {"at": at, "tzinfo": value.tzinfo}


def _datetime(value: Any) -> dict[str, Any]:
    time = _time(value)
    return {**time, "at": [value.year, value.month, value.day, *time["at"]]}


def _zone(value: Any) -> str:
    if value.key is None:
        raise ValueError("is a time zone without a name: send ZoneInfo('Area/City')")
    return str(value.key)


_KINDS = [
    ValueKind("$set", "builtins", "set", list, _sorted, _of_one),
    ValueKind("$frozenset", "builtins", "frozenset", list, _sorted, _of_one),
    ValueKind("$bytearray", "builtins", "bytearray", bytes, bytes, _of_one),
    ValueKind("$range", "builtins", "range", list, _bounds, _of_numbers),
    ValueKind("$slice", "builtins", "slice", list, _bounds, _of_all),
    ValueKind("$path", "pathlib", "PosixPath", str, str, _of_one),
    ValueKind("$decimal", "decimal", "Decimal", str, str, _of_one),
    ValueKind(
        "$fraction",
        "fractions",
        "Fraction",
        list,
        lambda value: [value.numerator, value.denominator],
        _of_numbers,
    ),
    ValueKind("$uuid", "uuid", "UUID", str, str, _of_one),
    ValueKind(
        "$date",
        "datetime",
        "date",
        list,
        lambda value: [value.year, value.month, value.day],
        _of_numbers,
    ),
    ValueKind(
        "$timedelta",
        "datetime",
        "timedelta",
        list,
        lambda value: [value.days, value.seconds, value.microseconds],
        _of_numbers,
    ),
    ValueKind("$time", "datetime", "time", dict, _time, _of_clock),
    ValueKind("$datetime", "datetime", "datetime", dict, _datetime, _of_clock),
    ValueKind(
        "$timezone",
        "datetime",
        "timezone",
        list,
        lambda value: list(value.__getinitargs__()),
        _of_all,
    ),
    ValueKind("$zone", "zoneinfo", "ZoneInfo", str, _zone, _of_one),
    ValueKind("$namespace", "argparse", "Namespace", dict, vars, _of_fields, fields=True),
    ValueKind("$simplenamespace", "types", "SimpleNamespace", dict, vars, _of_fields, fields=True),
    ValueKind("$size", "torch", "Size", list, list, _of_one),
    ValueKind("$pandas", "pandas", "DataFrame", dict, frames.pandas_parts, frames.pandas_frame),
    ValueKind(
        "$pandas_series",
        "pandas",
        "Series",
        dict,
        frames.pandas_series_parts,
        frames.pandas_series,
    ),
    ValueKind("$polars", "polars", "DataFrame", dict, frames.polars_parts, frames.polars_frame),
    ValueKind(
        "$polars_series",
        "polars",
        "Series",
        dict,
        frames.polars_series_parts,
        frames.polars_series,
    ),
    ValueKind("$arrow", "pyarrow", "Table", dict, frames.arrow_parts, frames.arrow_table),
]
KIND_OF_TAG = {kind.tag: kind for kind in _KINDS}
CLASS_TAGS = ("$dataclass", "$namedtuple", "$enum")
_known: dict[type, ValueKind] = {}


def kind_of(cls: type) -> ValueKind | None:
    """The kind of the values of a class; None: it has none."""
    if cls not in _known:
        for kind in _KINDS:
            # Only a class whose module is loaded can have values.
            if getattr(sys.modules.get(kind.module), kind.name, None) is cls:
                _known[cls] = kind
    return _known.get(cls)


def build(kind: ValueKind, parts: Any) -> Any:
    """The value that has these parts; ValueError if there is none."""
    if type(parts) is not kind.takes:
        raise ValueError(f"its tree has an odd {kind.name}")
    try:
        return kind.build(getattr(importlib.import_module(kind.module), kind.name), parts)
    except Exception as error:  # the constructors raise many kinds
        raise ValueError(f"its tree has a {kind.name} that cannot be made: {error}") from None


# Classes of the user


def class_tag(value: Any) -> str | None:
    """The tag of a value whose class is found by its address; None: it is another value."""
    cls = type(value)
    if isinstance(value, enum.Enum):
        return "$enum"
    if isinstance(value, tuple) and isinstance(getattr(cls, "_fields", None), tuple):
        return "$namedtuple"
    return "$dataclass" if dataclasses.is_dataclass(cls) and _is_plain(cls) else None


def address_of(cls: type) -> str:
    """`module:Class`; ValueError if others could not import it, with what to do."""
    name, home = cls.__qualname__, cls.__module__
    if home == "__main__":
        raise ValueError(
            f"is a {name}, a class of the script itself, which sessions cannot import: move the"
            " class to a module of its own"
        )
    if _find(sys.modules.get(home), name) is not cls:
        raise ValueError(
            f"is a {name}, which cannot be imported as {home}.{name}: define the class at the top"
            " of a module, and make the value again if the module was reloaded"
        )
    return f"{home}:{name}"


def class_parts(value: Any, tag: str) -> Any:
    """The attributes of a value by their names; for a member of an enum its name."""
    if tag == "$enum":
        if type(value).__members__.get(value.name) is not value:
            raise ValueError("is a combination of flags: send its value, a number")
        return value.name
    if tag == "$namedtuple":
        return dict(zip(value._fields, value, strict=True))
    names = [field.name for field in dataclasses.fields(value)]
    given = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return given | getattr(value, "__dict__", {})


def build_of_class(tag: str, address: str, parts: Any) -> Any:
    """A value of a class that is imported by its address; ValueError if it cannot be made."""
    module, _, name = str(address).partition(":")
    try:
        cls = _find(_imported(module), name)
    except Exception as error:  # the module is anybody's code
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"it holds a {name} of the module {module}: {what}") from None
    try:
        if not isinstance(cls, type):
            raise TypeError("the module has no such class")
        if tag == "$enum" and issubclass(cls, enum.Enum):
            return cls[parts]
        fields = getattr(cls, "_fields", None)
        if tag == "$namedtuple" and issubclass(cls, tuple) and tuple(parts) == fields:
            return tuple.__new__(cls, parts.values())
        if tag == "$dataclass" and dataclasses.is_dataclass(cls) and _is_plain(cls):
            return _set_fields(object.__new__(cls), parts)
        raise TypeError("the class is another now")
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"it holds a {module}.{name} that cannot be made: {what}") from None


def _imported(module: str) -> object:
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None) or ""
    # To import the script that is running would run it again.
    if module == (spec.name if spec else os.path.splitext(os.path.basename(file))[0]):
        return main
    return sys.modules.get(module) or importlib.import_module(module)


def _find(module: object, name: str) -> object:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_plain(cls: type) -> bool:
    """Whether all that a value of a class holds are its attributes."""
    try:
        object.__new__(cls)
    except TypeError:  # it is a list, say, or abstract
        return False
    return True


_INSTEAD = [
    ("builtins", "type", "send its name as text"),
    ("types", "FunctionType", "send its name as text, and import it in the task"),
    ("types", "BuiltinFunctionType", "send its name as text, and import it in the task"),
    ("types", "MethodType", "send its name as text, and import it in the task"),
    ("types", "ModuleType", "send its name as text, and import it in the task"),
    ("io", "IOBase", "send its path, and open it in the task"),
    ("collections.abc", "Iterator", "send a list of its items"),
    ("torch.nn", "Module", "send its state_dict(), and make the module in the task"),
    ("torch", "dtype", "send its name as text"),
    ("torch", "device", "name `device` among the task's parameters: it is passed the session's"),
    ("torch", "Generator", "send a seed"),
    ("numpy.random", "Generator", "send a seed"),
    ("numpy", "dtype", "send its name as text"),
    ("polars", "LazyFrame", "send .collect()"),
    ("pandas", "Timestamp", "send .to_pydatetime()"),
    ("builtins", "tuple", "send tuple(...) of it"),
    ("builtins", "list", "send list(...) of it"),
    ("builtins", "dict", "send dict(...) of it"),
]
_OTHERWISE = "turn it into numbers, text, bytes, arrays, or lists and dicts of them"


def refusal(value: Any) -> str:
    """What a value is that cannot travel, and what to pass instead."""
    cls = type(value)
    what = f"is the class {value.__qualname__}" if cls is type else f"is of type {cls.__qualname__}"
    for module, name, advice in _INSTEAD:
        known = getattr(sys.modules.get(module), name, None)
        if isinstance(known, type) and isinstance(value, known):
            return f"{what}: {advice}"
    return f"{what}: {_OTHERWISE}"
