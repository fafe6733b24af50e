"""Results side by side: the columns of a table, or arrays with a row for each job."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import os
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..errors import PostroomError
from .encode import buffer_of
from .npy import describe, npy_header
from .tensors import is_tensor
from .value_kinds import kind_of

Array: TypeAlias = np.ndarray[Any, Any]

_MOST_DEPTH = 8
_CELLS = (bool, int, float, complex, str, np.generic, datetime.date, datetime.timedelta)


def flat(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The innermost values of dicts, tuples and objects with fields, by names such as `a.b`."""
    items = _items(value) if depth < _MOST_DEPTH else None
    if items is None:
        yield name, value
        return
    for key, item in items.items():
        yield from flat(item, f"{name}.{key}" if name else str(key), depth + 1)


def _items(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple):
        return dict(zip(getattr(value, "_fields", range(len(value))), value, strict=False))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    kind = kind_of(type(value))
    return dict(vars(value)) if kind is not None and kind.fields else None


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """What `flat` finds; a result that has no names is called so."""
    items = _items(value)
    yield from flat(value, "result" if items is None or 0 in items else "")


def cells(value: Any) -> dict[str, Any]:
    """Those of the innermost values that fit a cell of a table."""
    found = ((name, _cell(one)) for name, one in _named(value))
    return {name: one for name, one in found if one is not None}


def merged(tables: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of several tables side by side; a name that is taken gets its table's prefix."""
    rows: list[dict[str, Any]] = [{} for _ in next(iter(tables.values()))]
    taken: set[str] = set()
    for prefix, table in tables.items():
        names = dict.fromkeys(name for row in table for name in row)
        called = {name: f"{prefix}{name}" if name in taken else name for name in names}
        for row, found in zip(rows, table, strict=True):
            row.update((called[name], value) for name, value in found.items())
        taken.update(called.values())
    return rows


def _cell(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, _CELLS):
        return value
    if isinstance(value, np.ndarray) or is_tensor(value):
        return value.item() if value.ndim == 0 else None
    kind = kind_of(type(value))
    return str(value) if kind is not None and kind.takes is str else None


def save_arrays(
    path: str, fixed: dict[str, list[Any]], numbers: Sequence[int], values: Sequence[Any]
) -> None:
    """Write a new `.npz` of some lists, and of the arrays among the values of numbered jobs.

    What all values have in one shape and dtype is one array with a row for each; what only some
    have, or have in different shapes, is an array for each.
    """
    columns: dict[str, dict[int, Array]] = {}
    for number, value in zip(numbers, values, strict=True):
        for name, one in _named(value):
            array = _array(one)
            if array is not None:
                column = columns.setdefault(f"result.{name}" if name in fixed else name, {})
                column[number] = array
    temporary = f"{path}.{os.urandom(4).hex()}.part"  # a pid is used again, also in a container
    try:
        with zipfile.ZipFile(temporary, "x") as archive:
            for name, items in fixed.items():
                array = np.asarray(items)
                _write(archive, name, [array], array.shape)
            for name, column in columns.items():
                rows = list(column.values())
                if len(rows) == len(numbers) and _alike(rows):
                    _write(archive, name, rows, (len(rows), *rows[0].shape))
                    continue
                for number, array in column.items():
                    _write(archive, f"{name}.{number:09d}", [array], array.shape)
        _put_in_place(temporary, path)
    except FileExistsError:
        raise PostroomError(f"{path} exists: choose another name, or remove it first") from None
    except OSError as error:
        raise PostroomError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _put_in_place(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)  # this, unlike a rename, replaces nothing
    except PermissionError:  # a filesystem without links
        if os.path.lexists(path):
            raise FileExistsError from None
        os.rename(temporary, path)


def _array(value: Any) -> Array | None:
    """A value as an array; None: it is none."""
    if is_tensor(value):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.dtype.is_floating_point and value.dtype.itemsize < 4:
            value = value.float()  # numpy lacks bfloat16 and float8
        with contextlib.suppress(TypeError, RuntimeError):
            value = value.numpy()
    elif isinstance(value, list) and value:
        with contextlib.suppress(ValueError):  # the items are of different shapes
            value = np.asarray(value)
    elif not isinstance(value, np.ndarray):
        cell = _cell(value)
        value = None if cell is None else np.asarray(cell)
    try:
        describe(value.dtype)
    except (AttributeError, TypeError, ValueError):
        return None
    return np.asarray(value)


def _alike(rows: list[Array]) -> bool:
    """Whether arrays can be stacked; numbers of different types become one type."""
    if len({row.shape for row in rows}) > 1 or rows[0].ndim >= 31:
        return False
    if len({row.dtype for row in rows}) > 1:
        if rows[0].ndim or len({row.dtype.kind in "US" for row in rows}) > 1:
            return False
        try:
            dtype = np.result_type(*rows)
        except TypeError:  # a number and a time
            return False
        rows[:] = [row.astype(dtype) for row in rows]
    return True


def _write(archive: zipfile.ZipFile, name: str, rows: list[Array], shape: tuple[int, ...]) -> None:
    # A name must stay within the folder that somebody unpacks the file into.
    stem = member = name.replace("/", "_").replace("\0", "_").lstrip(".") or "_"
    taken = 1
    while f"{member}.npy" in archive.NameToInfo:
        taken += 1
        member = f"{stem}-{taken}"
    with archive.open(f"{member}.npy", "w", force_zip64=True) as file:
        file.write(npy_header(rows[0].dtype, shape, False))
        for row in rows:
            file.write(buffer_of(np.ascontiguousarray(row)))
