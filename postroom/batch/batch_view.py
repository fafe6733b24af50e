"""What a batch shows: a live table on a terminal, a line for each job elsewhere, a summary."""

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
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.mailbox import read_in_hand, read_letter
from ..text.safe_text import printable
from . import batch_table

if TYPE_CHECKING:
    from .runner import Batch, BatchCounts

REFRESH_S = 0.2
LINES_S = 30.0
MOST_FAILURES = 10
ERROR_LINES = 3


@dataclass(frozen=True)
class SlotNow:
    """One slot at this moment."""

    agent: str
    gpu: str
    job: str  # its name; empty: idle, or not ready
    command: str
    seconds: float


@dataclass(frozen=True)
class Now:
    """A batch at this moment."""

    slots: list[SlotNow]
    done: int
    failed: int
    skipped: int
    waiting: int
    open: bool  # more lines may come
    rate: float  # jobs a second
    left_s: float | None

    @property
    def running(self) -> int:
        """How many slots have a job."""
        return sum(bool(slot.job) for slot in self.slots)


def look(base: Base, pool: JobPool, places: Sequence[tuple[str, str]]) -> list[SlotNow]:
    """See what every slot is at."""
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
        found.append(SlotNow(agent, gpu, name, command, seconds))
    return found


def now_of(batch: Batch) -> Now:
    """Reckon how far a batch is."""
    places = [(place.agent, "" if place.share else place.gpu) for place in batch.sessions.slots]
    slots = look(batch.master.base, batch.pool, places)
    counts = batch.counts
    running = sum(bool(slot.job) for slot in slots)
    rate = counts.done / max(time.monotonic() - batch.started, 1e-9)
    open_ = batch.feed is not None and not batch.feed.ended
    left_s = batch.outstanding / rate if rate and not open_ else None
    waiting = max(batch.outstanding - running, 0)
    return Now(slots, counts.done, counts.failed, counts.skipped, waiting, open_, rate, left_s)


def clock(seconds: float) -> str:
    """A time span as people say it."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def headline(now: Now) -> str:
    """All that matters in one line."""
    parts = [f"{now.done} done", f"{now.failed} failed", f"{now.running} running"]
    parts += [f"{now.waiting}{'+' if now.open else ''} waiting"]
    if now.skipped:
        parts.append(f"{now.skipped} done before")
    if now.rate:
        parts.append(f"{now.rate:.1f}/s" if now.rate >= 1 else f"{60 * now.rate:.1f}/min")
    if now.left_s is not None:
        parts.append(f"{clock(now.left_s)} left")
    return ", ".join(parts)


class PlainView:
    """A line for each job that ends, in the order of the lines if that is asked for."""

    def __init__(self, stream: TextIO | None = None, *, keep_order: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._keep_order = keep_order
        self._held: list[tuple[int, str]] = []
        self._next = 0
        self._said = time.monotonic()

    def finished(self, job: Finished, folder: JobFolder) -> None:
        """Say how one job ended."""
        line = finished_line(job, folder)
        if not self._keep_order:
            self._say(line)
            return
        heapq.heappush(self._held, (job.job.arguments["number"], line))

    def update(self, batch: Batch) -> None:
        """Say now and then how far it is."""
        while self._held and self._held[0][0] <= batch.ended_until:
            self._say(heapq.heappop(self._held)[1])
        if time.monotonic() - self._said >= LINES_S:
            self._say(headline(now_of(batch)))

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        print(printable(text), file=self._stream, flush=True)


def finished_line(job: Finished, folder: JobFolder) -> str:
    """How one job ended, in a line."""
    command = _cut(job.job.arguments["command"], 60)
    failure = job.done.failure
    how = "ok"
    if failure is not None:
        how = "FAILED: " if failure.kind == "failed" else f"FAILED: {failure.kind}, "
        how += _cut(failure.message, 80)
    used = folder.read_info().get("memory", "")
    spent = clock(job.done.seconds)
    return f"{folder.name}  {how}  {spent}  slot {job.agent}  {command}{used and '  ' + used}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class LiveView:
    """A table of the slots that is drawn again and again, with failures above it."""

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
        """Show a failure; a success only counts."""
        if job.outcome is not Outcome.OK:
            from rich.text import Text

            self._console.print(Text(printable(finished_line(job, folder)), style="red"))

    def update(self, batch: Batch) -> None:
        """Draw, if it was not done just now."""
        at = time.monotonic()
        if at - self._drawn_at >= REFRESH_S:
            self._drawn_at = at
            self._live.update(draw(now_of(batch)), refresh=True)


def draw(now: Now) -> Any:
    """The live table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    slots = Table("slot", "GPU", "job", "time", "command", box=None, header_style="bold")
    for slot in now.slots:
        command = Text(printable(slot.command), overflow="ellipsis", no_wrap=True)
        spent = clock(slot.seconds) if slot.job else ""
        slots.add_row(slot.agent, slot.gpu, slot.job or Text("idle", "dim"), spent, command)
    return Group(slots, Text(headline(now), style="bold"))


def summary(batch: Batch, again: Sequence[str], stream: TextIO) -> None:
    """Say what came out, how the failures began, and how to run just these again."""
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
    wall = clock(time.monotonic() - batch.started)
    before = f", {counts.skipped} done before" if counts.skipped else ""
    print(f"{ok} ok, {counts.failed} failed{before}, in {wall}", file=stream)
    if batch.stopped:
        print(f"stopped after {counts.failed} failures", file=stream)
    print(f"results: {batch.output}/results.csv", file=stream)
    if counts.failed:
        print(f"run the failed again: {shlex.join([*again, '--rerun', 'failed'])}", file=stream)


def write_results(output: str) -> None:
    """Write `results.csv` and `results.json` from what the folders say."""
    rows = batch_table.read_table(output)
    for name, text in (("csv", batch_table.as_csv(rows)), ("json", batch_table.as_json(rows))):
        temporary = f"{output}/.results.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, f"{output}/results.{name}")
