"""What a run prints: a progress bar while it works, a table when it is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..store.agents import read_agent_info
from ..store.files import LocalFiles
from ..store.mailbox import read_letter
from ..text.safe_text import printable

if TYPE_CHECKING:
    from ..jobs import JobPool
    from ..master import Master

# A person cannot read faster; a log should not fill up.
TERMINAL_S = 0.1
LINES_S = 5.0
MOST_FAILURES = 10


@contextmanager
def progress(master: Master, pool: JobPool) -> Iterator[Callable[[JobPool], None]]:
    """Show how far a pool is: a bar on a terminal, a line now and then elsewhere."""
    started = time.monotonic()
    already = pool.n_done
    last = 0.0

    def line() -> str:
        done = pool.n_done
        rate = (done - already) / max(time.monotonic() - started, 1e-9)
        total = pool.total
        left = "time left unknown"
        if rate and total is not None:
            left = f"{(total - done) / rate:.0f} s left"
        if master.obstacle:
            left = f"waiting: {printable(master.obstacle)}"
        of = "?" if total is None else total
        return (
            f"{done}/{of} done, {count_running(master, pool)} running, "
            f"{pool.n_failed} failed, {rate:.1f}/s, {left}"
        )

    if not sys.stderr.isatty():

        def tell(_: JobPool) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= LINES_S:
                last = now
                print(line(), file=sys.stderr, flush=True)

        yield tell
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        BarColumn(), TextColumn("{task.description}", markup=False), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task(line(), total=pool.total, completed=already)

        def show(_: JobPool) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= TERMINAL_S or pool.done:
                last = now
                bar.update(task, total=pool.total, completed=pool.n_done, description=line())

        yield show


def count_running(master: Master, pool: JobPool) -> int:
    """How many agents are running jobs of this pool."""
    files = LocalFiles()
    letters = (read_letter(files, master.base, agent) for agent in master.agents())
    return sum(letter is not None and letter.run == pool.run for letter in letters)


def summary(master: Master, pool: JobPool, wall_s: float, *, retry: str = "") -> None:
    """Print what each agent did, what failed and why, and where the results are.

    `retry`: the command that runs the failed jobs again.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table("agent", "GPU", "jobs", "failed", "busy", "worker pids", title=f"run {pool.run}")
    files = LocalFiles()
    for agent_id, share in sorted(pool.agents.items()):
        info = read_agent_info(files, master.base, agent_id)
        table.add_row(
            agent_id,
            Text(printable(info.gpu_name) if info else "gone"),
            str(share.jobs),
            str(share.failed),
            f"{min(share.busy_s / max(wall_s, 1e-9), 1):.0%}",
            " ".join(str(pid) for pid in sorted(share.pids) if pid),
        )
    console.print(table)
    failures = pool.failures()
    for failure in failures[:MOST_FAILURES]:
        console.print(Text(f"  {printable(str(failure))}"), soft_wrap=True)
    if len(failures) > MOST_FAILURES:
        console.print(f"  ... and {len(failures) - MOST_FAILURES} more failed")
    if failures and failures[0].__cause__ is not None:
        console.print(Text(f"the first of them:\n{failures[0].__cause__}"), soft_wrap=True)
    ok = pool.n_done - pool.n_failed
    console.print(f"{ok} of {len(pool)} ok, {pool.n_failed} failed, in {wall_s:.1f} s")
    if failures and retry:
        console.print(Text(f"run the failed jobs again: {retry}"), soft_wrap=True)
    for what, where in (
        ("results", master.base.result_folder(pool.run)),
        ("log", master.base.log),
    ):
        console.print(Text(f"{what + ':':9}{where}"), soft_wrap=True)


def interrupted(pool: JobPool, resume: str) -> None:
    """Print what is done and how to resume."""
    print(
        f"\nstopped: {pool.n_done} of {len(pool)} jobs are done and kept; resume with: {resume}",
        file=sys.stderr,
    )
