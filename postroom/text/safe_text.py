"""Job text as it may be shown: what a terminal would obey is taken out or made visible."""

from __future__ import annotations

import re

_CONTROL = r"\x1b\[[0-?]*[ -/]*[@-~]"
_STRING = r"\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # up to its bell or terminator
_OTHER = r"\x1b[ -/]*(?![\[\]PX^_])[0-~]"
_WHOLE = re.compile(f"{_CONTROL}|{_STRING}|{_OTHER}")
_ESCAPES = re.compile(f"{_CONTROL}|{_STRING}?|{_OTHER}")
_LONGEST = 64  # what is longer and has no end is no escape code
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"}
_PICTURES |= {0x7F: "\u2421"}
# They turn the direction of the text around them, so that it reads as what it is not.
_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_SHOWN = _PICTURES | {code: f"\\u{code:04x}" for code in (*_TURNS, *range(0x80, 0xA0))}


def plain(text: str) -> str:
    """Without escape codes, and with other control characters made visible; \\r stays."""
    return _ESCAPES.sub("", text.replace("\0", "")).replace("\r\n", "\n").translate(_SHOWN)


def settled(text: str) -> str:
    """As it stands on a terminal in the end: of a progress bar, its last state."""
    return "\n".join(_overwritten(line) for line in plain(text).split("\n"))


def _overwritten(line: str) -> str:
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""


def complete(data: bytes) -> int:
    """How much of some bytes can be shown: half a character or escape code waits for the rest."""
    end = len(data)
    for back in range(1, min(4, end) + 1):
        byte = data[end - back]
        if byte >= 0xC0:  # the beginning of a character: is all of it here?
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if size > back:
                end -= back
            break
        if byte < 0x80:
            break
    begin = data.rfind(b"\x1b", max(0, end - _LONGEST), end)
    if begin >= 0:
        last = data[begin:end].decode("latin-1")
        if "\n" not in last and not _WHOLE.match(last):
            end = begin
    if end and data[end - 1] == 0x0D:
        end -= 1  # the next may be \n
    return end


def printable(text: str) -> str:
    """A text of a job's own making, with control characters shown instead of obeyed."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)
