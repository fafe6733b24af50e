"""`postroom gpu` as click sees it, so that shells complete it; `gpu_verbs` does the work."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from . import gpu_verbs


class GpuCommand(click.Command):
    """One verb; `gpu_verbs.run` reads its options."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the options of the verb."""
        parser, _ = gpu_verbs.load(str(self.name))
        return [
            CompletionItem(flag, help=action.help)
            for action in parser._actions
            for flag in action.option_strings
            if incomplete and flag.startswith(incomplete)
        ]


class GpuGroup(click.Group):
    """The verbs below `gpu`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every verb."""
        return list(gpu_verbs.VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb that passes all its words on."""
        if cmd_name not in gpu_verbs.VERBS:
            return None
        return GpuCommand(
            cmd_name,
            callback=lambda words: gpu_verbs.run([cmd_name, *words]),
            params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
            short_help=gpu_verbs.VERBS[cmd_name][1],
            add_help_option=False,
            context_settings={"ignore_unknown_options": True},
        )


@click.command(cls=GpuGroup, no_args_is_help=True)
def command() -> None:
    """List GPUs, see who holds them, and lease them for any program."""
