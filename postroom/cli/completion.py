"""`postroom completion`: what a shell needs to complete verbs, options and ids of jobs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .queue_options import CONTEXT


@click.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that lets SHELL complete verbs, options and ids of jobs.

    \b
      postroom completion bash > ~/.local/share/bash-completion/completions/postroom
      postroom completion zsh > ~/.zfunc/_postroom
      postroom completion fish > ~/.config/fish/completions/postroom.fish

    Ids are those of $POSTROOM_BASE, or of ./base; zsh and fish show name and state beside them.
    """
    from .verbs import postroom

    known = get_completion_class(shell)
    assert known is not None
    click.echo(known(postroom, {}, "postroom", "_POSTROOM_COMPLETE").source())
