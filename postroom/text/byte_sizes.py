"""Amounts of disk space, as people write and read them."""

from __future__ import annotations

import re

from ..errors import PostroomError

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(?:i?b)?", re.ASCII | re.IGNORECASE)


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
