"""Values from the members of a parcel, as `encode` wrote them.

Nothing that is read is trusted: as with a parcel's headers, there is one valid `.npy` header for an
array, which is parsed, written again and compared. Arrays are read-only views into the parcel, not
copies, so a memory-mapped file is read only where it is used.
"""

from __future__ import annotations

import math
import pickle as pickles
import re
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable
from types import NoneType
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ..errors import BadFileError, OtherVersionError, brief
from .container import Parcel
from .encode import MAX_DEPTH, member_of_one
from .npy import header_of, parse_header
from .tensors import tensor_of
from .value_kinds import CLASS_TAGS, KIND_OF_TAG, build, build_of_class

Array: TypeAlias = np.ndarray[Any, Any]

_MAX_TREE_DEPTH = MAX_DEPTH + 3  # a value's innermost item may be a time, say, which has parts
_JSON_SCALARS = frozenset({str, int, float, bool, NoneType})


def decode(tree: object, parcel: Parcel, position: int, *, pickle: bool = False) -> Any:
    """Value number `position` (from 0) of a parcel; anything wrong raises BadFileError."""
    return Decoder(tree, parcel, pickle=pickle).value(position)


class Tree:
    """The description of the values of a parcel, checked once; similar parcels share it."""

    __slots__ = ("bare", "columns", "count", "first", "stacked", "trees")

    def __init__(self, tree: object) -> None:
        """ValueError, with the reason, if it is not valid."""
        if type(tree) is not dict or tree.keys() != {"first", "count", "arrays", "trees"}:
            raise ValueError("its tree is not that of a parcel")
        self.first, self.count = tree["first"], tree["count"]
        self.stacked, self.trees = tree["arrays"], tree["trees"]
        if not _is_count(self.first) or not _is_count(self.count) or type(self.stacked) is not dict:
            raise ValueError("its tree is not that of a parcel")
        if type(self.trees) is not list or len(self.trees) not in (min(1, self.count), self.count):
            raise ValueError("its tree does not describe all its values")
        common = self.trees[0] if len(self.trees) == 1 else None
        self.bare = self._stack(common)  # the name of the array, if each value is just an array
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
        """The name of the stack of which a node is a row; None if it is none."""
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
        """Value number `position` (from 0); anything wrong raises BadFileError."""
        tree = self._tree
        if not 0 <= position < tree.count:
            raise self._bad(f"it has {tree.count} values, and none at position {position}")
        self._position = position
        if tree.bare is not None:
            return self._row(tree.bare)
        if tree.columns is not None:
            return {key: self._row(name) for key, name in tree.columns.items()}
        self._used.clear()
        try:
            return self._node(tree.trees[position if len(tree.trees) > 1 else 0], 0)
        except RecursionError:
            raise self._bad("its tree is nested too deep for the stack of the caller") from None

    def values(self, start: int, stop: int) -> list[Any]:
        """Those from one position to another; arrays that are alike are taken as blocks."""
        tree = self._tree
        keys = tuple(tree.columns or ())
        names = [tree.bare] if tree.bare is not None else list((tree.columns or {}).values())
        blocks = [self._stack(name)[start:stop] for name in names]
        # The rows of a stack of numbers would be no arrays.
        if not blocks or stop > tree.count or any(block.ndim == 1 for block in blocks):
            return [self.value(position) for position in range(start, stop)]
        if tree.bare is not None:
            return list(blocks[0])
        if len(keys) == 1:
            return [{keys[0]: row} for row in blocks[0]]
        return [dict(zip(keys, row, strict=True)) for row in zip(*blocks, strict=True)]

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
                return read(self, inner, depth) if read else self._made(key, inner, depth)
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

    def _ordered(self, node: object, depth: int) -> OrderedDict[Any, Any]:
        items, fields = self._pair(node, depth)
        if type(items) is not dict or type(fields) is not dict:
            raise self._bad("its tree has an odd OrderedDict")
        made: OrderedDict[Any, Any] = OrderedDict(items)
        vars(made).update(fields)
        return made

    def _tensor(self, node: object, depth: int) -> Any:
        dtype, array = self._pair(node, depth)
        if type(dtype) is not str or type(array) is not np.ndarray:
            raise self._bad("its tree has an odd tensor")
        try:
            return tensor_of(dtype, array)
        except ValueError as error:
            raise self._bad(str(error)) from None

    def _made(self, tag: str, node: object, depth: int) -> Any:
        """A value that was stored as its parts."""
        kind = KIND_OF_TAG.get(tag)
        if kind is None and tag not in CLASS_TAGS:
            raise OtherVersionError(self._parcel.path, f"an unknown {brief(tag)}")
        try:
            if kind is not None:
                return build(kind, self._node(node, depth - 1))
            address, parts = self._pair(node, depth)
            return build_of_class(tag, address, parts)
        except ValueError as error:
            raise self._bad(str(error)) from None

    def _pair(self, node: object, depth: int) -> list[Any]:
        pair = self._items(node, depth - 1)  # a pair is no level of its own
        if len(pair) != 2:
            raise self._bad("its tree lacks a pair")
        return pair

    def _array(self, node: object, depth: int) -> Array:
        name = self._text(node)
        if name in self._used:
            # One large member named many times would be a bomb.
            raise self._bad(f"its tree uses array {brief(name)} twice")
        self._used.add(name)
        if self._tree.stacked.get(name) is not True:
            return self._open(member_of_one(name, self._tree.first + self._position))[...]
        return self._row(name)

    def _row(self, name: str) -> Array:
        value: Array = self._stack(name)[self._position, ...]
        return value

    def _stack(self, name: str) -> Array:
        stack = self._open(f"{name}.npy")
        count = self._tree.count
        if stack.ndim == 0 or len(stack) != count:
            raise self._bad(f"array {brief(name)} is not a stack of {count}")
        return stack

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
        "$tensor": _tensor,
        "$ordered": _ordered,
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
