"""`postroom top`: watch the queue live on the full screen."""

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
from ..text.durations import format_duration
from ..text.memory_sizes import from_mib
from ..text.safe_text import printable
from ..text.table import cut
from .job_options import in_base
from .options import CONTEXT, at_least
from .output import COLOURS, WIDE, note, seconds_of
from .status import head

# A line is a list of (text, rich style); an empty style is the default.
Line = list[tuple[str, str]]

BAR = 10
_STYLES = {**COLOURS, "cancelled": "dim"}


@click.command(context_settings=CONTEXT)
@click.option(
    "--interval",
    "interval_s",
    type=at_least(0.2),
    default="1s",
    show_default=True,
    help="Time between two refreshes.",
)
@in_base
def command(view: QueueView, interval_s: float) -> None:
    """Watch the queue live on the full screen: GPUs, jobs, rates. Press q to quit.

    To print it once, or in a script, use postroom status.

    \b
      postroom top --interval 5s
    """
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise PostroomError("top needs a terminal; in a script use postroom status --json")
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
    """Read single keys; yields a function that waits, and returns whether to quit."""
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
    """Return the lines of a screen: counts, GPUs, then as many jobs as fit."""
    lines = [*_head(seen, width), [], *_cards(seen, width)]
    left = height - len(lines)
    sections = [
        ("RUNNING", seen.running, len(seen.running)),
        ("NEXT", seen.queued, seen.counts.get("queued", 0)),
        ("FAILED", seen.failed, len(seen.failed)),
        ("ENDED", seen.finished, len(seen.finished)),
    ]
    sections = [section for section in sections if section[1]]
    rows = _share(left - 2 * len(sections), [len(section[1]) for section in sections])
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
    return found + [
        [(printable(line), "yellow" if "nothing starts" in line else "")] for line in rest
    ]


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
        said = note(row)
        what = row.command if not said or row.state == "running" else f"{said}  {row.command}"
        parts = [
            f"{row.short:<11}",
            f"{format_duration(seconds_of(row)):>11} ",
            f"{printable(row.project)[:projects]:<{projects}}",
            *([f"{printable(row.name)[:names]:<{names}}"] if names else []),
            *([f"agent {row.agent:<2}"] if row.state == "running" else []),
        ]
        style = _STYLES.get(row.state, "")
        text = printable(what).replace("\n", " ")
        found.append([(" ".join(parts) + " ", style), (text, style if row.state != "ok" else "")])
    return found


def _share(lines: int, wanted: Sequence[int]) -> list[int]:
    """Divide lines among sections: each gets what it needs, or as many as the others."""
    given = [0] * len(wanted)
    while lines > 0:
        hungry = [n for n, want in enumerate(wanted) if given[n] < want]
        if not hungry:
            break
        for n in hungry:
            if lines > 0:
                given[n] += 1
                lines -= 1
    return given


def _crop(line: Line, width: int) -> Line:
    found: Line = []
    for text, style in line:
        if len(text) > width:
            found.append((cut(text, width), style))
            break
        found.append((text, style))
        width -= len(text)
    return found
