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
        if sys.argv[1:2] == ["submit"]:
            from .cli import quick_submit  # the same; it returns where click is needed

            quick_submit.run(sys.argv[2:])
        from .cli.verbs import postroom

        return _invoke(postroom)

    _end(run)


def hog() -> None:
    """Run `hog`, another name of `postroom run` for users of gpu-hog."""
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
        import io

        from .text.safe_text import printable

        said = io.StringIO()
        error.show(said)
        sys.stderr.write(printable(said.getvalue().expandtabs()))
        return codes.USAGE
    except click.Abort:
        return codes.INTERRUPTED


def _end(run: Callable[[], int]) -> NoReturn:
    """Run and exit; an error of Postroom is a sentence on stderr, not a traceback."""
    try:
        code = run()
    except KeyboardInterrupt:
        print(file=sys.stderr)  # so that the next output is not on the line of the terminal's ^C
        code = codes.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has exited (`postroom ... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = codes.OK
    except (PostroomError, OSError) as error:
        from .system.shortage import SHORTAGES, explain
        from .text.safe_text import printable

        text = str(error)
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            text = explain(error)
        elif isinstance(error, OSError) and error.strerror:  # without its number
            text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        name = os.path.basename(sys.argv[0])
        name = "postroom" if name == "__main__.py" else name
        print(f"{name}: {printable(text)}", file=sys.stderr)
        code = codes.USAGE
    sys.exit(code)


if __name__ == "__main__":
    main()
