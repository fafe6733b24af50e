"""The parcel: one zip file of stored, aligned members, with a trailer at its very end.

    ┌────────┬──────┬────────┬──────┬───┬───────────┬─────┬─────────────────────────────────────┐
    │ header │ data │ header │ data │ … │ directory │ end │ postroom/1 results 000000000100 … ⏎ │
    └────────┴──────┴────────┴──────┴───┴───────────┴─────┴─────────────────────────────────────┘
             ▲               ▲                            the trailer: the zip's comment,
             multiples of 64 bytes                        the last TRAILER_SIZE bytes

Any zip reader, `numpy.load` among them, can open it. Our own reader is stricter: for given members
and a given trailer there is exactly one valid file. It takes only names, sizes and checksums from
the directory, writes every header again with the writer's own function, and compares the bytes. So
no rule can be forgotten: overlaps, gaps, compression, odd flags and flipped bits all differ.

The trailer has a checksum of itself and one of the directory; the directory has those of the
members, whose data is checked when it is first used. The last TRAILER_SIZE bytes are enough to
learn what a parcel holds. This module does not import numpy, so that sorting parcels is cheap.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from ..errors import BadFileError, PayloadError
from .checksum import checksum, crc32
from .trailer import (
    TRAILER_SIZE,
    Trailer,
    Words,
    first_and_words,
    parse_trailer,
    trailer_line,
    trailer_words,
)

Buffer: TypeAlias = bytes | memoryview

ALIGNMENT = 64
# A parcel may be larger than a GPU's memory; a petabyte is a mistake.
PARCEL_LIMIT = 1 << 40
MAX_MEMBERS = 1 << 22

# No slashes: unpacking a parcel with any tool writes only into its folder.
_NAME = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")

# Chunks below this size are joined with their neighbours: copying costs less than a write each.
SMALL = 1 << 16

# Small parcels of few members are cast (see `Mould`); at most this many moulds are kept.
_MOULD_MEMBERS = 16
_MOULD_BYTES = 8 << 10
_MOST_MOULDS = 256

# A field that is too narrow for its value is all ones, and the value is in a 64-bit field.
_FULL = 0xFFFF_FFFF
_FULL_COUNT = 0xFFFF
_WIDE_FROM = _FULL

_ZIP_VERSION = 45  # the first that knows 64-bit fields; always, so that there is one form only
_UNIX = 3 << 8
_OWNER_ONLY = 0o100600 << 16  # what a member is unpacked with
_MIDNIGHT_1980 = struct.pack("<HH", 0, 1 << 5 | 1)

_LOCAL = b"PK\3\4" + struct.pack("<3H", _ZIP_VERSION, 0, 0) + _MIDNIGHT_1980
_CENTRAL = b"PK\1\2" + struct.pack("<4H", _UNIX | _ZIP_VERSION, _ZIP_VERSION, 0, 0) + _MIDNIGHT_1980
_CENTRAL_SIZE = 46
_LOCAL_SIZE = 30
_SIZE_AT = slice(18, 22)  # where the first header states the size of its member
_CRC = struct.Struct("<I")
_FIELDS = struct.Struct(
    "<IIIHH"
)  # crc, stored size, size, length of the name, length of the extras
_PLACE = struct.Struct("<HHHII")  # comment, disk, internal and external attributes, offset
_WIDE_EXTRA_ID = 0x0001
_ALIGN_EXTRA_ID = 0xD935  # Android's zipalign: the alignment, then zeros
_ALIGN_EXTRAS = tuple(
    struct.pack("<HHH", _ALIGN_EXTRA_ID, 2 + zeros, ALIGNMENT) + bytes(zeros)
    for zeros in range(ALIGNMENT)
)

_END = struct.Struct("<4sHHHHIIH")
_WIDE_END = struct.Struct("<4sQHHIIQQQQ")
_WIDE_LOCATOR = struct.Struct("<4sIQI")


def pack(trailer: Trailer, members: Iterable[tuple[str, Sequence[Buffer]]]) -> list[Buffer]:
    """The chunks of a parcel, to be written one after another; large buffers are not copied.

    A member is a name and its buffers. Do not change the buffers before the chunks are written: the
    checksums would be wrong.
    """
    data: list[list[Buffer]] = []
    shape: list[tuple[str, int]] = []
    whole = 0
    for name, buffers in members:
        joined = _join_small(buffers)
        size = sum(map(len, joined))
        whole += size
        data.append(joined)
        shape.append((name, size))
    if len(shape) > MAX_MEMBERS:
        raise PayloadError(
            f"a parcel holds at most {MAX_MEMBERS} arrays, and these are {len(shape)}: stack them"
        )
    if whole <= _MOULD_BYTES and len(shape) <= _MOULD_MEMBERS:
        mould = _mould(tuple(shape), trailer.kind, trailer.jobs, trailer.flags)
        return [mould.cast(trailer.first, [b"".join(joined) for joined in data])]
    crcs: list[int] = []
    for joined in data:
        crc = 0
        for chunk in joined:
            crc = checksum(chunk, crc)
        crcs.append(crc)
    frame = _frame(shape, crcs, trailer)
    chunks: list[Buffer] = []
    for before, joined in zip(frame, data, strict=False):
        chunks.append(before)
        chunks += joined
    chunks.append(frame[-1])
    return _join_small(chunks)


def _frame(shape: Sequence[tuple[str, int]], crcs: Sequence[int], trailer: Trailer) -> list[bytes]:
    """The bytes before each member of these names and sizes, and those behind the last."""
    headers: list[bytes] = []
    entries: list[bytes] = []
    names: set[str] = set()
    offset = 0
    for (name, size), crc in zip(shape, crcs, strict=True):
        raw = name.encode("ascii", "replace")
        if not _NAME.fullmatch(raw) or name in names:
            raise ValueError(f"{name!r} cannot be the name of a member, or is already")
        names.add(name)
        header, entry = _headers(raw, size, crc, offset)
        headers.append(header)
        entries.append(entry)
        offset += len(header) + size
    directory = b"".join(entries)
    words = trailer_words(trailer.kind, trailer.jobs, trailer.flags)
    line = trailer_line(words, trailer.first, crc32(directory))
    return [*headers, directory + _ending(len(shape), len(directory), offset) + line]


class Mould:
    """A small parcel without its data.

    Jobs that are submitted one by one are similar, and so are their outcomes: the bytes that they
    have in common are made once, for writing and for comparing.
    """

    __slots__ = ("_blank", "_directory", "_members", "_words", "arrays", "kind", "places")

    def __init__(
        self, shape: tuple[tuple[str, int], ...], kind: str, jobs: int, flags: str
    ) -> None:
        self.kind = kind, jobs, flags
        self.places: list[tuple[str, int, int]] = []  # name; data from, until
        self.arrays: dict[str, Any] = {}  # headers that readers have parsed already
        self._words = trailer_words(kind, jobs, flags)
        frame = _frame(shape, [0] * len(shape), Trailer(kind, 0, jobs, flags))
        blank = b""
        crcs_at: list[int] = []
        for header, (name, size) in zip(frame, shape, strict=False):
            crcs_at.append(len(blank) + len(_LOCAL))
            start = len(blank) + len(header)
            self.places.append((name, start, start + size))
            blank += header + bytes(size)
        at = directory_at = len(blank)
        self._blank = blank + frame[-1]
        self._members: list[tuple[int, int, int, int]] = []  # data from, until; its checksums at
        for (_, start, end), crc_at in zip(self.places, crcs_at, strict=True):
            self._members.append((start, end, crc_at, at + len(_CENTRAL)))
            _, _, _, name_size, extra_size = _FIELDS.unpack_from(self._blank, at + len(_CENTRAL))
            at += _CENTRAL_SIZE + name_size + extra_size
        self._directory = slice(directory_at, at)

    def cast(self, first: int, data: Sequence[bytes]) -> bytes:
        """The parcel of jobs from `first` on whose members hold this data."""
        whole = bytearray(self._blank)
        for (start, end, at, central_at), piece in zip(self._members, data, strict=True):
            whole[start:end] = piece
            crc = crc32(piece)
            _CRC.pack_into(whole, at, crc)
            _CRC.pack_into(whole, central_at, crc)
        whole[-TRAILER_SIZE:] = trailer_line(self._words, first, crc32(whole[self._directory]))
        return bytes(whole)


_mould = lru_cache(maxsize=_MOST_MOULDS)(Mould)
# The mould of the last parcel that looked like this: the next one probably has the same.
_last_moulds: dict[tuple[int, bytes, Words], Mould] = {}


def _join_small(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer chunks, each of them bytes or a view of single bytes."""
    size = 0
    for buffer in buffers:
        size += len(buffer) if type(buffer) is bytes else SMALL
    if size < SMALL:
        return [b"".join(buffers)]
    chunks: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        size = len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
        if size < SMALL:
            small.append(buffer)
            continue
        if small:
            chunks.append(b"".join(small))
            small = []
        chunks.append(buffer if type(buffer) is bytes else memoryview(buffer).cast("B"))
    if small:
        chunks.append(b"".join(small))
    return chunks


def _headers(name: bytes, size: int, crc: int, offset: int) -> tuple[bytes, bytes]:
    """The only local and central header that a member at this offset may have."""
    wide = central_wide = b""
    field_size, field_offset = size, offset
    if size >= _WIDE_FROM:
        field_size = _FULL
        wide = central_wide = struct.pack("<HHQQ", _WIDE_EXTRA_ID, 16, size, size)
    if offset >= _WIDE_FROM:
        field_offset = _FULL
        sizes = wide[4:]
        central_wide = struct.pack("<HH", _WIDE_EXTRA_ID, len(sizes) + 8) + sizes
        central_wide += struct.pack("<Q", offset)
    length = len(name)
    bare = offset + _LOCAL_SIZE + length + len(wide) + len(_ALIGN_EXTRAS[0])
    align = _ALIGN_EXTRAS[-bare % ALIGNMENT]
    fields = _FIELDS.pack(crc, field_size, field_size, length, len(wide) + len(align))
    local = b"".join((_LOCAL, fields, name, wide, align))
    fields = _FIELDS.pack(crc, field_size, field_size, length, len(central_wide))
    place = _PLACE.pack(0, 0, 0, _OWNER_ONLY, field_offset)
    return local, b"".join((_CENTRAL, fields, place, name, central_wide))


def _ending(count: int, size: int, offset: int) -> bytes:
    """The bytes between a directory of this count, size and offset and the trailer."""
    wide = b""
    fields = (min(count, _FULL_COUNT), size, offset)
    if count >= _FULL_COUNT or size >= _WIDE_FROM or offset >= _WIDE_FROM:
        record = (_WIDE_END.size - 12, _UNIX | _ZIP_VERSION, _ZIP_VERSION, 0, 0)
        wide = _WIDE_END.pack(b"PK\6\6", *record, count, count, size, offset)
        wide += _WIDE_LOCATOR.pack(b"PK\6\7", 0, offset + size, 1)
        # All three, even if one would do: so there is only one form.
        fields = (_FULL_COUNT, _FULL, _FULL)
    return wide + _END.pack(b"PK\5\6", 0, 0, fields[0], *fields, TRAILER_SIZE)


class Parcel:
    """A parcel that is in memory or memory-mapped; the whole structure is checked at once.

    The data of a member is checked against its checksum when it is first used. Views into the
    parcel keep `data` alive.
    """

    __slots__ = ("_members", "_view", "_views", "mould", "opened", "path", "trailer")

    def __init__(self, path: str, data: bytes | memoryview | mmap.mmap) -> None:
        self.path = path
        self._views: dict[str, memoryview] = {}
        self.opened: dict[str, Any] = {}  # what readers make of members, so that it is made once
        self._members: dict[str, tuple[int, int, int]] = {}
        self.mould: Mould | None = None  # what it was cast in, if it is small
        small = len(data) <= 2 * _MOULD_BYTES
        # A small one is copied, if need be: bytes are compared faster than views of them.
        whole = bytes(data) if small else b""
        self._view = view = memoryview(whole if small else data).toreadonly()
        # Alignment gives parcels of one length whose first members, the sheets, differ in theirs.
        first, words = first_and_words(whole)
        looks = len(whole), whole[_SIZE_AT], words
        if small and self._is_of(_last_moulds.get(looks), whole, first):
            return
        self.trailer, directory_crc = parse_trailer(path, bytes(view[-TRAILER_SIZE:]))
        count, directory_at, directory_end = self._find_directory()
        # A copy, but of no more than the file itself has; searching bytes is faster than a view.
        directory = bytes(view[directory_at:directory_end])
        if crc32(directory) != directory_crc:
            raise self._bad("its directory does not match the checksum in its trailer")
        self._members = self._walk(directory, count, directory_at)
        if small and count <= _MOULD_MEMBERS:
            if len(_last_moulds) >= _MOST_MOULDS:
                _last_moulds.clear()
            shape = tuple((name, size) for name, (_, size, _) in self._members.items())
            kind, _, jobs, flags = self.trailer
            _last_moulds[looks] = self.mould = _mould(shape, kind, jobs, flags)

    @property
    def view(self) -> memoryview:
        """All its bytes."""
        return self._view

    def _is_of(self, mould: Mould | None, data: bytes, first: bytes) -> bool:
        """Whether this is, byte by byte, what a mould would make of its data.

        All data is checked at once. If anything differs, the long way finds out what.
        """
        if mould is None or not first.isdigit():
            return False
        pieces = [data[start:end] for _, start, end in mould.places]
        if mould.cast(int(first), pieces) != data:
            return False
        view = self._view
        for name, start, end in mould.places:
            self._views[name] = view[start:end]
        kind, jobs, flags = mould.kind
        self.mould, self.trailer = mould, Trailer(kind, int(first), jobs, flags)
        return True

    def _bad(self, reason: str) -> BadFileError:
        return BadFileError(self.path, reason)

    def _find_directory(self) -> tuple[int, int, int]:
        """How many members there are, and where their directory begins and ends."""
        view = self._view
        end = len(view) - TRAILER_SIZE
        at = end - _END.size
        if at < 0:
            raise self._bad("it is too short to be a parcel")
        _, _, _, _, count, size, offset, _ = _END.unpack_from(view, at)
        if offset == _FULL:
            # If there is no room for it, `at` is negative, and cannot be the sum below.
            at -= _WIDE_LOCATOR.size + _WIDE_END.size
            *_, count, size, offset = _WIDE_END.unpack_from(view, at)
        if count > MAX_MEMBERS or offset + size != at:
            raise self._bad("its directory is not where it should be")
        if view[at:end] != _ending(count, size, offset):
            raise self._bad("its end record is not as a parcel's is")
        return count, offset, at

    def _walk(self, directory: bytes, count: int, size: int) -> dict[str, tuple[int, int, int]]:
        """Start, size and checksum of each member, of which there are `size` bytes in all."""
        members: dict[str, tuple[int, int, int]] = {}
        view = self._view
        at = offset = 0
        for _ in range(count):
            name_at = at + _CENTRAL_SIZE
            if name_at > len(directory):
                raise self._bad("its directory is cut short")
            crc, _, length, name_length, _ = _FIELDS.unpack_from(directory, at + len(_CENTRAL))
            name_end = name_at + name_length
            name = directory[name_at:name_end]
            if not _NAME.fullmatch(name):
                raise self._bad("a member has a name that no parcel gives")
            if length == _FULL:
                length = int.from_bytes(directory[name_end + 4 : name_end + 12], "little")
            local, central = _headers(name, length, crc, offset)
            start = offset + len(local)
            if not directory.startswith(central, at) or view[offset:start] != local:
                raise self._bad(f"the headers of member {name.decode()} are not as a parcel's are")
            members[name.decode()] = (start, length, crc)
            at += len(central)
            offset = (
                start + length
            )  # if this is wrong, neither the next header nor the end will match
        if at != len(directory) or offset != size:
            raise self._bad("there is something between its members and its directory")
        if len(members) != count:
            raise self._bad("two members have the same name")
        return members

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all members, in the order of the file."""
        return tuple(self._members or self._views)

    def member(self, name: str) -> memoryview:
        """The data of a member, not copied; KeyError if there is none of that name."""
        view = self._views.get(name)
        if view is None:
            start, size, crc = self._members[name]
            view = self._view[start : start + size]
            if checksum(view) != crc:
                raise self._bad(f"the data of member {name} does not match its checksum")
            self._views[name] = view
        return view

    def check(self) -> None:
        """Check the data of all members now; BadFileError if any of it is wrong."""
        for name in self.names:
            self.member(name)

    def json(self, name: str) -> object:
        """A member that is JSON, parsed; anything wrong with it makes the parcel a bad file."""
        try:
            return json.loads(str(self.member(name), "utf-8"))
        except KeyError:
            raise self._bad(f"it has no member {name}") from None
        except (ValueError, RecursionError) as error:
            raise self._bad(f"member {name} is not the JSON of a parcel: {error}") from None
