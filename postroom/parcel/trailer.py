"""The trailer: the last bytes of a parcel, which say what it holds.

    postroom/1 results 000000000100 0000002 f------- 1c291ca3 5d0a3b11⏎
               kind    first job    jobs    flags    checksum of the directory, of this line

A parcel is a zip, and the trailer is its comment. It has a fixed size, so one small read from the
end of a file tells which jobs it holds.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ..errors import BadFileError, OtherVersionError
from .checksum import crc32


class Trailer(NamedTuple):
    """What a parcel holds: jobs `first` and following."""

    kind: str  # "jobs", "results" or "data"
    first: int
    jobs: int  # below ten million: a few bytes must not claim to be endless work
    flags: str = ""  # up to eight lower-case letters, such as "x" for exclusive


# The text of a trailer before the number of its first job, and from there to the checksums. Parcels
# that are alike have the same.
Words: TypeAlias = tuple[bytes, bytes]

_KIND = re.compile(rb"postroom/1 (jobs|results|data) {0,3} ")
_REST = re.compile(rb" ([0-9]{7}) ([a-z]{0,8})-{0,8} ")
# Where a trailer states that number.
_FIRST_AT, _FIRST_END = 19, 31
_MOST_FIRST = 10**12
_CRCS = "01234567 01234567\n"
_HEX = re.compile(rb"[0-9a-f]{8}")


@lru_cache(maxsize=256)
def trailer_words(kind: str, jobs: int, flags: str) -> Words:
    """The text of a trailer around the number of the first job; ValueError if it does not fit."""
    before, behind = f"postroom/1 {kind:7} ".encode(), f" {jobs:07d} {flags:-<8} ".encode()
    if not _KIND.fullmatch(before) or not _REST.fullmatch(behind):
        raise ValueError(f"a trailer of {jobs} {kind} with the flags {flags!r} cannot be written")
    return before, behind


@lru_cache(maxsize=256)
def _parse_words(before: bytes, behind: bytes) -> tuple[str, int, str] | None:
    """Kind, jobs and flags of a trailer; None if this is no trailer."""
    kind, rest = _KIND.fullmatch(before), _REST.fullmatch(behind)
    if kind is None or rest is None:
        return None
    words = kind[1].decode(), int(rest[1]), rest[2].decode()
    return words if trailer_words(*words) == (before, behind) else None


def trailer_line(words: Words, first: int, directory_crc: int) -> bytes:
    """The trailer as it is written at the end of a file."""
    if not 0 <= first < _MOST_FIRST:
        raise ValueError(f"a trailer of jobs from {first} on cannot be written")
    line = b"%b%012d%b%08x " % (words[0], first, words[1], directory_crc)
    return b"%b%08x\n" % (line, crc32(line))


TRAILER_SIZE = len(trailer_line(trailer_words("data", 0, ""), 0, 0))
_HEAD_SIZE = TRAILER_SIZE - len(_CRCS)


def _parse_head(line: bytes) -> Trailer | None:
    """What a trailer says; the caller checks the checksums."""
    first, words = first_and_words(line)
    said = _parse_words(*words)
    if said is None or not first.isdigit():
        return None
    kind, jobs, flags = said
    return Trailer(kind, int(first), jobs, flags)


def parse_trailer(path: str, tail: bytes) -> tuple[Trailer, int]:
    """The trailer, and the checksum of the directory that it states."""
    line = tail[-TRAILER_SIZE:]
    trailer = _parse_head(line)
    directory_crc = line[_HEAD_SIZE : _HEAD_SIZE + 8]
    if trailer is None or not _HEX.fullmatch(directory_crc):
        if line[:9] == b"postroom/" and line[-9:] == b"%08x\n" % crc32(line[:-9]):
            raise OtherVersionError(path, "an unknown trailer")
        raise BadFileError(path, "it does not end with the trailer of a parcel")
    crc = int(directory_crc, 16)
    words = trailer_words(trailer.kind, trailer.jobs, trailer.flags)
    if trailer_line(words, trailer.first, crc) != line:
        raise BadFileError(path, "its trailer does not match its checksum")
    return trailer, crc


def read_trailer(path: str, tail: bytes) -> Trailer:
    """The trailer of the parcel at `path`, whose last TRAILER_SIZE bytes or more are `tail`."""
    return parse_trailer(path, tail)[0]


def first_and_words(tail: bytes) -> tuple[bytes, Words]:
    """The number of the first job, and the rest of what a trailer says; nothing is checked."""
    at = len(tail) - TRAILER_SIZE
    before, behind = tail[at : at + _FIRST_AT], tail[at + _FIRST_END : at + _HEAD_SIZE]
    return tail[at + _FIRST_AT : at + _FIRST_END], (before, behind)
