"""`python -m postroom` and the `postroom` command."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from .cli import codes
from .errors import PostroomError

if TYPE_CHECKING:
    from collections.abc import Callable

    import click


def main() -> None:
    """Run `postroom`."""

    def run() -> int:
        if sys.argv[1:2] == ["gpu"]:
            from .cli import gpu_verbs  # without click: scripts call it in loops

            return gpu_verbs.run(sys.argv[2:])
        from .cli.verbs import postroom

        return _invoke(postroom)

    _end(run)


def hog() -> None:
    """Run `hog`: `postroom run` under the name that its users know."""
    from .cli.fast_import import importing

    with importing():
        from .cli.run import command

    run_command(command)


def run_command(command: click.Command) -> NoReturn:
    """Run one command, and end with its exit code."""
    _end(lambda: _invoke(command))


def _invoke(command: click.Command) -> int:
    import click

    try:
        return command(standalone_mode=False) or codes.OK
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return codes.USAGE
    except click.Abort:
        return codes.INTERRUPTED


def _end(run: Callable[[], int]) -> NoReturn:
    """Do it and end; an error of ours is a sentence on stderr, never a traceback."""
    try:
        code = run()
    except KeyboardInterrupt:
        print(file=sys.stderr)  # what comes next is not to stand behind the terminal's ^C
        code = codes.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`postroom ... | head`): nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = codes.OK
    except (PostroomError, OSError) as error:
        name = os.path.basename(sys.argv[0])
        print(f"{'postroom' if name == '__main__.py' else name}: {error}", file=sys.stderr)
        code = codes.USAGE
    sys.exit(code)


if __name__ == "__main__":
    main()
