"""`python -m postroom` and the `postroom` command."""

from __future__ import annotations

import os
import sys

import click

from .cli import codes
from .cli.verbs import Verbs
from .errors import PostroomError


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="postroom")
def postroom() -> None:
    """Spread jobs over GPUs through nothing but a folder.

    No server, no root, no lost jobs: kill -9 anything.
    """


def run_command(command: click.Command) -> None:
    """Run one command; an error of ours is a sentence on stderr, never a traceback."""
    try:
        sys.exit(command(standalone_mode=False) or codes.OK)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(codes.USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(codes.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`postroom ... | head`): nothing more to say.
        sys.stderr.close()
        sys.exit(codes.OK)
    except (PostroomError, OSError) as error:
        click.echo(f"{os.path.basename(sys.argv[0])}: {error}", err=True)
        sys.exit(codes.USAGE)


def main() -> None:
    """Run `postroom`."""
    run_command(postroom)


def hog() -> None:
    """Run `hog`: `postroom run` under the name that its users know."""
    from .cli.run import command

    run_command(command)


if __name__ == "__main__":
    main()
