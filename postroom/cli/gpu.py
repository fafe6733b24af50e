"""`postroom gpu`: cards, who holds them, and leases for any program."""

from __future__ import annotations

import importlib

import click

from .gpu_options import as_command
from .gpu_words import GpuVerb

# verb: (module of this folder, one line of help)
VERBS = {
    "get": ("gpu_lease", "Wait for a card, print its id; it is the calling shell's until it ends."),
    "run": ("gpu_lease", "Run one command on a card of its own (the recommended way)."),
    "release": ("gpu_lease", "Give a card of `get` back before the shell ends."),
    "list": ("gpu_view", "Show the cards, and who holds them."),
    "idle": ("gpu_lease", "Print the ids of the cards that are free."),
    "info": ("gpu_view", "Show everything about the cards and the ledger."),
    "queue": ("gpu_view", "Show who waits, in their order."),
    "log": ("gpu_view", "Show what happened."),
    "watch": ("gpu_view", "Show the cards again and again."),
    "managed": ("gpu_admin", "Print the ids of the cards that are handed out."),
    "manage": ("gpu_admin", "Say which cards are handed out: all, none, or 0,2."),
    "quarantine": ("gpu_admin", "Give a card no more work."),
    "heal": ("gpu_admin", "Let a quarantined card work again."),
    "purge": ("gpu_admin", "Tidy up after the dead; nothing depends on it."),
}


class GpuVerbs(click.Group):
    """The verbs below `gpu`, each imported only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every verb."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one verb that was asked for."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f".{VERBS[cmd_name][0]}", __package__)
        found = getattr(module, f"{cmd_name}_")
        command = as_command(cmd_name, found) if isinstance(found, GpuVerb) else found
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, line) in VERBS.items()])


@click.command(cls=GpuVerbs, no_args_is_help=True)
def command() -> None:
    """Cards, who holds them, and leases for any program.

    A lease ends when the last process that has it is gone: there is nothing to clean up.
    """
