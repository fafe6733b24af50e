"""`postroom table`: all jobs of a batch in one table, with figures from their logs."""

from __future__ import annotations

import sys

import click

from ..batch.batch_table import as_csv, as_json, as_plot, as_text, read_table
from .run import DEFAULT_OUTPUT


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("output", default=DEFAULT_OUTPUT, type=click.Path(exists=True, file_okay=False))
@click.option("--pattern", multiple=True, metavar="[NAME=]REGEX", help="Its last match in a log.")
@click.option("--csv", "as_", flag_value="csv", help="As CSV.")
@click.option("--json", "as_", flag_value="json", help="As JSON.")
@click.option("--plot", nargs=2, metavar="X Y", help="Draw column Y against column X.")
@click.option("--png", default="plot.png", show_default=True, help="Where --plot draws.")
def command(
    output: str, pattern: tuple[str, ...], as_: str | None, plot: tuple[str, str] | None, png: str
) -> None:
    """Show the jobs of OUTPUT: arguments, outcome, times, and what --pattern finds in their logs.

    \b
      postroom table sweep1 --pattern "loss: (.*)" --plot lr loss
    """
    rows = read_table(output, pattern)
    if plot is not None:
        data = as_plot(rows, *plot)
        with open(png, "wb") as file:
            file.write(data)
        click.echo(f"drew {png}", err=True)
        return
    form = {"csv": as_csv, "json": as_json}.get(as_ or "", as_text)
    sys.stdout.write(form(rows))
