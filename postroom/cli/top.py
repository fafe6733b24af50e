"""`postroom top`: the queue live, on the whole screen."""

from __future__ import annotations

import contextlib
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence

import click

from ..errors import PostroomError
from ..queue.queue_view import QueueView
from ..queue.rows import CardView, JobView, Overview
from ..text.memory_sizes import from_mib
from ..text.safe_text import printable
from .queue_options import CONTEXT, WIDE, in_base, note, took
from .status import head

# A line is pieces of text, each with a style that rich knows; empty for none.
Line = list[tuple[str, str]]

BAR = 10
_STYLES = {
    "running": "cyan",
    "stopping": "yellow",
    "failed": "red",
    "timed out": "red",
    "lost": "red",
    "ok": "green",
    "cancelled": "dim",
}


@click.command(context_settings=CONTEXT)
@click.option("--interval", "interval_s", type=click.FloatRange(0.2), default=1.0, metavar="S")
@in_base
def command(view: QueueView, interval_s: float) -> None:
    """Watch the queue on the whole screen: cards, jobs, rates. Press q to leave.

    For a look that ends, or to read it in a script: postroom status.
    """
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise PostroomError("top needs a terminal; for a script: postroom status --json")
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with _keys() as quits, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            seen = view.overview()
            lines = screen(seen, console.width, console.height)
            parts = [Text.assemble(*line, no_wrap=True, end="") for line in lines]
            live.update(Text("\n", end="").join(parts), refresh=True)
            if quits(interval_s):
                return


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Read keys as they are pressed; yields what waits a while and says whether to leave."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def quits(wait_s: float) -> bool:
        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left_s)[0]:
                key = sys.stdin.read(1)
                if key in ("q", "Q", ""):
                    return True
        return False

    try:
        yield quits
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def screen(seen: Overview, width: int, height: int) -> list[Line]:
    """What fits on a screen: the figures, the cards, then as many jobs as there is room for."""
    lines = [*_head(seen, width), [], *_cards(seen, width)]
    room = height - len(lines)
    sections = [
        ("RUNNING", seen.running, len(seen.running)),
        ("NEXT", seen.queued, seen.counts.get("queued", 0)),
        ("FAILED", seen.failed, len(seen.failed)),
        ("ENDED", seen.finished, len(seen.finished)),
    ]
    sections = [section for section in sections if section[1]]
    rows = _share(room - 2 * len(sections), [len(section[1]) for section in sections])
    for (title, jobs, total), count in zip(sections, rows, strict=True):
        if count:
            more = f"  {count} of {total}" if total > count else f"  {total}"
            lines += [[], [(f"{title}{more}", "bold")]]
            lines += _jobs(jobs[:count], width)
    return [_crop(line, width) for line in lines[:height]]


def _head(seen: Overview, width: int) -> list[Line]:
    first, *rest = head(seen)
    clock = time.strftime("%H:%M:%S", time.localtime(seen.at))
    right = f"{clock}  q quits"
    style = "bold" if seen.master_pid and not seen.paused else "bold yellow"
    gap = max(2, width - len(first) - len(right))
    found: list[Line] = [[(printable(first), style), (" " * gap + right, "dim")]]
    if gap + len(first) + len(right) > width:
        found = [[(printable(first), style)], [(right, "dim")]]
    return found + [[(printable(line), "yellow" if "nothing is" in line else "")] for line in rest]


def _cards(seen: Overview, width: int) -> list[Line]:
    names = {row.short: row for row in seen.running}
    agents = {agent.agent: agent for agent in seen.agents}
    long = max((len(card.name) for card in seen.cards), default=0)
    name_width = min(long, 26 if width >= WIDE else 12)
    found: list[Line] = []
    for card in seen.cards:
        jobs = [agents[agent].job for agent in card.agents]
        doing = "; ".join(
            f"{job} {names[job].name or names[job].command}" if job in names else "idle"
            for job in jobs
        )
        text = card.problem or card.holder or doing or "no agent"
        style = "red" if card.problem else ("cyan" if any(jobs) else "dim")
        found.append(
            [
                (f"{card.index:>2} ", "bold"),
                (f"{printable(card.name)[:name_width]:<{name_width}} ", ""),
                *_memory(card),
                *_use(card),
                (f"{_figure(card.temperature, '°C'):>5} ", ""),
                *([(f"{_figure(card.power, 'W'):>6} ", "")] if width >= WIDE else []),
                (printable(text).replace("\n", " "), style),
            ]
        )
    for agent in seen.agents:
        if agent.gpu == "cpu" and agent.state != "dead":
            doing = f"{agent.job} {names[agent.job].name}" if agent.job in names else agent.state
            found.append([(f" - {agent.gpu_name}  agent {agent.agent}: {doing}", "")])
    return found


def _memory(card: CardView) -> Line:
    used = card.memory_used_mib
    share = (used or 0) / max(card.memory_total_mib, 1)
    text = "-" if used is None else from_mib(used)
    figures = f"{text}/{from_mib(card.memory_total_mib)}"
    return [*_bar(share, known=used is not None), (f" {figures:<12}", "")]


def _use(card: CardView) -> Line:
    use = card.utilization
    text = _figure(use, "%")
    return [*_bar((use or 0) / 100, known=use is not None), (f" {text:>4} ", "")]


def _bar(share: float, *, known: bool) -> Line:
    full = min(BAR, max(0, round(share * BAR)))
    style = "green" if share < 0.6 else "yellow" if share < 0.9 else "red"
    return [("█" * full, style), (("░" if known else " ") * (BAR - full), "dim")]


def _figure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def _jobs(rows: Sequence[JobView], width: int) -> list[Line]:
    names = min(max((len(row.name) for row in rows), default=0), width // 5)
    projects = min(max((len(row.project) for row in rows), default=0), width // 8)
    found: list[Line] = []
    for row in rows:
        seconds = row.seconds
        if seconds is None and row.ended_at is None:
            seconds = time.time() - row.submitted_at
        said = note(row)
        what = row.command if not said or row.state == "running" else f"{said}  {row.command}"
        parts = [
            f"{row.short:<11}",
            f"{took(seconds):>9} ",
            f"{printable(row.project)[:projects]:<{projects}}",
            *([f"{printable(row.name)[:names]:<{names}}"] if names else []),
            *([f"agent {row.agent:<2}"] if row.state == "running" else []),
        ]
        style = _STYLES.get(row.state, "")
        text = printable(what).replace("\n", " ")
        found.append([(" ".join(parts) + " ", style), (text, style if row.state != "ok" else "")])
    return found


def _share(room: int, wanted: Sequence[int]) -> list[int]:
    """Divide lines among sections: each gets what it wants, or as much as the others."""
    given = [0] * len(wanted)
    while room > 0:
        hungry = [n for n, want in enumerate(wanted) if given[n] < want]
        if not hungry:
            break
        for n in hungry:
            if room > 0:
                given[n] += 1
                room -= 1
    return given


def _crop(line: Line, width: int) -> Line:
    found: Line = []
    for text, style in line:
        if len(text) > width:
            found.append((text[: max(0, width - 1)] + "…", style))
            break
        found.append((text, style))
        width -= len(text)
    return found
