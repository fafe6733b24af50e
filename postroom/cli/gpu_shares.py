"""`postroom gpu shares`, `reserve`, `reservations`, `unreserve` and `record`."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from ..errors import GpuError
from ..gpus.cards.inventory import CardWatch
from ..gpus.ledger.activity import ActivityMeter
from ..gpus.ledger.fair_share import Account, used_lately
from ..gpus.ledger.folder_ledger import local_part
from ..gpus.ledger.lease_records import printable
from ..gpus.ledger.ledger_rules import Limit
from ..gpus.ledger.protocol import Ledger
from ..gpus.ledger.recorder import Recorder
from ..gpus.ledger.reservations import Reservation
from ..system import processes
from ..text.durations import format_duration, format_time
from ..text.moments import parse_moment
from ..text.sizes import from_mib
from ..text.table import aligned
from .gpu_output import print_json, say, talk

LOOK_S = 5.0
RECORD = "record"  # the name of root's observer


def shares(ledger: Ledger, *, json_: bool) -> None:
    """Show how much each user has used lately, and may hold.

    Users who have used less go first in the waiting list. Use counts half as
    much after each half-life.
    """
    rules, used = ledger.rules(), ledger.used()
    held = ledger.holders(squatters=False)
    uids = sorted({*used, *(entry.uid for entry in held)}, key=lambda uid: used.get(uid, 0.0))
    caps = rules.caps(uids)
    found: list[dict[str, Any]] = [
        {
            "user": processes.user_name(uid),
            "used_s": round(used.get(uid, 0.0), 1),
            "cards": len({uuid for entry in held if entry.uid == uid for uuid in entry.cards}),
            "limits": [
                f"{cap.who}: {text}" for cap in caps.get(uid, ()) if (text := _text(cap[2]))
            ],
        }
        for uid in uids
    ]
    if json_:
        print_json(
            {
                "half_life_s": rules.half_life_s,
                "patience_s": rules.patience_s,
                "rules": rules.path,
                "problem": rules.problem,
                "users": found,
            }
        )
        return
    if rules.problem:
        talk(f"the rules limit nobody: {rules.problem}")
    rows = [["USER", "USED LATELY", "HOLDS", "LIMITS"]]
    for one in found:
        limits = "; ".join(one["limits"]) or "-"
        used_h = f"{one['used_s'] / 3600:.2f} GPU hours"
        rows.append([printable(one["user"]), used_h, str(one["cards"]), printable(limits)])
    say(aligned(rows))
    talk(
        f"what was used counts half after {format_duration(rules.half_life_s)}; rules: "
        f"{rules.path or 'none'}"
    )


def _text(limit: Limit) -> str:
    words = [] if limit.cards is None else [f"{limit.cards} cards"]
    words += [] if limit.memory_mib is None else [from_mib(limit.memory_mib)]
    words += [] if limit.hours is None else [f"{limit.hours:g} h at a stretch"]
    return ", ".join(words)


def reserve(ledger: Ledger, *, count: int, for_s: float, at: str, name: str, json_: bool) -> None:
    """Keep N GPUs for yourself, for a time: a talk, a deadline, a day of work.

    On N of the GPUs, other users can then start only what will end before that
    time. Running programs are not stopped. While the reservation lasts, its GPUs
    count as used by you.
    """
    now = time.time()
    start = parse_moment(at, now)
    made = ledger.reserve(count, start, start + for_s, name)
    if json_:
        print_json(_encode(made))
    else:
        say(made.reservation_id)
        talk(f"{_what(made)}; remove it with: postroom gpu unreserve {made.reservation_id}")


def reservations(ledger: Ledger, *, json_: bool) -> None:
    """List the reservations that are not over, by their start."""
    found = ledger.reservations()
    if json_:
        print_json([_encode(one) for one in found])
        return
    rows = [["ID", "USER", "GPUS", "FROM", "TO", "WHAT"]]
    for one in found:
        times = [format_time(one.start), format_time(one.end)]
        rows.append([one.reservation_id, printable(one.user), str(one.count), *times])
        rows[-1].append(printable(one.name))
    say(aligned(rows))


def unreserve(ledger: Ledger, *, which: str, json_: bool) -> None:
    """Remove a reservation of yours; root can remove any."""
    gone = ledger.unreserve(which)
    if json_:
        print_json(_encode(gone))
    else:
        talk(f"removed: {_what(gone)}")


def _what(one: Reservation) -> str:
    cards = f"{one.count} GPU{'s' if one.count > 1 else ''}"
    return f"{cards} from {format_time(one.start)} to {format_time(one.end)}"


def _encode(one: Reservation) -> dict[str, Any]:
    return {**one.encode(), "user": one.user, "made_at": one.made_at}


def record(ledger: Ledger, *, count: int | None, json_: bool) -> None:
    """Record how much each user uses, for root: run it as a service.

    Without it, each user's processes write down what they have used, and a user
    could understate that. While this runs, only its own record counts. It also
    records whether held GPUs compute, for `postroom gpu report`.
    """
    local = local_part(ledger)
    if os.geteuid() != 0:
        raise GpuError("only root's record counts: run it as root")
    now = time.time()
    facts = local.facts()
    half_life_s = facts.rules.half_life_s
    # What users have said so far, what was recorded before, and what is held since then.
    known = used_lately(
        facts.accounts,
        local.holders(squatters=False),
        now=now,
        half_life_s=half_life_s,
        record=facts.record,
        least_s=0.0,
    )
    recorder = Recorder({uid: Account(used, now) for uid, used in known.items()}, half_life_s)
    meter = ActivityMeter(local.notes.activity(RECORD).get(0, [None])[0])
    sizes_mib: dict[str, int] = {}
    looked = 0
    talk(f"recording the use of {local.where}; end it with Ctrl-C")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # of a service: it writes what it has seen

    def look(watch: CardWatch) -> bool:
        local.tidy()
        held = local.holders(squatters=False)
        with suppress(GpuError):  # a driver that does not answer: what is held counts anyway
            cards = watch.cards() if held else []
            sizes_mib.update((card.uuid, card.memory_mib) for card in cards)
            meter.step(time.time(), held, cards)
        return recorder.step(time.time(), time.monotonic(), held, sizes_mib)

    def write() -> None:
        try:
            local.notes.write_accounts("recorded", recorder.accounts)
            local.notes.write_activity(RECORD, meter.seen, {})
        except OSError as error:  # a full disk: it goes on, and writes it later
            talk(f"cannot write the record: {error.strerror}")

    with CardWatch() as watch:
        try:
            while count is None or looked < count:
                if look(watch):
                    write()
                looked += 1
                if looked != count:
                    time.sleep(LOOK_S)
        finally:
            look(watch)
            write()
    if json_:
        print_json({str(uid): account.seconds for uid, account in recorder.accounts.items()})
