"""Amounts of disk space (bytes) and of memory (MiB), as people write and read them."""

from __future__ import annotations

import re

from ..errors import GpuError, PostroomError

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt])(?:i?b)?", re.ASCII | re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return `500M`, `20G`, `1.5GiB` or `2T` in bytes; a number alone might mean anything."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise PostroomError(f"{text!r} is not a size: write 500M, 20G or 1.5T")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_bytes(size: float) -> str:
    """Show bytes in the largest unit that fits: 312 B, 1.5 KiB, 20 MiB, 5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    shown = f"{size:.0f}" if unit == "B" or size >= 10 else f"{size:.1f}".removesuffix(".0")
    return f"{shown} {unit}"


def to_mib(text: str) -> int:
    """Return `8G`, `8GiB`, `1.5G` or `500M` as MiB; 6 alone might mean either, and is refused."""
    number = text.strip()
    if number.replace(".", "", 1).isdigit():
        raise GpuError(f"{number} of what? write {number}G or {number}M")
    mib = 0
    if number.lower().rstrip("ib").endswith(("m", "g")) and _SIZE.fullmatch(number):
        mib = parse_bytes(number) >> 20
    if not 1 <= mib < 2**40:
        raise GpuError(f"{text!r} is not an amount of memory: write 8G or 500M")
    return mib


def from_mib(memory_mib: int) -> str:
    """Show MiB as `500M` or `1.5G`, exact to a tenth of a GiB."""
    if memory_mib < 1024:
        return f"{memory_mib}M"
    return f"{memory_mib / 1024:.1f}G".replace(".0G", "G")
