"""The table of verbs, each imported only when it is called.

`postroom gpu get` runs in shell loops: a verb must not pay for the imports of another.
"""

from __future__ import annotations

import importlib

import click

# verb: (module below postroom.cli, one line of help)
VERBS = {
    "agents": ("agents", "Start, stop and list the agents of a base."),
    "attach": ("attach", "Look at a batch that runs elsewhere."),
    "diff": ("diff", "What has changed since a job's snapshot."),
    "doctor": ("doctor", "Examine a base: what is wrong, or soon will be."),
    "gpu": ("gpu", "Cards, who holds them, and leases for any program."),
    "master": ("master", "Stand: work on whatever is in a base."),
    "new": ("new", "Write the template project into an empty folder."),
    "profiles": ("profiles", "What jobs were found to need: list, show, forget."),
    "run": ("run", "Run a file of shell lines over a list of GPUs."),
    "sweep": ("sweep", "Run a command for every combination of values."),
    "table": ("table", "All jobs of a batch, with figures from their logs."),
}


class Verbs(click.Group):
    """A click group that knows its commands by name and imports them on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every verb."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one verb that was asked for."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"postroom.cli.{VERBS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, line) in sorted(VERBS.items())])
