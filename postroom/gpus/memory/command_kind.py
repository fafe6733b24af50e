"""Which kind of job a shell command is: its words without values, and the values that vary.

    python train.py --lr 0.1 --width 64 > log.txt
    type: python train.py --lr --width      call: {"--width": 64}

So Postroom learns about commands as about functions: two commands are of one kind until they differ
in a value that may set sizes; values that turn out not to matter are ignored (`profiles`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex

from ...system.regular_file import open_regular
from .profiles import Kind

REDIRECTION = re.compile(r"\d?(>>?|<|&>)")
NUMBER = re.compile(r"[+-]?\d+")
FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][+-]?\d+)")


def kind_of_command(line: str, *, folder: str = ".") -> Kind:
    """Return the kind of a shell command that runs in a folder."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote, which the shell will report
        words = line.split()
    plain: list[str] = []
    call: dict[str, int | str] = {}
    code = hashlib.sha256()
    name = ""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif REDIRECTION.match(word):
            skip = REDIRECTION.fullmatch(word) is not None  # the target of its output sets no size
        elif word.startswith("-") and not NUMBER.fullmatch(word) and not FLOAT.fullmatch(word):
            name, equals, value = word.partition("=")
            plain.append(name)
            if equals:
                _put(call, name, value)
                name = ""
        elif name:
            _put(call, name, word)
            name = ""
        elif NUMBER.fullmatch(word) or FLOAT.fullmatch(word):
            _put(call, f"word {len(plain)}", word)
            plain.append("N")
        else:
            plain.append(word)
            code.update(_content(os.path.join(folder, word)))
    return Kind(" ".join(plain), code.hexdigest()[:12], call)


def _put(call: dict[str, int | str], name: str, value: str) -> None:
    if NUMBER.fullmatch(value):
        call[name] = int(value)
    elif not FLOAT.fullmatch(value):  # a learning rate sets no sizes
        call[name] = value


def _content(path: str) -> bytes:
    """Return the source of a script that the command names, since an edit makes another version."""
    if path.endswith((".py", ".sh")):
        try:
            with open_regular(path) as file:
                return file.read(2**20)
        except OSError:
            pass
    return b""
