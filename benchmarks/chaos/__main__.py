"""`python -m benchmarks.chaos storm`: see `python -m benchmarks.chaos --help`."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from typing import Any

from .calls import preload, preloaded, run_calls
from .large import run_large
from .operations import OPERATIONS
from .storm import run_storm
from .takeover import run_takeover


def main() -> int:
    """Run one program; 1 when Postroom broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    storm = programs.add_parser("storm", help="kill and stop random processes while jobs run")
    storm.add_argument("--jobs", type=int, default=20_000)
    storm.add_argument("--run-jobs", type=int, default=1000, help="jobs of one run")
    storm.add_argument(
        "--kills",
        type=int,
        default=0,
        metavar="N",
        help="go on until there were exactly so many kills and stops",
    )
    storm.add_argument("--sessions", type=int, default=4)
    storm.add_argument("--longest-s", type=float, default=0.01, help="how long a job takes at most")
    storm.add_argument("--every-s", type=float, default=0.2)
    storm.add_argument("--limit-s", type=float, default=3600.0)
    storm.add_argument("--embedded", action="store_true", help="serve only while the client lives")
    storm.add_argument("--one-by-one", action="store_true", help="submit each job by itself")
    storm.set_defaults(run=run_storm)
    large = programs.add_parser("large", help="the same with large jobs, whose files are reused")
    large.add_argument("--jobs", type=int, default=2000)
    large.add_argument("--every-s", type=float, default=1.5)
    large.add_argument("--limit-s", type=float, default=1200.0)
    large.set_defaults(run=run_large)
    calls = programs.add_parser("calls", help="kill and fail at every system call")
    calls.add_argument("--sample", type=int, metavar="N", help="only so many faults")
    calls.add_argument("--only", choices=list(OPERATIONS), metavar="OPERATION")
    calls.set_defaults(run=run_calls)
    takeover = programs.add_parser("takeover", help="measure how soon somebody goes on")
    takeover.add_argument("--rounds", type=int, default=10)
    takeover.add_argument("--parcels", type=int, default=100_000)
    takeover.set_defaults(run=run_takeover)
    for program in programs.choices.values():
        program.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
        program.add_argument("--json", metavar="FILE", help="keep the table there, too")
    options = vars(parser.parse_args())
    program, path, run = (options.pop(name) for name in ("program", "json", "run"))
    if program == "calls" and not preloaded():
        return preload(sys.argv[1:])
    print(f"{program}, seed {options['seed']}", file=sys.stderr)
    table = run(**options)
    show(table)
    keep(table, path)
    return 0 if table["good"] else 1


def show(table: dict[str, Any]) -> None:
    """Print a table of figures, one per line."""
    width = max(map(len, table))
    for name, value in table.items():
        print(f"{name:<{width}}  {value}")


def keep(table: dict[str, Any], path: str | None) -> None:
    """Write a table as JSON."""
    if path is not None:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    sys.exit(main())
