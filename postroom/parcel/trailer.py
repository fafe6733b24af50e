"""The mark: the last bytes of a parcel, which say what it holds.

    postroom/1 results 000000000100 0000002 f------- 1c291ca3 5d0a3b11⏎
               kind    first job    jobs    flags    checksum of the directory, of this line

It is the comment of the zip that a parcel is, of a fixed size: one small read from the end of a
file tells how far it reaches.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ..errors import BadFileError
from .checksum import crc32


class Trailer(NamedTuple):
    """What a parcel holds: so many jobs, from number `first` on."""

    kind: str  # "jobs", "results" or "data"
    first: int
    jobs: int  # below ten million: a few bytes must not claim to be endless work
    flags: str = ""  # up to eight lower-case letters, such as "x" for exclusive


# What a mark says before the number of its first job, and behind it up to the checksums: the same
# in parcels that are alike.
Words: TypeAlias = tuple[bytes, bytes]

_KIND = re.compile(rb"postroom/1 (jobs|results|data) {0,3} ")
_REST = re.compile(rb" ([0-9]{7}) ([a-z]{0,8})-{0,8} ")
# Where a mark states that number.
_FIRST_AT, _FIRST_END = 19, 31
_MOST_FIRST = 10**12
_CRCS = "01234567 01234567\n"
_HEX = re.compile(rb"[0-9a-f]{8}")


@lru_cache(maxsize=256)
def trailer_words(kind: str, jobs: int, flags: str) -> Words:
    """How a mark says this; ValueError if it cannot be said."""
    before, behind = f"postroom/1 {kind:7} ".encode(), f" {jobs:07d} {flags:-<8} ".encode()
    if not _KIND.fullmatch(before) or not _REST.fullmatch(behind):
        raise ValueError(f"a mark of {jobs} {kind} with the flags {flags!r} cannot be written")
    return before, behind


@lru_cache(maxsize=256)
def _parse_words(before: bytes, behind: bytes) -> tuple[str, int, str] | None:
    """Kind, jobs and flags of a mark; None if it is none."""
    kind, rest = _KIND.fullmatch(before), _REST.fullmatch(behind)
    if kind is None or rest is None:
        return None
    words = kind[1].decode(), int(rest[1]), rest[2].decode()
    return words if trailer_words(*words) == (before, behind) else None


def trailer_line(words: Words, first: int, directory_crc: int) -> bytes:
    """The mark as it stands at the end of a file."""
    if not 0 <= first < _MOST_FIRST:
        raise ValueError(f"a mark of jobs from {first} on cannot be written")
    line = b"%b%012d%b%08x " % (words[0], first, words[1], directory_crc)
    return b"%b%08x\n" % (line, crc32(line))


TRAILER_SIZE = len(trailer_line(trailer_words("data", 0, ""), 0, 0))
_HEAD_SIZE = TRAILER_SIZE - len(_CRCS)


def _parse_head(line: bytes) -> Trailer | None:
    """What a mark says; whether it says so in these very words, the checksums tell."""
    first, words = first_and_words(line)
    said = _parse_words(*words)
    if said is None or not first.isdigit():
        return None
    kind, jobs, flags = said
    return Trailer(kind, int(first), jobs, flags)


def parse_trailer(path: str, tail: bytes) -> tuple[Trailer, int]:
    """The mark, and the checksum of the directory that it vouches for."""
    line = tail[-TRAILER_SIZE:]
    mark = _parse_head(line)
    directory_crc = line[_HEAD_SIZE : _HEAD_SIZE + 8]
    if mark is None or not _HEX.fullmatch(directory_crc):
        raise BadFileError(path, "it does not end with the mark of a parcel")
    crc = int(directory_crc, 16)
    words = trailer_words(mark.kind, mark.jobs, mark.flags)
    if trailer_line(words, mark.first, crc) != line:
        raise BadFileError(path, "its mark does not match its checksum")
    return mark, crc


def read_trailer(path: str, tail: bytes) -> Trailer:
    """The mark of the parcel at `path`, of whose bytes `tail` is the last MARK_SIZE or more."""
    return parse_trailer(path, tail)[0]


def first_and_words(tail: bytes) -> tuple[bytes, Words]:
    """The number of the first job as a mark states it, and all else that it says: unchecked."""
    at = len(tail) - TRAILER_SIZE
    before, behind = tail[at : at + _FIRST_AT], tail[at + _FIRST_END : at + _HEAD_SIZE]
    return tail[at + _FIRST_AT : at + _FIRST_END], (before, behind)
