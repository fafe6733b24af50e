"""`postroom master`, and `python master.py`: a standing Master."""

from __future__ import annotations

import signal
import sys
import threading

import click

from ..master import Master


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base")
def command(base: str) -> None:
    """Stand at BASE: give its agents whatever is handed in, until Ctrl-C.

    More than one may stand at a base; one acts, the others take over when it dies. Stopping a
    Master loses nothing: jobs in hand go on, and the next Master takes up the rest.
    """
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with Master(base) as master:
        click.echo(f"standing at {master.base.root}; log: {master.base.log}", err=True)
        said = False

        def stop() -> bool:
            nonlocal said
            if master.acting != said:
                said = master.acting
                agents = ", ".join(master.agents()) or "none yet"
                click.echo(f"acting; agents: {agents}", err=True)
            return stopping.is_set()

        master.serve(stop)
    click.echo("stopped", err=True)
    sys.exit(0)
