"""What a batch prints: a live table on a terminal, else a line per job; then a summary."""

from __future__ import annotations

import heapq
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from ..commands.job_folder import JobFolder, tail
from ..jobs import Finished, JobPool
from ..parcel.sheets import Outcome
from ..store.agents import list_agents
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.mailbox import read_in_hand, read_letter
from ..text.durations import format_duration
from ..text.safe_text import printable
from ..text.table import cut
from . import batch_table

if TYPE_CHECKING:
    from .runner import Batch, BatchCounts

REFRESH_S = 0.2
PROGRESS_S = 30.0  # without a finished job, a line says how far the batch is
MOST_FAILURES = 10  # shown in the summary
ERROR_LINES = 3  # of stderr, for each of them


@dataclass(frozen=True)
class SlotState:
    """The state of one slot."""

    agent: str
    gpu: str
    job: str  # its name; empty: idle or still starting
    command: str
    seconds: float


@dataclass(frozen=True)
class BatchState:
    """The state of a batch."""

    slots: list[SlotState]
    done: int
    failed: int
    skipped: int
    waiting: int
    open: bool  # more lines may come
    rate: float  # jobs a second
    left_s: float | None

    @property
    def running(self) -> int:
        """Return how many slots run a job."""
        return sum(bool(slot.job) for slot in self.slots)


def slot_states(base: Base, pool: JobPool, places: Sequence[tuple[str, str]]) -> list[SlotState]:
    """Return the state of every slot."""
    files = LocalFiles()
    found = []
    for agent, gpu in places:
        letter = read_letter(files, base, agent)
        hand = read_in_hand(files, base, agent)
        name, command, seconds = "", "", 0.0
        if (
            letter is not None
            and hand is not None
            and hand.letter_id == letter.letter_id
            and letter.run == pool.run
            and hand.job < len(pool.jobs)
        ):
            job = pool.jobs[hand.job]
            name = os.path.basename(job.arguments["folder"])
            command = job.arguments["command"]
            seconds = max(0.0, time.time() - hand.since)
            gpu = gpu or JobFolder(job.arguments["folder"]).read_info().get("gpu", "")
        found.append(SlotState(agent, gpu, name, command, seconds))
    return found


def batch_state(batch: Batch) -> BatchState:
    """Return the state of a batch."""
    places = [(place.agent, "" if place.share else place.gpu) for place in batch.sessions.slots]
    here = {agent for agent, _ in places}
    living = list_agents(LocalFiles(), batch.master.base)
    places += [(agent, "pilot") for agent in living if agent not in here]
    slots = slot_states(batch.master.base, batch.pool, places)
    counts = batch.counts
    running = sum(bool(slot.job) for slot in slots)
    rate = counts.done / max(time.monotonic() - batch.started, 1e-9)
    open_ = batch.feed is not None and not batch.feed.ended
    left_s = batch.outstanding / rate if rate and not open_ else None
    waiting = max(batch.outstanding - running, 0)
    return BatchState(
        slots, counts.done, counts.failed, counts.skipped, waiting, open_, rate, left_s
    )


def headline(state: BatchState) -> str:
    """Return the state of a batch in one line."""
    parts = [f"{state.done} done", f"{state.failed} failed", f"{state.running} running"]
    parts += [f"{state.waiting}{'+' if state.open else ''} waiting"]
    if state.skipped:
        parts.append(f"{state.skipped} done before")
    if state.rate:
        parts.append(f"{state.rate:.1f}/s" if state.rate >= 1 else f"{60 * state.rate:.1f}/min")
    if state.left_s is not None:
        parts.append(f"{format_duration(state.left_s)} left")
    return ", ".join(parts)


class PlainView:
    """Prints a line for each job that ends, with `keep_order` in the order of the lines."""

    def __init__(self, stream: TextIO | None = None, *, keep_order: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._keep_order = keep_order
        self._held: list[tuple[int, str]] = []
        self._said = time.monotonic()

    def finished(self, job: Finished, folder: JobFolder) -> None:
        """Print how one job ended."""
        line = finished_line(job, folder)
        if not self._keep_order:
            self._say(line)
            return
        heapq.heappush(self._held, (job.job.arguments["number"], line))

    def update(self, batch: Batch) -> None:
        """Print now and then how many jobs are left."""
        while self._held and self._held[0][0] <= batch.ended_until:
            self._say(heapq.heappop(self._held)[1])
        if time.monotonic() - self._said >= PROGRESS_S:
            self._say(headline(batch_state(batch)))

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        print(printable(text), file=self._stream, flush=True)


def finished_line(job: Finished, folder: JobFolder) -> str:
    """Return how one job ended, in one line."""
    command = cut(job.job.arguments["command"], 60)
    failure = job.done.failure
    how = "ok"
    if failure is not None:
        how = "FAILED: " if failure.kind == "failed" else f"FAILED: {failure.kind}, "
        how += cut(failure.message, 80)
    used = folder.read_info().get("memory", "")
    spent = format_duration(job.done.seconds)
    return f"{folder.name}  {how}  {spent}  slot {job.agent}  {command}{used and '  ' + used}"


class LiveView:
    """A live table of the slots, with failures printed above it."""

    def __init__(self, *, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._drawn_at = 0.0

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def finished(self, job: Finished, folder: JobFolder) -> None:
        """Print a failure; successes are only counted."""
        if job.outcome is not Outcome.OK:
            from rich.text import Text

            self._console.print(Text(printable(finished_line(job, folder)), style="red"))

    def update(self, batch: Batch) -> None:
        """Draw the table, at most every REFRESH_S."""
        at = time.monotonic()
        if at - self._drawn_at >= REFRESH_S:
            self._drawn_at = at
            self._live.update(draw(batch_state(batch)), refresh=True)


def draw(state: BatchState) -> Any:
    """Return the live table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    slots = Table("slot", "GPU", "job", "time", "command", box=None, header_style="bold")
    for slot in state.slots:
        command = Text(printable(slot.command), overflow="ellipsis", no_wrap=True)
        spent = format_duration(slot.seconds) if slot.job else ""
        job = Text(printable(slot.job)) if slot.job else Text("idle", "dim")
        # As `Text`: a plain str would be read as markup, and may come from a job's folder.
        slots.add_row(Text(slot.agent), Text(printable(slot.gpu)), job, spent, command)
    return Group(slots, Text(headline(state), style="bold"))


def summary(batch: Batch, again: Sequence[str], stream: TextIO) -> None:
    """Print the outcome, the first failures, and how to run the failed jobs again."""
    counts: BatchCounts = batch.counts
    for job, folder in counts.failures[:MOST_FAILURES]:
        print(printable(finished_line(job, folder)), file=stream)
        said = [line for line in tail(folder.err).splitlines() if line.strip()]
        for line in said[-ERROR_LINES:]:
            print(f"    {printable(line)[:200]}", file=stream)
        print(f"    see {folder.path}", file=stream)
    if len(counts.failures) > MOST_FAILURES:
        print(f"... and {len(counts.failures) - MOST_FAILURES} more failed", file=stream)
    ok = counts.done - counts.failed
    wall = format_duration(time.monotonic() - batch.started)
    before = f", {counts.skipped} done before" if counts.skipped else ""
    print(f"{ok} ok, {counts.failed} failed{before}, in {wall}", file=stream)
    if batch.stopped:
        print(f"stopped after {counts.failed} failures", file=stream)
    print(f"results: {batch.output}/results.csv", file=stream)
    if counts.failed:
        print(f"run failed jobs again: {shlex.join([*again, '--rerun', 'failed'])}", file=stream)


def write_results(output: str) -> None:
    """Write `results.csv` and `results.json` from the job folders."""
    rows = batch_table.read_table(output)
    for name, text in (("csv", batch_table.as_csv(rows)), ("json", batch_table.as_json(rows))):
        temporary = f"{output}/.results.{os.urandom(4).hex()}"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, f"{output}/results.{name}")
