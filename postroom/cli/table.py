"""`postroom table`: show the jobs of a batch as a table or a plot."""

from __future__ import annotations

import os
import sys

import click

from ..batch.batch_table import (
    Row,
    arguments_of,
    as_csv,
    as_json,
    as_plot,
    as_text,
    average,
    check_columns,
    read_table,
    sort_rows,
)
from ..errors import PostroomError
from ..text.safe_text import strip_escapes
from .options import CONTEXT
from .output import talk
from .run import DEFAULT_OUTPUT


@click.command(context_settings=CONTEXT)
@click.argument("output", default=DEFAULT_OUTPUT, type=click.Path(file_okay=False))
@click.option(
    "--pattern",
    multiple=True,
    metavar="[NAME=]REGEX",
    help="Add a column: the last match in each log.",
)
@click.option("--csv", "as_", flag_value="csv", help="Print CSV.")
@click.option("--json", "as_", flag_value="json", help="Print JSON.")
@click.option("--sort", metavar="COLUMNS", help="Sort by columns: loss,-lr; - means descending.")
@click.option("--group", metavar="COLUMNS", help="A row for each value of COLUMNS, with means.")
@click.option("--over", metavar="COLUMNS", help="Average over COLUMNS, such as seed.")
@click.option("--plot", nargs=2, metavar="X Y", help="Plot column Y over column X.")
@click.option("--lines", metavar="COLUMNS", help="--plot: a line for each value of COLUMNS.")
@click.option(
    "--log", type=click.Choice(["x", "y", "xy"]), default=None, help="--plot: logarithmic axes."
)
@click.option(
    "--to",
    "--svg",
    "to",
    default="plot.svg",
    show_default=True,
    metavar="FILE",
    help="File of --plot: .svg or .png.",
)
def command(
    output: str,
    pattern: tuple[str, ...],
    as_: str | None,
    sort: str | None,
    group: str | None,
    over: str | None,
    plot: tuple[str, str] | None,
    lines: str | None,
    log: str | None,
    to: str,
) -> None:
    """Show the jobs in folder OUTPUT: arguments, outcomes, times, and values from their logs.

    \b
      postroom table --pattern "loss: (.*)" --over seed --sort loss
      postroom table sweep1 --pattern "loss: (.*)" --over seed --plot lr loss \\
        --lines model --log x --to loss.png
    """
    if not os.path.isdir(output):
        raise click.UsageError(
            f"there is no folder {output}: name the output folder of a `postroom run`; the jobs of "
            "the queue are listed by `postroom jobs`"
        )
    rows = read_table(output, pattern)
    if group and over:
        raise click.UsageError("--group and --over say the same in two ways; give one")
    if group or over:
        arguments = arguments_of(output)
        check_columns(rows, _columns(over))
        left = [name for name in arguments if name not in _columns(over)]
        rows = average(rows, _columns(group) or left, arguments)
    if sort:
        rows = sort_rows(rows, _columns(sort))
    if plot is not None:
        _draw(rows, plot, lines=_columns(lines), log=log or "", to=to)
        return
    form = {"csv": as_csv, "json": as_json}.get(as_ or "", as_text)
    if not rows:
        talk(f"there are no jobs in {output}")
    text = form(rows)
    sys.stdout.write(strip_escapes(text) if sys.stdout.isatty() else text)


def _columns(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _draw(rows: list[Row], plot: tuple[str, str], *, lines: list[str], log: str, to: str) -> None:
    if not to.endswith((".svg", ".png")):
        raise click.UsageError(f"{to} is not a picture: give it a name that ends in .svg or .png")
    drawn = as_plot(rows, *plot, by=lines, log=log, png=to.endswith(".png"))
    try:
        with open(to, "wb") as file:
            file.write(drawn)
    except OSError as error:
        raise PostroomError(f"cannot write {to}: {error.strerror}; choose --to") from None
    talk(f"wrote {to}")
