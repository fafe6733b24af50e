"""What takes space in a base, as listings show it."""

from __future__ import annotations

import time

from ..dispatch.old_runs import plan
from ..store.base import Base
from ..store.files import Files, SystemClock
from ..store.retention import retention_of
from ..store.usage import BaseUsage, read_usage, run_for, surveying
from ..text.durations import format_duration
from ..text.sizes import format_bytes

# A listing measures for this long at most; the rest of its figures are from the last survey.
LOOK_S = 0.1
# A survey that is so new is good enough.
FRESH_S = 5.0


def look(
    files: Files, base: Base, seconds: float = LOOK_S, *, fresh: bool = False, store: bool = True
) -> BaseUsage:
    """The space that a base takes, as far as is known after so long.

    With `fresh`, a survey of a moment ago is not good enough.
    """
    known = read_usage(files, base)
    if not fresh and 0 <= time.time() - known.at < FRESH_S:
        return known
    found: list[BaseUsage] = []

    def survey() -> object:
        found.append((yield from surveying(files, base, SystemClock(), store=store)))

    run_for(survey(), SystemClock(), seconds)  # type: ignore[arg-type]
    return found[0] if found else known


def usage_rows(usage: BaseUsage) -> list[list[str]]:
    """A row for each kind, and their sum."""
    kinds = usage.by_kind()
    rows = [[kind, format_bytes(nbytes)] for kind, nbytes in kinds.items()]
    return [*rows, ["in all", format_bytes(sum(kinds.values()))]]


def usage_line(files: Files, base: Base, usage: BaseUsage) -> str:
    """The sizes in one line, and when the next results go; "" if nobody has measured yet."""
    if not usage.at:
        return ""
    kinds = {kind: nbytes for kind, nbytes in usage.by_kind().items() if nbytes >= 1 << 20}
    words = [f"{format_bytes(nbytes)} of {kind}" for kind, nbytes in kinds.items()]
    line = "disk: " + (", ".join(words) or "less than 1 MiB")
    kept = retention_of(files, base, disk_bytes=files.disk_space(base.root)[1])
    going = plan(usage, kept, now := time.time())
    late = [one for one in going if one.over_limit or one.at <= now]
    if late:
        line += f"; {format_bytes(sum(one.nbytes for one in late))} go as soon as nobody needs them"
    elif going and going[0].at != float("inf"):
        line += f"; the oldest results go in {format_duration(going[0].at - now)}"
    return line
