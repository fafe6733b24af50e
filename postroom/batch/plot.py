"""A small plot as PNG: points of one column against another, with no library to install."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 74, 18, 18, 46
WHITE, INK, FAINT, DOT = (255, 255, 255), (34, 34, 34), (221, 221, 221), (29, 111, 184)

# Six rows of three bits each.
_FONT = {
    "0": "755557", "1": "262227", "2": "717447", "3": "717117", "4": "555711", "5": "747117",
    "6": "747557", "7": "711222", "8": "757557", "9": "755717", ".": "000002", "-": "007000",
    "+": "027200", "e": "003764", "a": "006357", "b": "446556", "c": "003443", "d": "113553",
    "f": "326222", "g": "035716", "h": "446555", "i": "202222", "j": "101152", "k": "456655",
    "l": "622227", "m": "005775", "n": "006555", "o": "002552", "p": "065644", "q": "035311",
    "r": "003444", "s": "003636", "t": "272223", "u": "005553", "v": "005552", "w": "005775",
    "x": "005225", "y": "005512", "z": "007247", "_": "000007", "/": "112244", "%": "512245",
}  # fmt: skip


class Canvas:
    """Pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(WHITE) * width) for _ in range(height)]

    def dot(self, x: int, y: int, colour: tuple[int, int, int]) -> None:
        """Set one pixel; outside of the picture nothing happens."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self._rows[y][3 * x : 3 * x + 3] = bytes(colour)

    def box(self, x: int, y: int, width: int, height: int, colour: tuple[int, int, int]) -> None:
        """Fill a rectangle."""
        for row in range(y, y + height):
            for column in range(x, x + width):
                self.dot(column, row, colour)

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw a straight line."""
        steps = int(max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1))
        for step in range(steps + 1):
            part = step / steps
            x, y = (a + (b - a) * part for a, b in zip(start, end, strict=True))
            self.dot(round(x), round(y), DOT)

    def text(self, x: int, y: int, text: str) -> None:
        """Write in small letters, twice as large as they are drawn."""
        for place, letter in enumerate(text.lower()):
            for row, bits in enumerate(_FONT.get(letter, "000000")):
                for column in range(3):
                    if int(bits) >> (2 - column) & 1:
                        self.box(x + 8 * place + 2 * column, y + 2 * row, 2, 2, INK)

    def png(self) -> bytes:
        """As a file."""
        raw = b"".join(b"\0" + row for row in self._rows)
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        chunks = (b"IHDR", head), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )


def plot(points: Sequence[tuple[float, float]], x_name: str, y_name: str) -> bytes:
    """Draw points, joined in the order of x."""
    canvas = Canvas(WIDTH, HEIGHT)
    ordered = sorted(points)
    ticks = [_ticks([point[axis] for point in ordered]) for axis in (0, 1)]
    inner = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        parts = [
            (value - marks[0]) / (marks[-1] - marks[0])
            for value, marks in zip((x, y), ticks, strict=True)
        ]
        return LEFT + parts[0] * inner[0], TOP + (1 - parts[1]) * inner[1]

    for mark in ticks[0]:
        x = round(place(mark, ticks[1][0])[0])
        canvas.box(x, TOP, 1, inner[1], FAINT)
        canvas.text(x - 4 * len(_short(mark)), HEIGHT - BOTTOM + 6, _short(mark))
    for mark in ticks[1]:
        y = round(place(ticks[0][0], mark)[1])
        canvas.box(LEFT, y, inner[0], 1, FAINT)
        canvas.text(LEFT - 8 * len(_short(mark)) - 4, y - 5, _short(mark))
    canvas.text((WIDTH - 8 * len(x_name)) // 2, HEIGHT - 18, x_name)
    canvas.text(6, 4, y_name)
    shown = [place(*point) for point in ordered]
    for start, end in pairwise(shown):
        canvas.line(start, end)
    for x_at, y_at in shown:
        canvas.box(round(x_at) - 2, round(y_at) - 2, 5, 5, DOT)
    return canvas.png()


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers around some values."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [count * step for count in range(first, last + 1)]


def _short(value: float) -> str:
    return f"{value:.4g}"
