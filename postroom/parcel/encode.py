"""Values as the members of a parcel: arrays as `.npy`, all else as a JSON tree.

    values  [{"x": array, "k": 3}, {"x": array, "k": 4}, ...]
    tree    {"first": 0, "count": 2, "arrays": {"x": true},
             "trees": [{"x": {"$array": "x"}, "k": 3}, {"x": {"$array": "x"}, "k": 4}]}
    members x.npy                of shape (2, ...), where the arrays of all values are alike, else
            000000000.x.npy      one for each value, by its job's number

JSON values are kept as they are; an object with one key that begins with `$` encodes a value that
JSON lacks: a tensor is its dtype and an array, most others are their parts (see `value_kinds`). If
the trees of all values are equal, one is kept. Pickle is off unless asked for. `decode` does the
reverse.
"""

from __future__ import annotations

import json
import math
import pickle as pickles
import re
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from types import NoneType
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from ..errors import PayloadError, brief
from .container import SMALL, Buffer
from .jsonable import POSITIONAL
from .npy import describe, npy_header
from .tensors import array_of, is_tensor
from .value_kinds import address_of, class_parts, class_tag, kind_of, refusal

Array: TypeAlias = np.ndarray[Any, Any]
Path: TypeAlias = tuple[Any, ...]
Label: TypeAlias = str | Callable[[int], str]

MAX_DEPTH = 64

_dump = json.JSONEncoder(separators=(",", ":")).encode

_JSON_SCALARS = frozenset({str, int, float, bool, NoneType})
_INLINE_BYTES = 512  # longer ones become members: base64 and JSON are slow
_STACKED_DIMENSIONS = 31  # the first axis is one more, and older numpy knows 32


def encode(
    values: Sequence[Any], *, first: int = 0, label: Label = "value", pickle: bool | None = False
) -> tuple[object, list[tuple[str, Sequence[Buffer]]]]:
    """A JSON-able tree that describes all values, and the members with their arrays.

    `first` is the job number of the first value. `label` begins the path by which an error names a
    value: a string, or a function of the value's position; after a colon, the first key is an
    argument. With `pickle` None, no job could ask for it. Large arrays are not copied: the members
    are views of them.
    """
    encoder = _Encoder(label, pickle)
    trees: list[object] = []
    for position, value in enumerate(values):
        encoder.position = position
        trees.append(encoder.root(value))
    # Compared as text, since 1, 1.0 and True are equal, and so are dicts in another order.
    if len(trees) > 1:
        common = repr(trees[0])
        if all(repr(tree) == common for tree in trees):
            del trees[1:]
    stacked, members = _members(encoder.columns, first, len(values))
    # No member is named by a job's number where all are stacks: alike values have the same tree.
    first = 0 if all(stacked.values()) else first
    return _tree(first, len(values), stacked, trees), members


def _tree(first: int, count: int, arrays: dict[str, bool], trees: list[object]) -> object:
    return {"first": first, "count": count, "arrays": arrays, "trees": trees}


def encode_text(
    values: Sequence[Any], *, first: int = 0, label: Label = "value", pickle: bool = False
) -> tuple[str, list[tuple[str, Sequence[Buffer]]]]:
    """Like `encode`, with the tree as JSON text; faster for arrays of the same shape and dtype."""
    if len(values) == 1 and (lone := _lone(values[0])) is not None:
        return lone
    columns = _alike(values)
    if columns is None:
        tree, members = encode(values, first=first, label=label, pickle=pickle)
        return _dump(tree), members
    members = []
    count = len(values)
    for name, column in columns.items():
        model = column[0]
        header = npy_header(model.dtype, (count, *model.shape), False)
        members.append((f"{name}.npy", [header, *_buffers_of(column)]))
    return _alike_text(count, tuple(columns), bare=type(values[0]) is np.ndarray), members


def _lone(value: Any) -> tuple[str, list[tuple[str, Sequence[Buffer]]]] | None:
    """What `encode_text` makes of a single array or dict of arrays; None: it is something else."""
    bare = type(value) is np.ndarray
    if bare:
        value = {"value": value}
    elif type(value) is not dict or not value:
        return None
    names = tuple(value)
    if not _are_safe(names):
        return None
    members: list[tuple[str, Sequence[Buffer]]] = []
    for name, array in value.items():
        if type(array) is not np.ndarray:
            return None
        header = _stack_header(array.dtype, array.shape)
        if header is None or array.flags.fnc:
            return None
        members.append((f"{name}.npy", [header, buffer_of(array)]))
    return _alike_text(1, names, bare=bare), members


@lru_cache(maxsize=128)
def _stack_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes | None:
    """The header of a stack of one array; None: it cannot be stacked."""
    if len(shape) > _STACKED_DIMENSIONS:
        return None
    try:
        return npy_header(dtype, (1, *shape), False)
    except (TypeError, ValueError):
        return None


@lru_cache(maxsize=256)
def _alike_text(count: int, names: tuple[str, ...], *, bare: bool) -> str:
    """The tree of similar values: an array each, or a dict of arrays."""
    tree: object = {"$array": names[0]} if bare else {name: {"$array": name} for name in names}
    return _dump(_tree(0, count, dict.fromkeys(names, True), [tree]))


def _alike(values: Sequence[Any]) -> dict[str, list[Array]] | None:
    """The arrays of all values by name, if nothing else differs.

    It is what most jobs pass and return: arrays, or dicts of them by name, each of one type and
    shape. None: they are something else, which is no fault.
    """
    if not values:
        return None
    common = values[0]
    if type(common) is np.ndarray:
        columns = {"value": list(values)}
    elif type(common) is dict and common and _are_safe(keys := tuple(common)):
        for value in values:
            if value is not common and (type(value) is not dict or tuple(value) != keys):
                return None
        columns = {key: [value[key] for value in values] for key in keys}
    else:
        return None
    for column in columns.values():
        if not _is_stack(column):
            return None
    return columns


@lru_cache(maxsize=256, typed=True)
def _are_safe(keys: tuple[object, ...]) -> bool:
    """Whether arrays may be named by these keys as they are."""
    return all(type(key) is str and _SAFE.fullmatch(key) for key in keys)


def _is_stack(column: list[Any]) -> bool:
    count, model = len(column), column[0]
    # Counted, since that compares hundreds of arrays without a step of Python for each.
    if list(map(type, column)).count(np.ndarray) < count or model.ndim > _STACKED_DIMENSIONS:
        return False
    try:
        describe(model.dtype)
    except (TypeError, ValueError):
        return False
    return (
        [array.dtype for array in column].count(model.dtype) == count
        and [array.shape for array in column].count(model.shape) == count
        and (model.ndim < 2 or [array.flags.fnc for array in column].count(True) == 0)
    )


def _buffers_of(column: list[Array]) -> list[Buffer]:
    """The data of arrays that are alike; small ones are joined at once."""
    if column[0].nbytes < SMALL:
        with suppress(TypeError, ValueError):  # one of them is a view with gaps, say
            return [b"".join(cast("list[Buffer]", column))]
    return [buffer_of(array) for array in column]


class _Encoder:
    """Turns values into nodes of a tree, and collects their arrays into columns by name."""

    def __init__(self, label: Label, pickle: bool | None) -> None:
        self.position = 0
        self.columns: dict[str, list[tuple[int, Array]]] = {}
        self._label = label
        self._pickle = pickle
        self._names: dict[Path, str] = {}
        self._repeats: dict[str, int] = {}

    def root(self, value: Any) -> object:
        try:
            return self.node(value, ())
        except PayloadError:
            raise
        except Exception as error:  # looking at a value may run its own code
            what = f"{type(error).__name__}: {brief(str(error))}"
            raise PayloadError(f"{self._where(())} cannot be stored: {what}") from error

    def node(self, value: Any, path: Path) -> object:
        return self._BY_TYPE.get(type(value), _Encoder._other)(self, value, path)

    def _itself(self, value: object, path: Path) -> object:
        return value

    def _int(self, value: int, path: Path) -> object:
        return value if -(1 << 63) <= value < 1 << 63 else {"$int": hex(value)}

    def _float(self, value: float, path: Path) -> object:
        return value if math.isfinite(value) else {"$float": repr(value)}

    def _complex(self, value: complex, path: Path) -> object:
        return {"$complex": [self._float(value.real, path), self._float(value.imag, path)]}

    def _str(self, value: str, path: Path) -> object:
        if _is_unicode(value):
            return value
        # JSON would join two lone surrogates that happen to be neighbours.
        return {"$str": b64encode(value.encode("utf-8", "surrogatepass")).decode()}

    def _bytes(self, value: bytes, path: Path) -> object:
        return {"$bytes": self._blob(value, path)}

    def _blob(self, value: bytes, path: Path) -> object:
        if len(value) <= _INLINE_BYTES:
            return b64encode(value).decode()
        return self._array(np.frombuffer(value, np.uint8), path)

    def _list(self, value: list[Any], path: Path) -> object:
        self._check_depth(path)
        return [self.node(item, (*path, index)) for index, item in enumerate(value)]

    def _tuple(self, value: tuple[Any, ...], path: Path) -> object:
        self._check_depth(path)
        return {"$tuple": [self.node(item, (*path, index)) for index, item in enumerate(value)]}

    def _dict(self, value: dict[Any, Any], path: Path) -> object:
        self._check_depth(path)
        if all(map(_is_plain_key, value)):
            return {key: self.node(item, (*path, key)) for key, item in value.items()}
        for key in value:
            if type(key) not in _JSON_SCALARS:
                what = f"has a key of type {type(key).__qualname__}: turn it into text or a number"
                return self._pickled(value, path, what)
        pairs = [
            [self.node(key, path), self.node(item, (*path, key))] for key, item in value.items()
        ]
        return {"$dict": pairs}

    def _array(self, value: Array, path: Path) -> object:
        try:
            describe(value.dtype)
        except (TypeError, ValueError):
            what = f"is an array of dtype {value.dtype}: turn it into numbers or text, with .astype"
            return self._pickled(value, path, what)
        return {"$array": self._put(value, path)}

    def _ordered(self, value: OrderedDict[Any, Any], path: Path) -> object:
        items = self._dict(dict(value), path)
        # A state_dict() has its versions in an attribute.
        return {"$ordered": [items, self._fields(vars(value), path)]}

    def _fields(self, fields: dict[str, Any], path: Path) -> object:
        self._check_depth(path)
        for name in fields:
            if not _is_plain_key(name) or name.startswith("__"):
                raise ValueError(f"has an attribute that is called {brief(name)}: rename it")
        return {name: self.node(item, (*path, _Field(name))) for name, item in fields.items()}

    def _other(self, value: Any, path: Path) -> object:
        if isinstance(value, np.str_ | np.bytes_):
            # Not as arrays, which would drop trailing zeros; a slice is a plain str or bytes.
            return {"$numpy": self.node(value[:], path)}
        if isinstance(value, np.generic) and not isinstance(value, np.record):
            return self._scalar(value, path)
        if type(value) is np.memmap:
            return self._array(value.view(np.ndarray), path)
        try:
            return self._parts(value, path)
        except ValueError as error:  # it says why not
            return self._pickled(value, path, str(error))

    def _scalar(self, value: np.generic, path: Path) -> object:
        if value.dtype.hasobject:
            return self._pickled(value, path, f"is a scalar of dtype {value.dtype}")
        # From its bytes: numpy leaves those unset that a long double does not use.
        array = np.frombuffer(value.tobytes(), value.dtype).reshape(())
        return {"$scalar": self._array(array, path)}

    def _parts(self, value: Any, path: Path) -> object:
        """The node of a value that is stored as its parts; ValueError says why it cannot be."""
        if is_tensor(value):
            dtype, array = array_of(value)
            return {"$tensor": [dtype, self._array(array, path)]}
        kind = kind_of(type(value))
        if kind is not None:
            parts = kind.parts(value)
            return {kind.tag: (self._fields if kind.fields else self.node)(parts, path)}
        tag = class_tag(value)
        if tag is None:
            raise ValueError(refusal(value))
        address, parts = address_of(type(value)), class_parts(value, tag)
        return {tag: [address, parts if type(parts) is str else self._fields(parts, path)]}

    def _pickled(self, value: Any, path: Path, what: str) -> object:
        where = self._where(path)
        if not self._pickle:
            ask = "; or set pickle=True for the job, which can carry most objects"
            raise PayloadError(f"{where} {what}{'' if self._pickle is None else ask}")
        try:
            data = pickles.dumps(value, pickles.HIGHEST_PROTOCOL)
        except Exception as error:  # pickling runs the value's own code
            what = what.partition(":")[0]
            raise PayloadError(f"{where} {what}, which pickle cannot carry: {error}") from error
        return {"$pickle": self._blob(data, path)}

    def _check_depth(self, path: Path) -> None:
        if len(path) >= MAX_DEPTH:
            raise PayloadError(
                f"{self._where(path[:3])} is nested more than {MAX_DEPTH} deep;"
                " does it contain itself?"
            )

    def _where(self, path: Path) -> str:
        label = self._label if isinstance(self._label, str) else self._label(self.position)
        if path and label.endswith(":"):
            if path[0] == POSITIONAL and len(path) > 1:
                name, path = f"positional argument {path[1]}", path[1:]
            else:
                name = path[0] if str(path[0]).isidentifier() else brief(path[0])
            label, path = f"{label} {name}", path[1:]
        return label + "".join(
            f".{key}" if type(key) is _Field else f"[{brief(key)}]" for key in path
        )

    def _put(self, array: Array, path: Path) -> str:
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = self._new_name(path)
            self.columns[name] = []
        self.columns[name].append((self.position, array))
        return name

    def _new_name(self, path: Path) -> str:
        """A new, safe name that says where the array was."""
        key = path[0] if len(path) == 1 else None
        name = key if type(key) is str and _SAFE.fullmatch(key) else _name_of(path)
        stem = name
        while name in self.columns:
            self._repeats[stem] = self._repeats.get(stem, 1) + 1
            name = f"{stem}-{self._repeats[stem]}"
        return name

    _BY_TYPE: ClassVar[dict[type, Callable[[_Encoder, Any, Path], object]]] = {
        NoneType: _itself,
        bool: _itself,
        int: _int,
        float: _float,
        complex: _complex,
        str: _str,
        bytes: _bytes,
        list: _list,
        tuple: _tuple,
        dict: _dict,
        OrderedDict: _ordered,
        np.ndarray: _array,
    }


class _Field(str):
    """The name of an attribute, in a path."""


_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def _name_of(path: Path) -> str:
    """A safe name for the array at a path."""
    keys = (key if isinstance(key, str) else brief(key) for key in path)
    name = ".".join(_UNSAFE.sub("_", key[:40]) for key in keys)[:120] or "value"
    # Names that begin with a digit are for members of a single value.
    return name if name[0].isalpha() or name[0] == "_" else f"arr_{name}"


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain_key(key: object) -> bool:
    return type(key) is str and key[:1] != "$" and _is_unicode(key)


def _members(
    columns: dict[str, list[tuple[int, Array]]], first: int, count: int
) -> tuple[dict[str, bool], list[tuple[str, Sequence[Buffer]]]]:
    """For each name whether it is stacked, and all members."""
    stacked: dict[str, bool] = {}
    members: list[tuple[str, Sequence[Buffer]]] = []
    for name, column in columns.items():
        dtype, shape = column[0][1].dtype, column[0][1].shape
        alike = len(column) == count and len(shape) <= _STACKED_DIMENSIONS
        # Fortran order would be lost in a stack, or a large array copied.
        stacked[name] = alike and all(
            array.dtype == dtype and array.shape == shape and not array.flags.fnc
            for _, array in column
        )
        if stacked[name]:
            header = npy_header(dtype, (count, *shape), False)
            members.append((f"{name}.npy", [header, *(buffer_of(array) for _, array in column)]))
            continue
        for position, array in column:
            header = npy_header(array.dtype, array.shape, array.flags.fnc)
            members.append((member_of_one(name, first + position), [header, buffer_of(array)]))
    return stacked, members


def member_of_one(name: str, number: int) -> str:
    """The member that holds an array of one job alone."""
    return f"{number:09d}.{name}.npy"


def buffer_of(array: Array) -> Buffer:
    """The data of an array in its own order; copied if it is small or not contiguous."""
    if array.flags.fnc:
        array = array.T
    if array.nbytes < SMALL:
        return array.tobytes()
    # As bytes, since dates and structures have no buffers of their own.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
