"""The header of a `.npy` member: one valid spelling, read by parsing, rewriting and comparing.

numpy's own reader evaluates the header and allocates whatever it states. This one refuses all that
we would not have written: object dtypes, odd shapes, any other spelling.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from ..errors import brief
from .container import ALIGNMENT

DType: TypeAlias = np.dtype[Any]

MAX_HEADER = 0xFFFF

# How a header begins, by how it goes on: the type of its length, and its encoding. Names of fields
# beyond Latin need the third version of the format; the second is for longer headers than ours.
_LATIN = b"\x93NUMPY\1\0"
_UTF8 = b"\x93NUMPY\3\0"
_VERSIONS = {_LATIN: (struct.Struct("<H"), "latin1"), _UTF8: (struct.Struct("<I"), "utf-8")}
_MAGIC_SIZE = len(_LATIN)

# A dtype that is no structure: byte order, kind, size, and the unit of dates.
_PLAIN_DTYPE = r"[<>|][biufcSUVmM][0-9]{0,10}(?:\[(?:[1-9][0-9]{0,9})?[A-Za-z]{1,7}\])?"
_IS_PLAIN_DTYPE = re.compile(_PLAIN_DTYPE)
_HEADER = re.compile(
    rf"{{'descr': ('{_PLAIN_DTYPE}'|\[.*\]), 'fortran_order': (True|False),"
    r" 'shape': \(((?:[0-9]{1,19}, ){0,63}[0-9]{1,19},?)?\), } *\n",
    re.ASCII | re.DOTALL,
)


@lru_cache(maxsize=128)
def npy_header(dtype: DType, shape: tuple[int, ...], fortran: bool) -> bytes:
    """The only `.npy` header that an array may have; its size is a multiple of ALIGNMENT."""
    text = f"{{'descr': {describe(dtype)}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    magic = _LATIN if text.isascii() or max(text) <= "\xff" else _UTF8
    length, encoding = _VERSIONS[magic]
    body = text.encode(encoding)
    size = _MAGIC_SIZE + length.size + len(body) + 1
    body += b" " * (-size % ALIGNMENT) + b"\n"
    return magic + length.pack(len(body)) + body


@lru_cache(maxsize=128)
def describe(dtype: DType) -> str:
    """The text of a dtype in a header; TypeError or ValueError if it could not be read back."""
    text = repr(dtype.str if dtype.names is None else dtype.descr)
    if len(text) > MAX_HEADER // 2 or dtype.itemsize == 0 or _parse_dtype(text) != dtype:
        raise TypeError("no header can state it")
    return text


def _parse_dtype(text: str) -> DType:
    """The dtype that a header states; the header matches _HEADER, and nothing else is known."""
    literal: Any = text[1:-1] if text[0] == "'" else ast.literal_eval(text)
    if not _is_plain(literal):
        raise ValueError("neither plain data nor a structure of it")
    return np.lib.format.descr_to_dtype(literal)


def _is_plain(descr: object) -> bool:
    """Whether this may be passed to numpy, which checks names and shapes itself."""
    if isinstance(descr, str):
        return _IS_PLAIN_DTYPE.fullmatch(descr) is not None
    return isinstance(descr, list) and all(
        isinstance(field, tuple) and len(field) in (2, 3) and _is_plain(field[1]) for field in descr
    )


def header_of(member: memoryview) -> bytes:
    """The header with which a member begins; ValueError if it does not."""
    version = _VERSIONS.get(bytes(member[:_MAGIC_SIZE]))
    if version is None or len(member) < ALIGNMENT:
        raise ValueError("it is not an array")
    length, _ = version
    size = _MAGIC_SIZE + length.size + int(length.unpack_from(member, _MAGIC_SIZE)[0])
    if size > MAX_HEADER:
        raise ValueError("its header is too long")
    return bytes(member[:size])


@lru_cache(maxsize=128)
def parse_header(header: bytes) -> tuple[DType, tuple[int, ...], bool, int]:
    """Dtype, shape, Fortran order and size of the data; ValueError if the header is not ours."""
    length, encoding = _VERSIONS[header[:_MAGIC_SIZE]]
    match = _HEADER.fullmatch(str(header[_MAGIC_SIZE + length.size :], encoding))
    if match is None:
        raise ValueError("its header is not that of a plain array")
    try:
        dtype = _parse_dtype(match[1])
    except Exception as error:  # Python's parser and numpy raise many kinds, MemoryError too
        raise ValueError(f"its dtype cannot be read: {brief(error)}") from None
    fortran = match[2] == "True"
    shape = tuple(int(digits) for digits in (match[3] or "").split(",") if digits)
    # Numpy leaves out the empty dimensions when it looks for overflow.
    if math.prod(n or 1 for n in shape) * dtype.itemsize >= 1 << 63:
        raise ValueError("its shape is larger than any memory")
    try:
        if npy_header(dtype, shape, fortran) != header:
            raise ValueError("its header is not as a parcel's is")
    except TypeError:
        raise ValueError(f"its dtype is {brief(dtype)}") from None
    return dtype, shape, fortran, math.prod(shape) * dtype.itemsize
