"""`postroom sweep`: every combination of some values, as a batch."""

from __future__ import annotations

from typing import Any

import click

from ..commands.sweep import sweep
from .run import run_batch, run_options


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("template")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUES...")
@click.option("--where", default="", metavar="CONDITION", help="Leave out all other combinations.")
@click.option("--dry-run", is_flag=True, help="Print the commands, and run none.")
@run_options
def command(
    template: str, values: tuple[str, ...], where: str, dry_run: bool, **options: Any
) -> int:
    """Run TEMPLATE once for every combination of values.

    \b
      postroom sweep "python train.py --lr {lr} --bs {bs}" lr=0.1,0.01 bs=32:256:x2
             --where "lr*bs<5" --gpus 0,0,1

    Values are lists (1,2,3) and ranges with their ends: 1:9, 0:1:0.25, 32:256:x2.
    """
    lines = list(sweep(template, values, where))
    if dry_run:
        for line in lines:
            click.echo(line.command)
        return 0
    return run_batch(lines, lines, options)
