"""`postroom gpu`: list GPUs, see who holds them, and lease them for any program.

Scripts call `get`, `run`, `release` and `idle` in loops, so these should take at most five times as
long as a bare `python -c pass`. With click and frozen dataclasses they do not: importing click
takes as long as three bare Pythons. So argparse reads the options of `postroom gpu`, the values
below it are NamedTuples, and the child process that asks NVML is forked before our own imports.
Time in multiples of a bare Python (3.11; 20 rounds in turns; others kept the two cores busy):

    simulated GPUs, median      get 4.1, idle 3.6, release 3.7
    stub of NVML, median        get 5.5, idle 5.0, release 5.3
    stub of NVML, fastest       get 4.7, idle 4.1, release 4.6

CPU time with click and dataclasses: get 6.7, idle 6.3; with the stub of NVML 8.5 and 7.8.
`python -m benchmarks.ledger --start` measures it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING

from . import codes
from .fast_import import importing

if TYPE_CHECKING:
    from .gpu_options import Parser

# verb: (module of this folder and function, a line of help)
VERBS = {
    "get": ("gpu_lease:get", "Wait for a GPU and print its id; the calling shell holds it."),
    "run": ("gpu_lease:run", "Run a command on a GPU of its own (recommended)."),
    "release": ("gpu_lease:release", "Release a GPU that `get` leased."),
    "list": ("gpu_view:list_cards", "List the GPUs and who holds them."),
    "idle": ("gpu_lease:idle", "Print the ids of the free GPUs."),
    "info": ("gpu_view:info", "Show everything about the GPUs and the ledger."),
    "queue": ("gpu_view:queue", "List the waiting requests in their order."),
    "shares": ("gpu_shares:shares", "Show how much each user has used lately, and may hold."),
    "report": (
        "gpu_report:report",
        "Show who held GPUs, for how long, and how busy they were.",
    ),
    "reserve": ("gpu_shares:reserve", "Keep GPUs for yourself, for a time."),
    "reservations": ("gpu_shares:reservations", "List the reservations."),
    "unreserve": ("gpu_shares:unreserve", "Remove a reservation."),
    "log": ("gpu_view:log", "Show what happened in the ledger."),
    "watch": ("gpu_view:watch", "List the GPUs again and again."),
    "managed": ("gpu_admin:managed", "Print the ids of the GPUs that are handed out."),
    "manage": ("gpu_admin:manage", "Choose which GPUs are handed out."),
    "quarantine": ("gpu_admin:quarantine", "Give a GPU no more work."),
    "heal": ("gpu_admin:heal", "End the quarantine of a GPU."),
    "record": ("gpu_shares:record", "Record how much each user uses, for root."),
    "purge": ("gpu_admin:purge", "Remove the files of dead leases; never necessary."),
}


def run(words: list[str]) -> int:
    """Do what the words after `postroom gpu` ask for."""
    verb = words[0] if words else ""
    if verb not in VERBS:
        return _overview(verb)
    with ExitStack() as stack:
        with importing():
            watch = []
            if VERBS[verb][0].startswith("gpu_lease:"):
                # First the child that asks the driver: it gets ready during our own imports.
                from ..gpus.cards.forked_probe import ForkedProbe

                child = None if "POSTROOM_FAKE_GPUS" in os.environ else ForkedProbe()
                from ..gpus.cards.inventory import CardWatch

                watch = [stack.enter_context(CardWatch(child))]
            parser, action = load(verb)
            from .gpu_options import open_chosen_ledger
            from .gpu_output import Misuse
        values = vars(parser.parse_args(words[1:]))
        try:
            action(open_chosen_ledger(values), *watch, **values)
        except Misuse as error:
            parser.error(str(error))
    return codes.OK


def load(verb: str) -> tuple[Parser, Callable[..., None]]:
    """Return the parser of a verb, and the function that gets what it has read."""
    from .gpu_options import make_parser

    module, _, name = VERBS[verb][0].partition(":")
    action = getattr(import_module(f".{module}", __package__), name)
    return make_parser(verb, action.__doc__ or ""), action


def _overview(verb: str) -> int:
    """Handle `postroom gpu` without a verb: print the verbs, or refuse one that does not exist."""
    from .gpu_options import Parser

    parser = Parser(
        "postroom gpu",
        "List GPUs, see who holds them, and lease them for any program.\n\n"
        "A lease ends when the last process that has it ends: there is nothing to clean up.",
    )
    parser.usage = "postroom gpu COMMAND [OPTIONS]"
    width = max(map(len, VERBS)) + 2
    parser.epilog = "commands:\n" + "\n".join(
        f"  {name:<{width}}{summary}" for name, (_, summary) in VERBS.items()
    )
    if verb in ("-h", "--help"):
        parser.print_help()
        return codes.OK
    if verb:
        parser.error(f"No such command {verb!r}.")
    parser.print_help(sys.stderr)
    return codes.USAGE
