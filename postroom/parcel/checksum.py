"""The checksum of a parcel's data: CRC-32, as in zip; large data is split among threads."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache

from isal.isal_zlib import crc32

__all__ = ["checksum", "crc32"]

# Below this a thread costs more than it saves; more threads than this only wait for memory.
_LARGE = 32 << 20
_MOST_THREADS = 4
# The polynomial of CRC-32; the highest bit is x to the power of 0.
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """The CRC-32 of some data; `before` is that of the bytes in front of it."""
    if len(data) < _LARGE or (threads := min(_MOST_THREADS, len(os.sched_getaffinity(0)))) == 1:
        return int(crc32(data, before))
    view = memoryview(data)
    size = -(-len(view) // threads)
    pieces = [view[at : at + size] for at in range(0, len(view), size)]
    for piece, crc in zip(pieces, _each(pieces), strict=True):
        before = _times(_power(len(piece)), before) ^ crc
    return before


def _each(pieces: list[memoryview]) -> list[int]:
    from concurrent.futures import ThreadPoolExecutor

    # If no more threads can be started, do it in one.
    with suppress(RuntimeError), ThreadPoolExecutor(len(pieces) - 1) as pool:
        rest = [pool.submit(crc32, piece) for piece in pieces[1:]]
        return [crc32(pieces[0]), *(one.result() for one in rest)]
    return [crc32(piece) for piece in pieces]


@lru_cache(maxsize=32)
def _power(length: int) -> int:
    """x to the power of the bits in `length` bytes: the factor by which they shift a checksum."""
    power, square = _ONE, _ONE >> 8
    while length:
        if length & 1:
            power = _times(power, square)
        square = _times(square, square)
        length >>= 1
    return power


def _times(one: int, other: int) -> int:
    """The product of two polynomials over the numbers 0 and 1, modulo CRC-32's."""
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = one << 1 & 0xFFFF_FFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product
