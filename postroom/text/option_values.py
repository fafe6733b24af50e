"""Option values with a form of their own: task arrays (1-100:5) and environments (NAME=VALUE)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import PostroomError

_ARRAY = re.compile(r"(\d{1,9})-(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
MOST_ARRAY = 100_000


def parse_array(text: str) -> Sequence[int]:
    """Return the task numbers of `1-100` or `1-100:5`, as Grid Engine writes them."""
    match = _ARRAY.fullmatch(text)
    if (
        match is None
        or not int(match[1]) <= int(match[2])
        or (match[3] is not None and not int(match[3]))
    ):
        raise PostroomError(f"{text!r} is not an array: write 1-100 or 1-100:5")
    numbers = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
    if len(numbers) > MOST_ARRAY:
        raise PostroomError(f"{text!r} means {len(numbers)} jobs; the most is {MOST_ARRAY}")
    return numbers


def parse_limited_array(text: str) -> tuple[Sequence[int], int]:
    """Return the numbers of `1-100%4`, and how many may run at once; 0: any number."""
    numbers, percent, most = text.partition("%")
    if percent and not (most.isascii() and most.isdigit() and int(most)):
        raise PostroomError(f"{text!r} is not an array: write 1-100%4 for at most 4 at once")
    return parse_array(numbers), int(most or 0)


def environment(pairs: Sequence[str]) -> dict[str, str]:
    """Return the environment that several `NAME=VALUE` describe."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise PostroomError(f"--env {pair!r}: write NAME=VALUE")
        found[name] = value
    return found
