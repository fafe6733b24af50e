"""The options of `postroom gpu`, read with argparse; `gpu_verbs` says why not with click."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import PostroomError
from ..gpus.ledger.protocol import Ledger, open_ledger
from ..text.durations import parse_duration
from . import codes
from .gpu_output import Misuse

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
        return parse_duration(text)
    except PostroomError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
    add(
        "--for",
        dest="for_s",
        metavar="TIME",
        type=seconds,
        help="How long you need it: a short lease can start before a reservation of others.",
    )
    add("--name", metavar="TEXT", default="", help="What it is for; others see it in `list`.")
    add(
        "--beside-strangers",
        dest="beside",
        action="store_true",
        help="Take a GPU also if somebody uses it without a lease, rather than wait for its end.",
    )


def add_run(parser: Parser) -> None:
    """Add the options of a request, and the command."""
    add_get(parser)
    parser.add_argument("--container", metavar="IMAGE", help="Run it in a container, on that GPU.")
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


def add_reserve(parser: Parser) -> None:
    """Add how many, for how long and from when."""
    add = parser.add_argument
    add("count", metavar="N", type=at_least(1), help="How many GPUs.")
    add("--for", dest="for_s", metavar="TIME", type=seconds, required=True, help="As 8h or 2d.")
    add("--at", metavar="WHEN", default="now", help="As 22:00, 'fri 20:00', now+2h (default: now).")
    add("--name", metavar="TEXT", default="", help="What it is for; others see it.")


def add_unreserve(parser: Parser) -> None:
    """Add the reservation."""
    parser.add_argument("which", metavar="ID", help="As `reservations` lists it.")


def add_record(parser: Parser) -> None:
    """Add how often."""
    parser.add_argument("--count", metavar="N", type=at_least(1), help="Stop after N looks.")


def add_report(parser: Parser) -> None:
    """Add since when, and by what."""
    add = parser.add_argument
    add(
        "--since",
        dest="since_s",
        metavar="TIME",
        type=seconds,
        default=7 * 86_400.0,
        help="How far back: 12h, 30d (default: 7d).",
    )
    add("--by", choices=["user", "project", "card"], default="user", help="(default: user)")


# The options of a verb, besides --json and the ledger.
OPTIONS: dict[str, Callable[[Parser], None]] = {
    "get": add_get,
    "run": add_run,
    "release": add_release,
    "log": add_log,
    "watch": add_watch,
    "manage": add_manage,
    "quarantine": add_quarantine,
    "heal": add_card,
    "reserve": add_reserve,
    "unreserve": add_unreserve,
    "record": add_record,
    "report": add_report,
}


def make_parser(verb: str, description: str) -> Parser:
    """Return the parser of a verb."""
    parser = Parser(f"postroom gpu {verb}", description)
    if verb in OPTIONS:
        OPTIONS[verb](parser)
    if verb != "run":  # whose output is its command's
        parser.add_argument("--json", dest="json_", action="store_true", help="Print JSON.")
    add_ledger(parser)
    return parser


def open_chosen_ledger(values: dict[str, Any]) -> Ledger:
    """Open the ledger that the options name, and take these options out of the values."""
    names = ("ledger", "redis_server", "redis_port", "redis_db", "redis_prefix")
    where, server, port, db, prefix = (values.pop(name) for name in names)
    if server is not None:
        if where is not None:
            raise Misuse("--ledger and --redis-server name two ledgers; give one")
        where = f"redis://{server}:{port}/{db}?prefix={prefix}"
    return open_ledger(where)
