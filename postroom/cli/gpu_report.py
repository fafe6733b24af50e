"""`postroom gpu report`: the accounts of the machine."""

from __future__ import annotations

from ..errors import GpuError
from ..gpus.cards import inventory
from ..gpus.ledger.lease_records import printable
from ..gpus.ledger.protocol import Ledger
from ..gpus.ledger.usage_report import UsageLine, read_past, usage_lines
from ..text.durations import format_duration, format_time
from ..text.table import aligned
from .gpu_output import print_json, say, talk

MEASURED = 0.9  # of what was held: below this, the report says so


def report(ledger: Ledger, *, since_s: float, by: str, json_: bool) -> None:
    """Show who held GPUs, for how long, and how busy they were.

    Hours are GPU hours: two GPUs for an hour are two. BUSY is measured by root's
    `postroom gpu record`, and by a user's own queue while it is up. JOBS and
    FAILED are those of queues. By project, you see your own projects, and root
    sees all.
    """
    past = read_past(ledger)
    since = past.now - since_s
    lines = usage_lines(past, since, past.now, by=by)
    if json_:
        print_json(
            {
                "since": since,
                "until": past.now,
                "by": by,
                "lines": [line.encode() for line in lines],
            }
        )
        return
    names = _card_names() if by == "card" else {}
    if by == "project":
        rows = [["PROJECT", "GPU HOURS", "JOBS", "FAILED"]]
        rows += [[line.who, _hours(line.busy_s), *_counts(line)] for line in lines]
    else:
        rows = [[by.upper(), "HELD", "BUSY", "IDLE", "UNKNOWN", "WAITED", "LEASES"]]
        rows[0] += ["JOBS", "FAILED"] if by == "user" else []
        for line in lines:
            rows.append([printable(names.get(line.who, line.who)), *_figures(line)])
            rows[-1] += _counts(line) if by == "user" else []
    say(aligned([[printable(cell) for cell in row] for row in rows]))
    talk(f"since {format_time(since)}; hours are GPU hours")
    held_s = sum(line.held_s or 0.0 for line in lines)
    seen_s = sum(line.busy_s + (line.idle_s or 0.0) for line in lines)
    if by != "project" and seen_s < MEASURED * held_s:
        talk(
            f"{1 - seen_s / held_s:.0%} of the held time was not measured: `postroom up` measures "
            "your own GPUs while it runs, root's `postroom gpu record` everybody's"
        )


def _figures(line: UsageLine) -> list[str]:
    held_s, idle_s = line.held_s or 0.0, line.idle_s or 0.0
    known = line.busy_s + idle_s > 0
    return [
        _hours(held_s),
        _hours(line.busy_s) if known else "-",
        _hours(idle_s) if known else "-",
        _hours(max(0.0, held_s - line.busy_s - idle_s)),
        format_duration(line.waited_s or 0.0),
        str(line.leases or 0),
    ]


def _counts(line: UsageLine) -> list[str]:
    return ["-" if n is None else str(n) for n in (line.jobs, line.failures)]


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}"


def _card_names() -> dict[str, str]:
    try:
        return {card.uuid: f"{card.visible_id} {card.name}" for card in inventory.cards()}
    except GpuError:
        return {}  # the driver does not answer: the uuids are known anyway
