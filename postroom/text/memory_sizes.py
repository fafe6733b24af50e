"""Amounts of memory as people write them."""

from __future__ import annotations

from ..errors import GpuError

UNITS = {"m": 1, "mb": 1, "mib": 1, "g": 1024, "gb": 1024, "gib": 1024}


def to_mib(text: str) -> int:
    """Return `8G`, `8GiB`, `1.5G` or `500M` as MiB; 6 alone might mean either, and is refused."""
    number = text.strip().rstrip("GMBgmbi")
    unit = text.strip()[len(number) :].strip().lower()
    if unit == "" and number.replace(".", "", 1).isdigit():
        raise GpuError(f"{text.strip()} of what? write {number}G or {number}M")
    try:
        size = float(number) * UNITS[unit]
        if not 1 <= size < 2**40:
            raise ValueError
    except (ValueError, KeyError):
        raise GpuError(f"{text!r} is not an amount of memory: write 8G or 500M") from None
    return int(size)


def from_mib(memory_mib: int) -> str:
    """Show MiB as `500M` or `1.5G`, exact to a tenth of a GiB."""
    if memory_mib < 1024:
        return f"{memory_mib}M"
    return f"{memory_mib / 1024:.1f}G".replace(".0G", "G")
