"""The parcel: one zip file of stored, aligned members, with a mark at its very end.

    ┌────────┬──────┬────────┬──────┬───┬───────────┬─────┬─────────────────────────────────────┐
    │ header │ data │ header │ data │ … │ directory │ end │ postroom/1 results 000000000100 … ⏎ │
    └────────┴──────┴────────┴──────┴───┴───────────┴─────┴─────────────────────────────────────┘
             ▲               ▲                            the mark: the zip's comment,
             multiples of 64 bytes                        the last MARK_SIZE bytes

Any zip reader, `numpy.load` among them, can open it. Our own reader is stricter: for given members
and a given mark there is exactly one valid file. It takes no more than names, sizes and checksums
from the directory, writes every header anew by the function that the writer uses, and compares. So
there is no rule to forget: overlaps, gaps, compression, odd flags and flipped bits all differ.

The chain of checksums goes from the mark (its own, and the directory's) over the directory to the
members, whose data is checked when it is first asked for. What a parcel holds can be learned from
its last MARK_SIZE bytes alone. This module does without numpy, so that sorting parcels is cheap.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from .checksum import checksum, crc32
from .errors import BadFileError

Buffer: TypeAlias = bytes | memoryview

ALIGNMENT = 64
# A parcel may be as large as a card's memory and more; a petabyte is somebody's mistake.
PARCEL_LIMIT = 1 << 40
MAX_MEMBERS = 1 << 22

# Flat and plain, so that no tool that unpacks a parcel can be led out of its folder.
_NAME = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")

# Chunks below this size are joined with their neighbours: a copy costs less than a write each.
SMALL = 1 << 16

# Parcels of few members, and small, share the layout of the one before: see `_Layout`.
_LAYOUT_MEMBERS = 16
_LAYOUT_BYTES = 1 << 16

# A field that is too narrow for its value is full, and the value stands in a 64-bit counterpart.
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


@dataclass(frozen=True, slots=True)
class Mark:
    """What a parcel holds: `count` jobs from number `first` on."""

    kind: str  # "jobs", "results" or "data"
    first: int
    count: int  # below ten million: a few bytes must not claim to be endless work
    flags: str = ""  # up to eight lower-case letters, such as "x" for exclusive


_HEAD = re.compile(
    rb"postroom/1 (jobs|results|data) {0,3} ([0-9]{12}) ([0-9]{7}) ([a-z]{0,8})-{0,8} "
)
_HEX = re.compile(rb"[0-9a-f]{8}")


@lru_cache(maxsize=256)
def _mark_head(mark: Mark) -> bytes:
    """What a mark says, without the checksums behind it; ValueError if it cannot be said."""
    head = (
        f"postroom/1 {mark.kind:7} {mark.first:012d} {mark.count:07d} {mark.flags:-<8} "
    ).encode()
    if not _HEAD.fullmatch(head):
        raise ValueError(f"{mark} cannot be written")
    return head


def _mark_line(mark: Mark, directory_crc: int) -> bytes:
    """The mark as it stands at the end of a file."""
    line = b"%b%08x " % (_mark_head(mark), directory_crc)
    return b"%b%08x\n" % (line, crc32(line))


MARK_SIZE = len(_mark_line(Mark("data", 0, 0), 0))
_HEAD_SIZE = len(_mark_head(Mark("data", 0, 0)))


@lru_cache(maxsize=256)
def _parse_head(head: bytes) -> Mark | None:
    try:
        _, kind, first, count, flags = head.decode("ascii").split()
        mark = Mark(kind, int(first), int(count), flags.rstrip("-"))
        return mark if _mark_head(mark) == head else None  # in any other spelling it is none
    except ValueError:
        return None


def _parse_mark(path: str, tail: bytes) -> tuple[Mark, int]:
    """The mark, and the checksum of the directory that it vouches for."""
    line = tail[-MARK_SIZE:]
    mark = _parse_head(line[:_HEAD_SIZE])
    directory_crc = line[_HEAD_SIZE : _HEAD_SIZE + 8]
    if mark is None or not _HEX.fullmatch(directory_crc):
        raise BadFileError(path, "it does not end with the mark of a parcel")
    crc = int(directory_crc, 16)
    if _mark_line(mark, crc) != line:
        raise BadFileError(path, "its mark does not match its checksum")
    return mark, crc


def read_mark(path: str, tail: bytes) -> Mark:
    """The mark of the parcel at `path`, of whose bytes `tail` is the last MARK_SIZE or more."""
    return _parse_mark(path, tail)[0]


def pack(mark: Mark, members: Iterable[tuple[str, Sequence[Buffer]]]) -> list[Buffer]:
    """The chunks of a parcel, to be written one after another; large buffers are not copied.

    A member is its name and the buffers that it consists of. Nothing is read from the buffers after
    this but when the chunks are written: whoever changes them in between spoils the checksums.
    """
    data: list[list[Buffer]] = []
    crcs: list[int] = []
    shape: list[tuple[str, int]] = []
    for name, buffers in members:
        joined = _join_small(buffers)
        data.append(joined)
        shape.append((name, sum(map(len, joined))))
        crc = 0
        for chunk in joined:
            crc = checksum(chunk, crc)
        crcs.append(crc)
    if len(shape) > MAX_MEMBERS:
        raise ValueError(f"a parcel cannot have {len(shape)} members")
    layout = _layout(tuple(shape))
    chunks: list[Buffer] = []
    for local, joined in zip(layout.locals(crcs), data, strict=True):
        chunks.append(local)
        chunks += joined
    directory = layout.directory(crcs)
    chunks += (directory, layout.ending, _mark_line(mark, crc32(directory)))
    return _join_small(chunks)


def _layout(shape: tuple[tuple[str, int], ...]) -> _Layout:
    return _cached_layout(shape) if len(shape) <= _LAYOUT_MEMBERS else _Layout(shape)


class _Layout:
    """The headers of members with these names and sizes, all but the checksums.

    Jobs that are handed in one by one are alike, and so are their outcomes: what is the same in
    each of them is made once, when it is written and when it is compared.
    """

    __slots__ = ("_central", "_central_crcs", "_local", "ending", "places")

    def __init__(self, shape: tuple[tuple[str, int], ...]) -> None:
        self._local: list[tuple[bytes, bytes]] = []
        self.places: list[tuple[str, int, int, int]] = []  # name; header at, data from, until
        self._central_crcs: list[int] = []
        central: list[bytes] = []
        names: set[str] = set()
        offset = size = 0
        for name, length in shape:
            raw = name.encode("ascii", "replace")
            if not _NAME.fullmatch(raw) or name in names:
                raise ValueError(f"{name!r} cannot be the name of a member, or is already")
            names.add(name)
            header, entry = _headers(raw, length, 0, offset)
            self._local.append((header[: len(_LOCAL)], header[len(_LOCAL) + _CRC.size :]))
            self._central_crcs.append(size + len(_CENTRAL))
            central.append(entry)
            size += len(entry)
            start = offset + len(header)
            self.places.append((name, offset, start, start + length))
            offset = start + length
        self._central = b"".join(central)
        self.ending = _ending(len(shape), size, offset)

    def locals(self, crcs: Sequence[int]) -> list[bytes]:
        """The header in front of each member."""
        return [
            b"%b%b%b" % (head, _CRC.pack(crc), rest)
            for (head, rest), crc in zip(self._local, crcs, strict=True)
        ]

    def directory(self, crcs: Sequence[int]) -> bytes:
        """The headers behind all members."""
        directory = bytearray(self._central)
        for at, crc in zip(self._central_crcs, crcs, strict=True):
            _CRC.pack_into(directory, at, crc)
        return bytes(directory)


_cached_layout = lru_cache(maxsize=256)(_Layout)
# The layout of the last parcel of a size: the next of that size is likely to have it, too.
_last_layouts: dict[tuple[int, bytes], _Layout] = {}
_MOST_LAYOUTS = 256


def _join_small(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer chunks, each of them bytes or a view of single bytes."""
    if set(map(type, buffers)) == {bytes} and sum(map(len, buffers)) < SMALL:
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
    """What stands between a directory of this count, size and offset and the mark."""
    wide = b""
    fields = (min(count, _FULL_COUNT), size, offset)
    if count >= _FULL_COUNT or size >= _WIDE_FROM or offset >= _WIDE_FROM:
        record = (_WIDE_END.size - 12, _UNIX | _ZIP_VERSION, _ZIP_VERSION, 0, 0)
        wide = _WIDE_END.pack(b"PK\6\6", *record, count, count, size, offset)
        wide += _WIDE_LOCATOR.pack(b"PK\6\7", 0, offset + size, 1)
        # All three, whichever it was: one form less.
        fields = (_FULL_COUNT, _FULL, _FULL)
    return wide + _END.pack(b"PK\5\6", 0, 0, fields[0], *fields, MARK_SIZE)


class Parcel:
    """A parcel that is in memory or memory-mapped; the whole structure is checked at once.

    The data of a member is checked against its checksum when it is first asked for. Views into the
    parcel keep `data` alive.
    """

    __slots__ = ("_members", "_view", "_views", "mark", "opened", "path")

    def __init__(self, path: str, data: bytes | memoryview | mmap.mmap) -> None:
        self.path = path
        self._view = view = memoryview(data).toreadonly()
        self._views: dict[str, memoryview] = {}
        self.opened: dict[str, Any] = {}  # what readers make of members, so that it is made once
        self.mark, directory_crc = _parse_mark(path, bytes(view[-MARK_SIZE:]))
        self._members: dict[str, tuple[int, int, int]] = {}
        # Alignment gives parcels of one length whose first members, the sheets, differ in theirs.
        like = len(view), bytes(view[_SIZE_AT])
        layout = _last_layouts.get(like)
        if layout is not None and self._is_as(layout, directory_crc):
            return
        count, directory_at, directory_end = self._find_directory()
        # A copy, but of no more than the file itself has; searching bytes is faster than a view.
        directory = bytes(view[directory_at:directory_end])
        if crc32(directory) != directory_crc:
            raise self._bad("its directory does not match the checksum in its mark")
        self._members = self._walk(directory, count, directory_at)
        if len(view) <= _LAYOUT_BYTES and count <= _LAYOUT_MEMBERS:
            if len(_last_layouts) >= _MOST_LAYOUTS:
                _last_layouts.clear()
            shape = tuple((name, size) for name, (_, size, _) in self._members.items())
            _last_layouts[like] = _layout(shape)

    def _is_as(self, layout: _Layout, directory_crc: int) -> bool:
        """Whether the file is, byte by byte, what the writer would make with this layout.

        All data is checked at once. If anything differs, the long way finds out what.
        """
        view = self._view
        views = [view[start:end] for _, _, start, end in layout.places]
        crcs = [crc32(data) for data in views]
        directory = layout.directory(crcs)
        if crc32(directory) != directory_crc:
            return False
        behind = layout.places[-1][3] if layout.places else 0
        if view[behind : len(view) - MARK_SIZE] != directory + layout.ending:
            return False
        for local, (_, at, start, _) in zip(layout.locals(crcs), layout.places, strict=True):
            if view[at:start] != local:
                return False
        for (name, _, start, end), crc, data in zip(layout.places, crcs, views, strict=True):
            self._members[name] = (start, end - start, crc)
            self._views[name] = data
        return True

    def _bad(self, reason: str) -> BadFileError:
        return BadFileError(self.path, reason)

    def _find_directory(self) -> tuple[int, int, int]:
        """How many members there are, and where their directory begins and ends."""
        view = self._view
        end = len(view) - MARK_SIZE
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
            offset = start + length  # if this lies, neither the next header nor the end will match
        if at != len(directory) or offset != size:
            raise self._bad("there is something between its members and its directory")
        if len(members) != count:
            raise self._bad("two members have the same name")
        return members

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all members, in the order of the file."""
        return tuple(self._members)

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

    def json(self, name: str) -> object:
        """A member that is JSON, parsed; anything wrong with it makes the parcel a bad file."""
        try:
            return json.loads(str(self.member(name), "utf-8"))
        except KeyError:
            raise self._bad(f"it has no member {name}") from None
        except (ValueError, RecursionError) as error:
            raise self._bad(f"member {name} is not the JSON of a parcel: {error}") from None
