"""Text from jobs, made safe to show. A job may print or be named anything.

| function | use it for | rule |
| --- | --- | --- |
| `encodable` | anything that is sent on | what UTF-8 cannot write is shown as `\\uNNNN` |
| `printable` | one line or message on a terminal | every control character is shown as `\\xNN` |
| `strip_escapes` | a part of a log | escape codes removed, control characters made visible |
| `for_terminal` | a log as it comes, on a terminal | the same; colours stay |
| `final_text` | a whole log or name on a page | the same; a progress bar shows its last state |
| `complete_length` | bytes that are still coming | how many can be decoded and shown now |
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator

_CONTROL = r"\x1b\[[0-?]*[ -/]*[@-~]"
_STRING = r"\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # up to its bell or terminator
_OTHER = r"\x1b[ -/]*(?![\[\]PX^_])[0-~]"
_WHOLE = re.compile(f"{_CONTROL}|{_STRING}|{_OTHER}")
_ESCAPES = re.compile(f"{_CONTROL}|{_STRING}?|{_OTHER}")
_COLOURS = re.compile(r"(\x1b\[[0-9;:]*m)")
_LONGEST = 64  # an unfinished sequence longer than this is not an escape code
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"}
_PICTURES |= {0x7F: "\u2421"}
# They change the direction of the text around them, which can make it read as something else.
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_SHOWN = _PICTURES | {code: f"\\u{code:04x}" for code in (*_DIRECTIONS, *range(0x80, 0xA0))}


def strip_escapes(text: str) -> str:
    """Remove escape codes and make other control characters visible; tab, \\n and \\r stay."""
    return _ESCAPES.sub("", text.replace("\0", "")).replace("\r\n", "\n").translate(_SHOWN)


def for_terminal(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks of a log without what a terminal would obey; only colours, \\t and \\r stay."""
    rest = b""
    coloured = False
    for block in blocks:
        data = rest + block
        end = complete_length(data)
        rest = data[end:]
        parts = _COLOURS.split(data[:end].decode(errors="replace"))
        parts[::2] = map(strip_escapes, parts[::2])
        coloured = coloured or len(parts) > 1
        yield "".join(parts).encode()
    if rest or coloured:  # what the log has switched on ends with it
        yield strip_escapes(rest.decode(errors="replace")).encode() + b"\x1b[0m" * coloured


def final_text(text: str) -> str:
    """What a terminal shows in the end: only the last state of a line that \\r overwrote."""
    return "\n".join(_overwritten(line) for line in strip_escapes(text).split("\n"))


def _overwritten(line: str) -> str:
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""


def complete_length(data: bytes) -> int:
    """How many bytes can be shown now: half a character or escape code waits for its rest."""
    end = len(data)
    for back in range(1, min(4, end) + 1):
        byte = data[end - back]
        if byte >= 0xC0:  # a character begins here: is it complete?
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


def encodable(text: str) -> str:
    """Return a text that can be written as UTF-8: half of a surrogate pair is shown as \\uNNNN."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Show every control character but \\n as \\xNN, so that a terminal does not obey it."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def say(text: str) -> None:
    """Print a message to the user of a program on stderr, unless POSTROOM_QUIET is set."""
    if not os.environ.get("POSTROOM_QUIET"):
        print(f"postroom: {printable(text)}", file=sys.stderr, flush=True)
