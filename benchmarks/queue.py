"""What a listing of the queue costs, with 1,000 and with 100,000 waiting jobs.

    python -m benchmarks.queue

It measures a `QueueView` that is kept, as in `postroom ui`; a new one, which has to read the end of
every parcel; and the commands, with the start of Python. Each shows a page of the same size: the
cost should depend on what is shown, not on the length of the queue.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import click

from postroom.commands.spec import CommandSpec
from postroom.queue.queue_view import QueueView
from postroom.queue.submission import submit
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.store.scheduling import SchedulingOptions

from .scratch import scratch

FEW, MANY = 1_000, 100_000
PART = 10_000  # jobs per call of `submit`, and per run
URGENT = 100
ROUNDS = 15
BOUND = 2.0


def fill(base: Base, jobs: int) -> float:
    """Queue some commands; return how many seconds that took."""
    files = LocalFiles()
    began = time.perf_counter()
    for first in range(0, jobs, PART):
        numbers = range(first, min(first + PART, jobs))
        asks = [
            CommandSpec(
                f"python train.py --seed {number}",
                name=f"seed {number}",
                cwd=base.root,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
                number=number,
            )
            for number in numbers
        ]
        submit(files, base, asks, project=f"sweep {first // (4 * PART)}")
    # Some jobs have a priority, so that the order is not simply that of the numbers.
    urgent = [
        CommandSpec("urgent", cwd=base.root, scheduling=SchedulingOptions(priority=n))
        for n in range(1, URGENT)
    ]
    submit(files, base, urgent, project="sweep 0")
    return time.perf_counter() - began


def medians_ms(*actions: Callable[[], object]) -> list[float]:
    """The median time of some actions, run in turn, so that a noisy moment affects all of them."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(ROUNDS):
        for action, taken in zip(actions, times, strict=True):
            began = time.perf_counter()
            action()
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken) * 1000 for taken in times]


def listings(base: Base) -> dict[str, Callable[[], object]]:
    """What is measured."""

    def verb(*words: str) -> Callable[[], object]:
        command = [sys.executable, "-m", "postroom", *words, "-b", base.root]
        return lambda: subprocess.run(command, check=True, capture_output=True)

    kept = QueueView(base)
    return {
        "first page": kept.jobs,
        "page 10": lambda: kept.jobs(first=500),
        "overview": kept.overview,
        "first page, cold": lambda: QueueView(base).jobs(),
        "overview, cold": lambda: QueueView(base).overview(),
        "postroom status": verb("status"),
        "postroom jobs": verb("jobs"),
    }


@click.command()
def main() -> None:
    """Measure, print a table, and fail when a page costs more than twice with the long queue."""
    os.environ["POSTROOM_FAKE_GPUS"] = "2x24G"
    with scratch() as few_folder, scratch() as many_folder:
        few, many = create_base(f"{few_folder}/base"), create_base(f"{many_folder}/base")
        fill(few, FEW)
        seconds = fill(many, MANY)
        click.echo(f"queued {MANY} commands in {seconds:.1f} s ({MANY / seconds:.0f}/s)\n")
        click.echo(f"{'':18}{FEW:>10} jobs{MANY:>10} jobs{'ratio':>8}")
        worst = 0.0
        long = listings(many)
        for name, listing in listings(few).items():
            short_ms, long_ms = medians_ms(listing, long[name])
            ratio = long_ms / short_ms
            worst = max(worst, ratio) if "cold" not in name else worst
            click.echo(f"{name:18}{short_ms:>12.1f} ms{long_ms:>12.1f} ms{ratio:>8.2f}")
        click.echo(f"\nworst ratio, cold ones aside: {worst:.2f}, bound {BOUND}")
        sys.exit(worst > BOUND)


if __name__ == "__main__":
    main()
