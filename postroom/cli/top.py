"""`postroom top`: watch the queue live on the full screen."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import click

from ..errors import PostroomError
from ..queue import actions
from ..queue.job_logs import last_lines
from ..queue.queue_view import QueueView
from ..queue.rows import CardView, JobView, Overview
from ..store.job_ids import JobId
from ..text.durations import format_duration
from ..text.safe_text import printable, strip_escapes
from ..text.sizes import from_mib
from ..text.table import cut
from .job_options import in_base
from .options import CONTEXT, at_least
from .output import COLOURS, WIDE, note, seconds_of
from .status import head
from .top_keys import TopState, press, split_keys

# A line is a list of (text, rich style); an empty style is the default.
Line = list[tuple[str, str]]

BAR = 10
NARROW = 80  # below this, figures have no bars
SMALL_LINES = 20  # below this, there are no empty lines
SHOWN = 20
LATER = "waiting,paused,held,abandoned"
FOUND = 200  # jobs that match the filter
LOG_LINES = 5000
KEYS = "arrows: select   Enter: log   /: filter   x: kill   h: hold   r: rerun   q: quit"
KEYS_SHORT = "↑↓ ⏎ log  / filter  x kill  h hold  r rerun  q quit"
NOTHING_CHOSEN = TopState()
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
    """Watch the queue live on the full screen: GPUs, jobs, rates, and act on jobs.

    \b
      arrows, j, k    select a job          /    show only jobs that match a text
      Enter, l        its log               Esc  show all again
      x               kill it               r    run it again
      h               hold or release it    q    quit, or leave the log

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
    state = TopState()
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while not state.quit:
            seen = view.overview()
            found = view.jobs(text=state.filter, count=FOUND).jobs if state.filter else None
            later = view.jobs(state=LATER, count=SHOWN).jobs if _any_later(seen) else []
            until = time.monotonic() + interval_s
            while not state.quit:
                size = console.width, console.height
                lines = _log_screen(view, state, *size) if state.log else None
                lines = lines or screen(seen, *size, state=state, found=found, later=later)
                parts = [Text.assemble(*line, no_wrap=True, end="") for line in lines]
                live.update(Text("\n", end="").join(parts), refresh=True)
                pressed = keys(max(0.0, until - time.monotonic()))
                if not pressed:
                    break
                before = state
                for key in pressed:
                    rows = [row for _, jobs, _ in sections(seen, found, later) for row in jobs]
                    said = press(state, key, rows)
                    state = said.state
                    if said.verb:
                        state = replace(state, message=act(view, said.verb, state.selected))
                        until = 0.0  # see at once what came of it
                if state.filter != before.filter:
                    break


def act(view: QueueView, verb: str, job: str) -> str:
    """Do what a key asks for, and say what came of it."""
    try:
        return _VERBS[verb](view, [JobId.parse(job)]).text
    except PostroomError as error:
        return str(error)


_VERBS: dict[str, Callable[[QueueView, list[JobId]], actions.ActionResult]] = {
    "kill": actions.kill,
    "hold": actions.hold,
    "release": actions.release,
    "rerun": actions.rerun,
}


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], list[str]]]:
    """Read keys; yields a function that waits for some, and returns none when time is over."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    fd = sys.stdin.fileno()

    def keys(wait_s: float) -> list[str]:
        if not select.select([fd], [], [], wait_s)[0]:
            return []
        return split_keys(os.read(fd, 1024).decode(errors="replace")) or [""]  # "": it is closed

    try:
        yield keys
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _any_later(seen: Overview) -> int:
    return sum(seen.counts.get(state, 0) for state in LATER.split(","))


def sections(
    seen: Overview, found: Sequence[JobView] | None = None, later: Sequence[JobView] = ()
) -> list[tuple[str, Sequence[JobView], int]]:
    """Return the lists of jobs on the screen, each with its title and how many there are.

    `found` are those that match a filter; `later` are those that something keeps waiting.
    """
    if found is not None:
        return [("FOUND", found, len(found))] if found else []
    failed = {row.id for row in seen.failed}
    every = [
        ("RUNNING", seen.running, len(seen.running)),
        ("NEXT", seen.queued, seen.counts.get("queued", 0)),
        ("LATER", later, _any_later(seen)),
        ("FAILED", seen.failed, len(seen.failed)),
        ("ENDED", [row for row in seen.finished if row.id not in failed], 0),
    ]
    return [(title, jobs, total or len(jobs)) for title, jobs, total in every if jobs]


def screen(
    seen: Overview,
    width: int,
    height: int,
    *,
    state: TopState = NOTHING_CHOSEN,
    found: Sequence[JobView] | None = None,
    later: Sequence[JobView] = (),
) -> list[Line]:
    """Return the lines of a screen: counts, GPUs, as many jobs as fit, and what keys do."""
    small = height < SMALL_LINES
    heads = _head(seen, width)[: 2 if small else None]
    cards = _cards(seen, width)
    most = max(1, height // 4)
    if len(cards) > most:
        cards = [*cards[: most - 1], [(f"   and {len(cards) - most + 1} more GPUs", "dim")]]
    lines = [*heads, *([] if small else [[]]), *cards]
    bottom = [_foot(state, width, any_match=found is None or bool(found))]
    parts = sections(seen, found, later)
    gap = 1 if small else 2  # lines of a title
    left = height - len(lines) - len(bottom)
    while parts and left - gap * len(parts) < len(parts):
        parts.pop()  # a title without a line below it takes the place of a job
    rows = _share(left - gap * len(parts), [len(part[1]) for part in parts])
    for (title, jobs, total), count in zip(parts, rows, strict=True):
        if count:
            more = f"  {count} of {total}" if total > count else f"  {total}"
            lines += [*([] if small else [[]]), [(f"{title}{more}", "bold")]]
            place = next((n for n, row in enumerate(jobs) if row.id == state.selected), 0)
            first = max(0, place - count + 1)
            lines += _jobs(jobs[first : first + count], width, selected=state.selected)
    lines = lines[: height - len(bottom)]
    lines += [[] for _ in range(height - len(bottom) - len(lines))]
    return [_crop(line, width) for line in (*lines, *bottom)][:height]


def _foot(state: TopState, width: int, *, any_match: bool) -> Line:
    if state.typing:
        return [(f"show only: {printable(state.filter)}", "bold"), ("▏", "blink")]
    if state.confirm:
        return [(f"{state.confirm} {_short(state.selected)}? press y", "bold yellow")]
    if state.message:
        return [(printable(state.message).replace("\n", " "), "bold")]
    if state.filter:
        shown = "only" if any_match else "NOTHING matches"
        return [(f"{shown} {printable(state.filter)!r}; Esc: all", "bold")]
    keys = KEYS if width >= len(KEYS) else KEYS_SHORT
    return [(keys, "dim")]


def _short(job: str) -> str:
    return JobId.parse(job).short if job else ""


def _log_screen(view: QueueView, state: TopState, width: int, height: int) -> list[Line] | None:
    """Return the lines of a job's log, the newest at the bottom; None if the job is gone."""
    try:
        detail = view.job(JobId.parse(state.selected))
        text = last_lines(view.base, detail, min(height + state.back, LOG_LINES))
    except PostroomError:
        return None
    room = max(1, height - 2)
    end = max(min(room, len(text)), len(text) - state.back)
    row = detail.job
    about = f"{row.short}  {row.state}  {row.name or row.summary}"
    shown = [printable(strip_escapes(line)) for line in text[max(0, end - room) : end]]
    lines: list[Line] = [[(printable(about).replace("\n", " "), "bold")]]
    lines += [[(line, "")] for line in shown or [note(row) or "it has printed nothing yet"]]
    lines += [[] for _ in range(height - 1 - len(lines))]
    lines.append([("arrows: scroll   q: back", "dim")])
    return [_crop(line, width) for line in lines[:height]]


def _head(seen: Overview, width: int) -> list[Line]:
    first, *rest = head(seen)
    clock = time.strftime("%H:%M:%S", time.localtime(seen.at))
    right = clock
    style = "bold" if seen.master_pid and not seen.paused else "bold yellow"
    gap = max(2, width - len(first) - len(right))
    found: list[Line] = [[(printable(first), style), (" " * gap + right, "dim")]]
    if gap + len(first) + len(right) > width:
        found = [[(cut(printable(first), width), style)]]
    return found + [
        [(printable(line), "yellow" if "nothing starts" in line else "")] for line in rest
    ]


def _cards(seen: Overview, width: int) -> list[Line]:
    names = {row.short: row for row in seen.running}
    agents = {agent.agent: agent for agent in seen.agents}
    long = max((len(card.name) for card in seen.cards), default=0)
    name_width = min(long, 26 if width >= WIDE else 12 if width >= NARROW else 0)
    found: list[Line] = []
    for card in seen.cards:
        jobs = [agents[agent].job for agent in card.agents]
        doing = "; ".join(
            f"{job} {names[job].name or names[job].summary}" if job in names else "idle"
            for job in jobs
        )
        text = card.problem or card.holder or doing or "no agent"
        style = "red" if card.problem else ("cyan" if any(jobs) else "dim")
        found.append(
            [
                (f"{card.index:>2} ", "bold"),
                *(
                    [(f"{printable(card.name)[:name_width]:<{name_width}} ", "")]
                    if name_width
                    else []
                ),
                *_memory(card, bar=width >= NARROW),
                *_use(card, bar=width >= NARROW),
                *([(f"{_figure(card.temperature, '°C'):>5} ", "")] if width >= NARROW else []),
                *([(f"{_figure(card.power, 'W'):>6} ", "")] if width >= WIDE else []),
                (printable(text).replace("\n", " "), style),
            ]
        )
    for agent in seen.agents:
        if agent.gpu == "cpu" and agent.state != "dead":
            doing = f"{agent.job} {names[agent.job].name}" if agent.job in names else agent.state
            found.append([(f" - {agent.gpu_name}  agent {agent.agent}: {doing}", "")])
    return found


def _memory(card: CardView, *, bar: bool) -> Line:
    used = card.memory_used_mib
    share = (used or 0) / max(card.memory_total_mib, 1)
    text = "-" if used is None else from_mib(used)
    figures = f"{text}/{from_mib(card.memory_total_mib)}"
    bars = _bar(share, known=used is not None) if bar else []
    return [*bars, (f" {figures:<12}", "")]


def _use(card: CardView, *, bar: bool) -> Line:
    use = card.utilization
    text = _figure(use, "%")
    return [*(_bar((use or 0) / 100, known=use is not None) if bar else []), (f" {text:>4} ", "")]


def _bar(share: float, *, known: bool) -> Line:
    full = min(BAR, max(0, round(share * BAR)))
    style = "green" if share < 0.6 else "yellow" if share < 0.9 else "red"
    return [("█" * full, style), (("░" if known else " ") * (BAR - full), "dim")]


def _figure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def _jobs(rows: Sequence[JobView], width: int, *, selected: str = "") -> list[Line]:
    names = min(max((len(row.name) for row in rows), default=0), width // 5)
    projects = min(max((len(row.project) for row in rows), default=0), width // 8)
    found: list[Line] = []
    for row in rows:
        said = note(row)
        what = row.summary if not said or row.state == "running" else f"{said}  {row.summary}"
        parts = [
            f"{row.short:<11}",
            f"{format_duration(seconds_of(row)):>{11 if width >= NARROW else 7}} ",
            *([f"{printable(row.project)[:projects]:<{projects}}"] if width >= NARROW else []),
            *([f"{printable(row.name)[:names]:<{names}}"] if names else []),
            *([f"agent {row.agent:<2}"] if row.state == "running" and width >= NARROW else []),
        ]
        style = "reverse" if row.id == selected else _STYLES.get(row.state, "")
        text = printable(what).replace("\n", " ")
        plain = row.state == "ok" and row.id != selected
        found.append([(" ".join(parts) + " ", style), (text, "" if plain else style)])
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
