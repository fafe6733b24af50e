"""One table of all jobs of a batch: arguments, outcomes, and figures from their logs.

No column replaces another: an argument with the name of one of our columns is called `arg.NAME`,
and a pattern with the name of a column `log.NAME`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import statistics
from collections.abc import Sequence
from typing import Any

from ..commands.job_folder import FAILURE, SUCCESS, JobFolder
from ..commands.sweep import number
from ..errors import PostroomError
from ..system.regular_file import open_regular
from ..text.strict_json import strict_json
from ..text.table import cut, table_lines
from . import plot

Row = dict[str, Any]
LOG_LIMIT = 64 << 20
# The first columns, in this order; arguments of a sweep and patterns follow.
COLUMNS = ("name", "outcome", "exit", "attempt", "gpu", "seconds", "started", "ended", "command")


class TableError(PostroomError):
    """A table or a plot cannot be made."""


def read_table(output: str, patterns: Sequence[str] = ()) -> list[Row]:
    """Return a row per job folder, with the last match of each pattern in its logs."""
    compiled = dict(_compile(pattern, place) for place, pattern in enumerate(patterns))
    if len(compiled) < len(patterns):
        raise TableError("two patterns have the same column: give one a name, --pattern NAME=REGEX")
    folders = [JobFolder(f"{output}/{name}") for name in sorted(os.listdir(output), key=_natural)]
    rows = {folder: row for folder in folders if (row := _read_row(folder)) is not None}
    taken = {column for row in rows.values() for column in row}
    for folder, row in rows.items() if compiled else ():
        text = _read(folder.out) + _read(folder.err)
        for column, pattern in compiled.items():
            found = pattern.findall(text)
            last = found[-1] if found else ""
            value = number((last if isinstance(last, str) else last[0]).strip())
            row[f"log.{column}" if column in taken else column] = value
    return list(rows.values())


def _read_row(folder: JobFolder) -> Row | None:
    """Read the row of one job folder; None if the folder is not that of a job."""
    info = folder.read_info()
    if not info:
        return None
    row: Row = {column: number(info.get(column, "")) for column in COLUMNS}
    row["name"] = info.get("name", folder.name)
    row["command"] = info.get("command", "")
    if os.path.exists(f"{folder.path}/{SUCCESS}"):
        row["outcome"] = "ok"
    elif not os.path.exists(f"{folder.path}/{FAILURE}"):
        row["outcome"] = info.get("outcome", "running")
    if "signal" in info:
        row["exit"] = f"signal {info['signal']}"
    row["folder"] = folder.path
    with contextlib.suppress(ValueError):  # an edited INFO loses its columns, not the table
        for name, value in dict(json.loads(info.get("arguments", "{}"))).items():
            row[f"arg.{name}" if name in row else name] = value
    return row


def _compile(pattern: str, place: int) -> tuple[str, re.Pattern[str]]:
    named = re.fullmatch(r"(\w+)=(.*)", pattern)
    column, text = named.groups() if named else (f"value{place + 1 if place else ''}", pattern)
    if not named:
        words = re.match(r"[A-Za-z_]\w*", pattern)
        column = words[0] if words else column
    try:
        return column, re.compile(text, re.MULTILINE)
    except re.error as error:
        raise TableError(f"{pattern!r} is not a regular expression: {error}") from None


def _read(path: str) -> str:
    try:
        with open_regular(path) as file:
            return file.read(LOG_LIMIT).decode(errors="replace")
    except OSError:
        return ""


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sort `job_9` before `job_10`."""
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def as_csv(rows: Sequence[Row]) -> str:
    """Return CSV, with every column that any row has."""
    columns = list(dict.fromkeys(column for row in rows for column in row)) or list(COLUMNS)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv_cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets a quote in front."""
    if not isinstance(value, str):
        return value
    value = re.sub("\r\n?", "\n", value)  # `csv` does not quote a single \\r, which ends a row
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\n")) else value


def as_json(rows: Sequence[Row]) -> str:
    """Return JSON, one line per job."""
    return "[\n" + ",\n".join(map(strict_json, rows)) + "\n]\n"


def as_text(rows: Sequence[Row], *, width: int = 40) -> str:
    """Return aligned columns; long values are cut."""
    hidden = {"folder", "ended", "started"}
    columns = list(dict.fromkeys(key for row in rows for key in row if key not in hidden))
    columns.sort(key=lambda column: column == "command")
    cells = ([_cell(row.get(column, ""), width) for column in columns] for row in rows)
    return "".join(f"{line}\n" for line in table_lines([columns, *cells]))


def _cell(value: Any, width: int) -> str:
    return cut(f"{value:.6g}" if isinstance(value, float) else str(value), width)


def as_plot(
    rows: Sequence[Row],
    x: str,
    y: str,
    *,
    by: Sequence[str] = (),
    log: str = "",
    png: bool = False,
) -> bytes:
    """Return a plot of column y against column x, a line for each value of the columns `by`.

    `log` names the axes that are logarithmic: "x", "y" or "xy". On these only numbers above 0
    are shown.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    check_columns(rows, by)
    for row in rows:
        pair = row.get(x), row.get(y)
        if all(_is_number(v) for v in pair):
            point = float(pair[0] or 0), float(pair[1] or 0)
            if all(value > 0 or axis not in log for axis, value in zip("xy", point, strict=True)):
                name = ", ".join(f"{column} {_cell(row.get(column, ''), 20)}" for column in by)
                groups.setdefault(name, []).append(point)
    if not groups:
        above = " above 0" if log else ""
        raise TableError(
            f"no job has a number{above} in both columns, {x} and {y}; columns: {_known(rows)}"
        )
    return plot.plot(groups, x, y, log_x="x" in log, log_y="y" in log, png=png)


def sort_rows(rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """Sort by columns, the first counts most; `-loss` is from large to small, without last."""
    check_columns(rows, [column.removeprefix("-") for column in columns])
    found = list(rows)
    for column in reversed(columns):
        name = column.removeprefix("-")

        def key(row: Row, name: str = name) -> tuple[bool, float, list[tuple[int, int, str]]]:
            value = row[name]
            is_number = _is_number(value)
            return not is_number, float(value) if is_number else 0.0, _natural(str(value))

        # Rows without a value come last, whichever way the others go.
        having = [row for row in found if row.get(name, "") not in ("", None)]
        lacking = [row for row in found if row.get(name, "") in ("", None)]
        found = sorted(having, key=key, reverse=column != name) + lacking
    return found


def average(rows: Sequence[Row], by: Sequence[str], arguments: Sequence[str]) -> list[Row]:
    """Return a row for each value of the columns `by`: how many jobs, and the means of numbers.

    `loss.std` is the standard deviation of `loss`, where there are several. `arguments` are those
    of the sweep, which have no mean.
    """
    check_columns(rows, by)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(column, "")) for column in by), []).append(row)
    skipped = {*by, *arguments, *COLUMNS, "folder"} - {"seconds"}
    figures = list(dict.fromkeys(name for row in rows for name in row if name not in skipped))
    found = []
    for several in groups.values():
        made: Row = {column: several[0].get(column, "") for column in by}
        made |= {"jobs": len(several), "ok": sum(row["outcome"] == "ok" for row in several)}
        for name in figures:
            values = [float(row[name]) for row in several if _is_number(row.get(name))]
            if values:
                made[name] = statistics.fmean(values)
                if len(values) > 1:
                    made[f"{name}.std"] = statistics.stdev(values)
        found.append(made)
    return found


def arguments_of(output: str) -> list[str]:
    """Return the columns that are arguments of a sweep."""
    names = dict.fromkeys(name for row in read_table(output) for name in row)
    return [name for name in names if name not in COLUMNS and name != "folder"]


def check_columns(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Refuse a column that no row has."""
    for column in columns:
        if rows and not any(column in row for row in rows):
            raise TableError(f"there is no column {column}; columns: {_known(rows)}")


def _known(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(key for row in rows for key in row))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
