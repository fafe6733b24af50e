"""`postroom table`: show the jobs of a batch as a table or a plot."""

from __future__ import annotations

import sys

import click

from ..batch.batch_table import as_csv, as_json, as_plot, as_text, read_table
from ..errors import PostroomError
from ..text.safe_text import printable, strip_escapes
from .options import CONTEXT
from .run import DEFAULT_OUTPUT


@click.command(context_settings=CONTEXT)
@click.argument("output", default=DEFAULT_OUTPUT, type=click.Path(exists=True, file_okay=False))
@click.option(
    "--pattern",
    multiple=True,
    metavar="[NAME=]REGEX",
    help="Add a column: the last match in each log.",
)
@click.option("--csv", "as_", flag_value="csv", help="Print CSV.")
@click.option("--json", "as_", flag_value="json", help="Print JSON.")
@click.option("--plot", nargs=2, metavar="X Y", help="Plot column Y over column X.")
@click.option(
    "--svg", default="plot.svg", show_default=True, metavar="FILE", help="File of --plot."
)
def command(
    output: str, pattern: tuple[str, ...], as_: str | None, plot: tuple[str, str] | None, svg: str
) -> None:
    """Show the jobs in folder OUTPUT: arguments, outcomes, times, and values from their logs.

    \b
      postroom table --pattern "loss: (.*)"
      postroom table sweep1 --pattern "loss: (.*)" --plot lr loss --svg loss.svg
    """
    rows = read_table(output, pattern)
    if plot is not None:
        if not svg.endswith(".svg"):
            raise click.UsageError(f"{svg} is not an SVG file: give it a name that ends in .svg")
        drawn = as_plot(rows, *plot)
        try:
            with open(svg, "w", encoding="utf-8") as file:
                file.write(drawn)
        except OSError as error:
            raise PostroomError(f"cannot write {svg}: {error.strerror}; choose --svg") from None
        click.echo(printable(f"wrote {svg}"), err=True)
        return
    form = {"csv": as_csv, "json": as_json}.get(as_ or "", as_text)
    if not rows:
        click.echo(printable(f"there are no jobs in {output}"), err=True)
    text = form(rows)
    sys.stdout.write(strip_escapes(text) if sys.stdout.isatty() else text)
