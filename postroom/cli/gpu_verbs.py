"""`postroom gpu`: list GPUs, see who holds them, and lease them for any program.

Scripts call `get`, `run`, `release` and `idle` in loops, so these should take at most five times as
long as a bare `python -c pass`. With click and frozen dataclasses they do not: importing click
takes as long as three bare Pythons. So argparse reads the options of `postroom gpu`, the values
below it are NamedTuples, and the child that asks NVML starts before our own imports. CPU time in
multiples of a bare Python (Python 3.11, medians of 8 rounds in turns):

                                    simulated GPUs         stub of NVML, child included
    click and dataclasses           get 6.7, idle 6.3      get 8.5, idle 7.8
    argparse and NamedTuples        get 4.1, idle 3.6      get 5.7, idle 5.3

`python -m benchmarks.ledger --start` measures it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from ..gpus.cards.inventory import CardWatch
from . import codes
from .fast_import import importing

if TYPE_CHECKING:
    from ..gpus.ledger.protocol import Ledger

HELP_WIDTH = 80


class Parser(argparse.ArgumentParser):
    """A parser of argparse that reports a wrong use in the same form as the other verbs."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog,
            description="\n".join(line.strip() for line in description.strip().splitlines()),
            # With a width: argparse would import `shutil` to ask the terminal for it.
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
                prog, max_help_position=28, width=HELP_WIDTH
            ),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how to get help; exit with 2."""
        usage = self.format_usage().partition(": ")[2]
        self.exit(
            codes.USAGE,
            f"Usage: {usage}Try '{self.prog} --help' for help.\n\nError: {message}\n",
        )


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers that refuses those below `least`."""

    def read(text: str) -> int:
        if not text.lstrip("+-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """Read a duration: seconds, or with a unit (90s, 30m, 2h)."""
    try:
        found = float(text)  # first, because `text.values` imports click
    except ValueError:
        import click

        from ..text.values import duration

        try:
            found = duration(text)
        except (ValueError, click.UsageError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    if not found >= 0:  # this is also true for "nan"
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration of 0 or more")
    return found


def add_ledger(parser: Parser) -> None:
    """Add the options that name the ledger."""
    add = parser.add_argument_group("which ledger").add_argument
    add(
        "--ledger",
        metavar="WHERE",
        help="A folder or a redis:// address (default: $POSTROOM_LEDGER).",
    )
    add("--redis-server", metavar="HOST", help="Use the ledger on this Redis server.")
    add("--redis-port", metavar="PORT", type=int, default=6379, help="(default: 6379)")
    add("--redis-db", metavar="NUMBER", type=int, default=0, help="(default: 0)")
    add("--redis-prefix", metavar="TEXT", default="postroom", help="(default: postroom)")


def add_get(parser: Parser) -> None:
    """Add the options of a request."""
    add = parser.add_argument
    add("-n", dest="count", metavar="N", type=at_least(1), default=1, help="How many GPUs.")
    add("--memory", metavar="SIZE", help="Share a GPU: reserve SIZE (as 8G) instead of all of it.")
    add("--gpus", metavar="IDS", help="Use these GPUs (as 0,2 or UUIDs) instead of any.")
    add("--pack", action="store_true", help="With --memory: use the fullest GPU that fits.")
    add(
        "--timeout",
        dest="timeout_s",
        metavar="TIME",
        type=seconds,
        help="Give up after TIME (90s, 30m, 2h) with exit code 75; else wait for ever.",
    )
    add("--name", metavar="TEXT", default="", help="What it is for; others see it in `list`.")


def add_run(parser: Parser) -> None:
    """Add the options of a request, and the command."""
    add_get(parser)
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER)


def add_release(parser: Parser) -> None:
    """Add the GPU or lease."""
    parser.add_argument("which", metavar="ID", help="A GPU's id, or a lease's.")
    parser.add_argument(
        "--force", action="store_true", help="Also release what another shell of yours holds."
    )


def add_log(parser: Parser) -> None:
    """Add how many."""
    parser.add_argument(
        "-n", dest="count", metavar="N", type=int, default=50, help="Show the last N (default: 50)."
    )


def add_watch(parser: Parser) -> None:
    """Add how often."""
    parser.add_argument(
        "--interval",
        dest="interval_s",
        metavar="TIME",
        type=seconds,
        default=2.0,
        help="Time between two listings (default: 2s; at least 0.1s).",
    )
    parser.add_argument("--count", metavar="N", type=int, help="Stop after N listings.")


def add_manage(parser: Parser) -> None:
    """Add which GPUs."""
    add = parser.add_argument
    add("which", metavar="all|none|IDS", nargs="?", help="All GPUs, none, or a list as 0,2.")
    add("--count", metavar="N", type=at_least(1), help="Hand out the first N GPUs.")
    add("--force", action="store_true", help="Also exclude GPUs that are held; their leases stay.")


def add_card(parser: Parser) -> None:
    """Add one GPU."""
    parser.add_argument("which", metavar="ID", help="The GPU's id or UUID.")


def add_quarantine(parser: Parser) -> None:
    """Add one GPU and the reason."""
    add_card(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", default="by hand", help="(default: by hand) Shown in `list`."
    )


class GpuVerb:
    """One verb: the function that does it, a line of help, and its own options."""

    def __init__(
        self,
        place: str,  # module of this folder, and function
        summary: str,
        add_options: Callable[[Parser], None] | None = None,
        in_scripts: bool = False,  # the function also gets a `CardWatch` that was started early
    ) -> None:
        self.place = place
        self.summary = summary
        self.add_options = add_options
        self.in_scripts = in_scripts


VERBS = {
    "get": GpuVerb(
        "gpu_lease:get",
        "Wait for a GPU and print its id; the calling shell holds it.",
        add_get,
        True,
    ),
    "run": GpuVerb(
        "gpu_lease:run", "Run a command on a GPU of its own (recommended).", add_run, True
    ),
    "release": GpuVerb("gpu_lease:release", "Release a GPU that `get` leased.", add_release, True),
    "list": GpuVerb("gpu_view:list_cards", "List the GPUs and who holds them."),
    "idle": GpuVerb("gpu_lease:idle", "Print the ids of the free GPUs.", None, True),
    "info": GpuVerb("gpu_view:info", "Show everything about the GPUs and the ledger."),
    "queue": GpuVerb("gpu_view:queue", "List the waiting requests in their order."),
    "log": GpuVerb("gpu_view:log", "Show what happened in the ledger.", add_log),
    "watch": GpuVerb("gpu_view:watch", "List the GPUs again and again.", add_watch),
    "managed": GpuVerb("gpu_admin:managed", "Print the ids of the GPUs that are handed out."),
    "manage": GpuVerb("gpu_admin:manage", "Choose which GPUs are handed out.", add_manage),
    "quarantine": GpuVerb("gpu_admin:quarantine", "Give a GPU no more work.", add_quarantine),
    "heal": GpuVerb("gpu_admin:heal", "End the quarantine of a GPU.", add_card),
    "purge": GpuVerb("gpu_admin:purge", "Remove the files of dead leases; never necessary."),
}


def run(words: list[str]) -> int:
    """Do what the words after `postroom gpu` ask for."""
    verb = words[0] if words else ""
    if verb not in VERBS:
        return _overview(verb)
    with ExitStack() as stack:
        with importing():
            # The child that asks the driver starts first, and gets ready during our own imports.
            watch = [stack.enter_context(CardWatch(alone=True))] if VERBS[verb].in_scripts else []
            parser, action = make_parser(verb)
            from .gpu_output import Misuse
        values = vars(parser.parse_args(words[1:]))
        try:
            action(_open_ledger(values), *watch, **values)
        except Misuse as error:
            parser.error(str(error))
    return codes.OK


def _overview(verb: str) -> int:
    """Handle `postroom gpu` without a verb: print the verbs, or refuse one that does not exist."""
    parser = Parser(
        "postroom gpu",
        "List GPUs, see who holds them, and lease them for any program.\n\n"
        "A lease ends when the last process that has it ends: there is nothing to clean up.",
    )
    parser.usage = "postroom gpu COMMAND [OPTIONS]"
    width = max(map(len, VERBS)) + 2
    parser.epilog = "commands:\n" + "\n".join(
        f"  {name:<{width}}{found.summary}" for name, found in VERBS.items()
    )
    if verb in ("-h", "--help"):
        parser.print_help()
        return codes.OK
    if verb:
        parser.error(f"No such command {verb!r}.")
    parser.print_help(sys.stderr)
    return codes.USAGE


def make_parser(verb: str) -> tuple[Parser, Callable[..., None]]:
    """Return the parser of a verb, and the function that gets what it has read."""
    found = VERBS[verb]
    module, _, name = found.place.partition(":")
    action = getattr(import_module(f".{module}", __package__), name)
    parser = Parser(f"postroom gpu {verb}", action.__doc__ or "")
    if found.add_options is not None:
        found.add_options(parser)
    if verb != "run":  # whose output is its command's
        parser.add_argument("--json", dest="json_", action="store_true", help="Print JSON.")
    add_ledger(parser)
    return parser, action


def _open_ledger(values: dict[str, Any]) -> Ledger:
    """Open the ledger that the options name, and take these options out of the values."""
    from ..gpus.ledger.protocol import open_ledger
    from .gpu_output import Misuse

    names = ("ledger", "redis_server", "redis_port", "redis_db", "redis_prefix")
    where, server, port, db, prefix = (values.pop(name) for name in names)
    if server is not None:
        if where is not None:
            raise Misuse("--ledger and --redis-server name two ledgers; give one")
        where = f"redis://{server}:{port}/{db}?prefix={prefix}"
    return open_ledger(where)
