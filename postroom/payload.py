"""Values as the members of a parcel, and back: arrays as `.npy`, all else as a JSON tree.

    values  [{"x": array, "k": 3}, {"x": array, "k": 4}, ...]
    tree    {"first": 0, "count": 2, "arrays": {"x": true},
             "trees": [{"x": {"$array": "x"}, "k": 3}, {"x": {"$array": "x"}, "k": 4}]}
    members x.npy                of shape (2, ...), where the arrays of all values are alike, else
            000000000.x.npy      one for each value, by its job's number

JSON stands for itself; an object with one key that begins with `$` stands for what JSON lacks. If
the trees of all values are equal, one is kept. Arrays come back as read-only views into the parcel,
never copied, so that a memory-mapped file is read only where it is used.

Nothing read is trusted. As with a parcel's headers, there is one valid `.npy` header for an array:
the reader parses it, writes it anew and compares. Pickle is off on both sides unless asked for.
"""

from __future__ import annotations

import json
import math
import pickle as pickles
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any, ClassVar, TypeAlias

import numpy as np

from .errors import BadFileError, PayloadError, brief
from .npy import describe, header_of, npy_header, parse_header
from .parcel import SMALL, Buffer, Parcel

Array: TypeAlias = np.ndarray[Any, Any]
Path: TypeAlias = tuple[Any, ...]
Label: TypeAlias = str | Callable[[int], str]

MAX_DEPTH = 64

_dump = json.JSONEncoder(separators=(",", ":")).encode

_MAX_TREE_DEPTH = MAX_DEPTH + 2  # a value's innermost item may be an array within a tag
_JSON_SCALARS = frozenset({str, int, float, bool, NoneType})
_INLINE_BYTES = 512  # longer ones become members: base64 and JSON are slow
_STACKED_DIMENSIONS = 31  # the first axis is one more, and older numpy knows 32


def encode(
    values: Sequence[Any], *, first: int = 0, label: Label = "value", pickle: bool = False
) -> tuple[object, list[tuple[str, Sequence[Buffer]]]]:
    """A JSON-able tree that describes all values, and the members with their arrays.

    `first` is the job number of the first value. `label` begins the path by which an error names a
    value: a string, or a function of the value's position. Large arrays are not copied: the members
    are views of them.
    """
    encoder = _Encoder(label, pickle)
    trees: list[object] = []
    for position, value in enumerate(values):
        encoder.position = position
        trees.append(encoder.node(value, ()))
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
    """The same as `encode`, with the tree as JSON; arrays that are alike go a shorter way."""
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
        members.append((f"{name}.npy", [header, *map(_buffer, column)]))
    return _alike_text(count, tuple(columns), bare=type(values[0]) is np.ndarray), members


def _lone(value: Any) -> tuple[str, list[tuple[str, Sequence[Buffer]]]] | None:
    """What `encode_text` makes of a single value; None: it is no array, nor a dict of them."""
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
        members.append((f"{name}.npy", [header, _buffer(array)]))
    return _alike_text(1, names, bare=bare), members


@lru_cache(maxsize=128)
def _stack_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes | None:
    """The header of a stack of one array; None: it cannot be in one."""
    if len(shape) > _STACKED_DIMENSIONS:
        return None
    try:
        return npy_header(dtype, (1, *shape), False)
    except (TypeError, ValueError):
        return None


@lru_cache(maxsize=256)
def _alike_text(count: int, names: tuple[str, ...], *, bare: bool) -> str:
    """The tree of values that are alike: a bare array each, or a dict of arrays."""
    tree: object = {"$array": names[0]} if bare else {name: {"$array": name} for name in names}
    return _dump(_tree(0, count, dict.fromkeys(names, True), [tree]))


def decode(tree: object, parcel: Parcel, position: int, *, pickle: bool = False) -> Any:
    """Value number `position` (from 0) of a parcel; whatever is amiss makes it a bad file."""
    return Decoder(tree, parcel, pickle=pickle).value(position)


def _alike(values: Sequence[Any]) -> dict[str, list[Array]] | None:
    """The arrays of all values by name, if they are all that differs.

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


def _is_stack(column: Sequence[Any]) -> bool:
    model = column[0]
    if type(model) is not np.ndarray or model.ndim > _STACKED_DIMENSIONS:
        return False
    dtype, shape = model.dtype, model.shape
    try:
        describe(dtype)
    except (TypeError, ValueError):
        return False
    for array in column:
        if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
            return False
        if array.flags.fnc:
            return False
    return True


class _Encoder:
    """Turns values into nodes of a tree, and gathers their arrays into columns by name."""

    def __init__(self, label: Label, pickle: bool) -> None:
        self.position = 0
        self.columns: dict[str, list[tuple[int, Array]]] = {}
        self._label = label
        self._pickle = pickle
        self._names: dict[Path, str] = {}
        self._repeats: dict[str, int] = {}

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
        # JSON would join two lone surrogates that happen to stand side by side.
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
                return self._pickled(value, path, f"has a key of type {type(key).__qualname__}")
        pairs = [
            [self.node(key, path), self.node(item, (*path, key))] for key, item in value.items()
        ]
        return {"$dict": pairs}

    def _array(self, value: Array, path: Path) -> object:
        try:
            describe(value.dtype)
        except (TypeError, ValueError):
            return self._pickled(value, path, f"is an array of dtype {value.dtype}")
        return {"$array": self._put(value, path)}

    def _other(self, value: Any, path: Path) -> object:
        if isinstance(value, np.str_ | np.bytes_):
            # Not as arrays, which would drop trailing zeros; a slice is a plain str or bytes.
            return {"$numpy": self.node(value[:], path)}
        if isinstance(value, np.generic) and not isinstance(value, np.record):
            return {"$scalar": self._array(np.asarray(value), path)}
        if type(value) is np.memmap:
            return self._array(value.view(np.ndarray), path)
        # A value can only be a tensor if its program has imported torch; we never do.
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)
        if tensor is not None and isinstance(value, tensor):
            return self._array(self._from_tensor(value, path), path)
        return self._pickled(value, path, f"is a {type(value).__qualname__}")

    def _from_tensor(self, value: Any, path: Path) -> Array:
        try:
            array: Array = value.detach().cpu().resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError, NotImplementedError) as error:
            raise PayloadError(
                f"{self._where(path)} is a tensor of {value.dtype} that numpy cannot hold"
                f" ({error}): pass it as .float(), dense and on the CPU"
            ) from None
        return array

    def _pickled(self, value: Any, path: Path, what: str) -> object:
        where = self._where(path)
        if not self._pickle:
            raise PayloadError(
                f"{where} {what}, which only pickle could carry: turn it into numbers, text, bytes,"
                " arrays, or lists and dicts of them, or pass pickle=True to allow it"
            )
        try:
            data = pickles.dumps(value, pickles.HIGHEST_PROTOCOL)
        except Exception as error:  # pickling runs the value's own code
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
        return label + "".join(f"[{brief(key)}]" for key in path)

    def _put(self, array: Array, path: Path) -> str:
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = self._new_name(path)
            self.columns[name] = []
        self.columns[name].append((self.position, array))
        return name

    def _new_name(self, path: Path) -> str:
        """A name that says where the array was, safe whatever the keys, and not yet given."""
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
        np.ndarray: _array,
    }


_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def _name_of(path: Path) -> str:
    """A name for the array at a path, safe whatever the keys."""
    keys = (key if type(key) is str else brief(key) for key in path)
    name = ".".join(_UNSAFE.sub("_", key[:40]) for key in keys)[:120] or "value"
    # What begins with a digit is a member of one value alone.
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
    """For each name whether it is stacked, and the members of all."""
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
            members.append((f"{name}.npy", [header, *(_buffer(array) for _, array in column)]))
            continue
        for position, array in column:
            header = npy_header(array.dtype, array.shape, array.flags.fnc)
            members.append((_member_of_one(name, first + position), [header, _buffer(array)]))
    return stacked, members


def _member_of_one(name: str, number: int) -> str:
    return f"{number:09d}.{name}.npy"


def _buffer(array: Array) -> Buffer:
    """The data of an array in its own order; copied if small, or scattered in memory."""
    if array.flags.fnc:
        array = array.T
    if array.nbytes < SMALL:
        return array.tobytes()
    # As bytes, since dates and structures have no buffers of their own.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Tree:
    """What describes the values of a parcel, checked as a whole: parcels may have it in common."""

    __slots__ = ("bare", "columns", "count", "first", "stacked", "trees")

    def __init__(self, tree: object) -> None:
        """ValueError, with the reason, if it describes nothing."""
        if type(tree) is not dict or tree.keys() != {"first", "count", "arrays", "trees"}:
            raise ValueError("its tree is not that of a parcel")
        self.first, self.count = tree["first"], tree["count"]
        self.stacked, self.trees = tree["arrays"], tree["trees"]
        if not _is_count(self.first) or not _is_count(self.count) or type(self.stacked) is not dict:
            raise ValueError("its tree is not that of a parcel")
        if type(self.trees) is not list or len(self.trees) not in (min(1, self.count), self.count):
            raise ValueError("its tree does not describe all its values")
        common = self.trees[0] if len(self.trees) == 1 else None
        self.bare = self._stack(common)  # the name of the array that each value is, and no more
        self.columns = self._find_columns(common)  # ... or those of its arrays, by key

    def _find_columns(self, common: object) -> dict[str, str] | None:
        if type(common) is not dict or any(key[:1] == "$" for key in common):
            return None
        columns: dict[str, str] = {}
        for key, node in common.items():
            name = self._stack(node)
            if name is None or name in columns.values():  # twice: refused where it is read
                return None
            columns[key] = name
        return columns

    def _stack(self, node: object) -> str | None:
        """The name of the stack that a node stands for a row of, if it does."""
        name = node.get("$array") if type(node) is dict and len(node) == 1 else None
        return name if type(name) is str and self.stacked.get(name) is True else None


class Decoder:
    """Builds values from their nodes, trusting neither tree nor members."""

    def __init__(self, tree: object, parcel: Parcel, *, pickle: bool = False) -> None:
        self._parcel = parcel
        self._position = 0
        self._pickle = pickle
        self._used: set[str] = set()
        try:
            self._tree = tree if type(tree) is Tree else Tree(tree)
        except ValueError as error:
            raise self._bad(str(error)) from None

    def value(self, position: int) -> Any:
        """Value number `position` (from 0); whatever is amiss makes the parcel a bad file."""
        tree = self._tree
        if not 0 <= position < tree.count:
            raise self._bad(f"it has {tree.count} values, and none at position {position}")
        self._position = position
        if tree.bare is not None:
            return self._row(tree.bare)
        if tree.columns is not None:
            return {key: self._row(name) for key, name in tree.columns.items()}
        self._used.clear()
        return self._node(tree.trees[position if len(tree.trees) > 1 else 0], 0)

    def _bad(self, reason: str) -> BadFileError:
        return BadFileError(self._parcel.path, reason)

    def _node(self, node: object, depth: int) -> Any:
        if type(node) in _JSON_SCALARS:
            return node
        if depth > _MAX_TREE_DEPTH:
            raise self._bad(f"its tree is nested more than {MAX_DEPTH} deep")
        if type(node) is dict:
            return self._object(node, depth + 1)
        return self._items(node, depth + 1)

    def _object(self, node: dict[str, Any], depth: int) -> Any:
        if len(node) == 1:
            ((key, inner),) = node.items()
            if key[:1] == "$":
                read = self._BY_TAG.get(key)
                if read is None:
                    raise self._bad(f"its tree has an unknown {brief(key)}")
                return read(self, inner, depth)
        value = {}
        for key, inner in node.items():
            if key[:1] == "$":
                raise self._bad(f"its tree has a stray {brief(key)}")
            value[key] = self._node(inner, depth)
        return value

    def _items(self, node: object, depth: int) -> list[Any]:
        if type(node) is not list:
            raise self._bad("its tree lacks a list")
        return [self._node(item, depth) for item in node]

    def _text(self, node: object) -> str:
        if type(node) is not str:
            raise self._bad("its tree lacks a text")
        return node

    def _tuple(self, node: object, depth: int) -> tuple[Any, ...]:
        return tuple(self._items(node, depth))

    def _dict(self, node: object, depth: int) -> dict[Any, Any]:
        if type(node) is not list:
            raise self._bad("its tree lacks a list")
        value = {}
        for pair in node:
            if type(pair) is not list or len(pair) != 2:
                raise self._bad("its tree has a dict that is not of pairs")
            key = self._node(pair[0], depth)
            if type(key) not in _JSON_SCALARS:
                raise self._bad("its tree has a dict with an odd key")
            value[key] = self._node(pair[1], depth)
        return value

    def _int(self, node: object, depth: int) -> int:
        text = self._text(node)
        if not _HEX.fullmatch(text):
            raise self._bad("its tree has an odd number")
        return int(text, 16)

    def _float(self, node: object, depth: int) -> float:
        value = _NOT_FINITE.get(self._text(node))
        if value is None:
            raise self._bad("its tree has an odd number")
        return value

    def _complex(self, node: object, depth: int) -> complex:
        parts = self._items(node, depth)
        if [type(part) for part in parts] != [float, float]:
            raise self._bad("its tree has an odd complex number")
        return complex(*parts)

    def _str(self, node: object, depth: int) -> str:
        try:
            return b64decode(self._text(node), validate=True).decode("utf-8", "surrogatepass")
        except ValueError:
            raise self._bad("its tree has a text that cannot be read") from None

    def _bytes(self, node: object, depth: int) -> bytes:
        if type(node) is dict:
            array = self._node(node, depth)
            if type(array) is not np.ndarray or array.dtype != np.uint8 or array.ndim != 1:
                raise self._bad("its tree has bytes that are none")
            return array.tobytes()
        try:
            return b64decode(self._text(node), validate=True)
        except ValueError:
            raise self._bad("its tree has bytes that cannot be read") from None

    def _numpy(self, node: object, depth: int) -> np.str_ | np.bytes_:
        value = self._node(node, depth)
        if type(value) is str:
            return np.str_(value)
        if type(value) is bytes:
            return np.bytes_(value)
        raise self._bad("its tree has an odd numpy text")

    def _scalar(self, node: object, depth: int) -> Any:
        array = self._node(node, depth)
        if type(array) is not np.ndarray or array.ndim != 0:
            raise self._bad("its tree has a number that is none")
        return array[()]

    def _unpickled(self, node: object, depth: int) -> Any:
        if not self._pickle:
            raise self._bad("it holds a pickle, and pickle is off; only pickle=True would run it")
        try:
            return pickles.loads(self._bytes(node, depth))  # noqa: S301 - the job asked for it
        except Exception as error:  # unpickling runs the value's own code
            raise self._bad(f"it holds a pickle that cannot be read: {brief(error)}") from error

    def _array(self, node: object, depth: int) -> Array:
        name = self._text(node)
        if name in self._used:
            # One large member named many times would be a bomb.
            raise self._bad(f"its tree uses array {brief(name)} twice")
        self._used.add(name)
        if self._tree.stacked.get(name) is not True:
            return self._open(_member_of_one(name, self._tree.first + self._position))[...]
        return self._row(name)

    def _row(self, name: str) -> Array:
        stack = self._open(f"{name}.npy")
        count = self._tree.count
        if stack.ndim == 0 or len(stack) != count:
            raise self._bad(f"array {brief(name)} is not a stack of {count}")
        value: Array = stack[self._position, ...]
        return value

    def _open(self, member: str) -> Array:
        """An array that is a view of a member's data."""
        opened: Array | None = self._parcel.opened.get(member)
        if opened is not None:
            return opened
        try:
            view = self._parcel.member(member)
        except KeyError:
            raise self._bad(f"it has no member {brief(member)}") from None
        mould = self._parcel.mould
        known = mould.arrays.get(member) if mould is not None else None
        if known is not None and view[: len(known[0])].tobytes() == known[0]:
            header, dtype, shape, order, items = known
        else:
            try:
                header = header_of(view)
                dtype, shape, fortran, data_size = parse_header(header)
                if len(header) + data_size != len(view):
                    raise ValueError("its shape and the size of its data differ")
            except ValueError as error:
                raise self._bad(f"member {member}: {error}") from None
            order, items = "F" if fortran else "C", math.prod(shape)
            if mould is not None:
                mould.arrays[member] = header, dtype, shape, order, items
        # Not np.ndarray(buffer=...), which would let a memory map be closed under the array.
        array: Array = np.frombuffer(view, dtype, items, len(header)).reshape(shape, order=order)
        self._parcel.opened[member] = array
        return array

    _BY_TAG: ClassVar[dict[str, Callable[[Decoder, object, int], Any]]] = {
        "$array": _array,
        "$scalar": _scalar,
        "$tuple": _tuple,
        "$dict": _dict,
        "$int": _int,
        "$float": _float,
        "$complex": _complex,
        "$str": _str,
        "$bytes": _bytes,
        "$numpy": _numpy,
        "$pickle": _unpickled,
    }


def _is_count(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 48


_HEX = re.compile(r"-?0x[0-9a-f]+")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
