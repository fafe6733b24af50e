"""`postroom completion`: print a completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .options import CONTEXT


@click.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script with which SHELL completes verbs, options and job ids.

    \b
      postroom completion bash > ~/.local/share/bash-completion/completions/postroom
      postroom completion zsh > ~/.zfunc/_postroom
      postroom completion fish > ~/.config/fish/completions/postroom.fish

    Job ids come from $POSTROOM_BASE or your own queue; zsh and fish also show their name and state.
    """
    from .verbs import postroom

    known = get_completion_class(shell)
    assert known is not None
    click.echo(known(postroom, {}, "postroom", "_POSTROOM_COMPLETE").source())
