"""`postroom sweep`: run a command for every combination of values."""

from __future__ import annotations

from typing import Any

import click

from ..commands.sweep import sweep
from .options import CONTEXT
from .run import run_batch, run_options


@click.command(context_settings=CONTEXT)
@click.argument("template")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUES...")
@click.option(
    "--where",
    default="",
    metavar="CONDITION",
    help="Keep only combinations that fulfil it: lr*bs<5.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands; run nothing.")
@run_options
def command(
    template: str, values: tuple[str, ...], where: str, dry_run: bool, **options: Any
) -> int:
    """Run the command TEMPLATE once for every combination of values, as `postroom run` does.

    \b
      postroom sweep "python train.py --lr {lr}" lr=0.1,0.01 --gpus 0,1
      postroom sweep "train --lr {lr} --bs {bs}" lr=0.1,0.01 bs=32:256:x2 --where "lr*bs<5"

    Values are lists (1,2,3) or ranges that include both ends: 1:9, 0:1:0.25, 32:256:x2.
    """
    lines = list(sweep(template, values, where))
    if dry_run:
        for line in lines:
            click.echo(line.command)
        return 0
    return run_batch(lines, lines, options)
