"""The accounts: what was held, busy and idle, and whose word counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.gpus.ledger.activity import HOUR_S, Activity
from postroom.gpus.ledger.ended_leases import EndedLease
from postroom.gpus.ledger.ledger_notes import LedgerNotes
from postroom.gpus.ledger.usage_report import LedgerPast, UsageLine, held_by_card, usage_lines
from postroom.system.processes import user_name
from postroom.system.shared_folder import SharedFolder

HOUR = 500_000
BEGAN = HOUR * HOUR_S
ALICE, BOB = 4001, 4002


def lease(
    uid: int, start: float, end: float, *cards: str, weight: float = 0.0, waited: float = 0.0
) -> EndedLease:
    began = BEGAN + start * HOUR_S
    return EndedLease(
        f"{uid}-{start}-{cards}",
        uid,
        "",
        cards,
        weight or len(cards),
        began - waited,
        began,
        BEGAN + end * HOUR_S,
    )


def seen(uid: int, uuid: str, *row: float) -> Activity:
    held, looked, busy = (value * HOUR_S for value in row)
    return Activity({(HOUR, uid, uuid): (held, looked, busy)}, {}, {})


def past(*leases: EndedLease, activity: dict[int, list[Activity]] | None = None) -> LedgerPast:
    return LedgerPast(leases, [], activity or {}, {}, BEGAN + 10 * HOUR_S)


def accounts(found: LedgerPast, *, by: str = "user", hours: float = 10) -> dict[str, UsageLine]:
    lines = usage_lines(found, BEGAN, BEGAN + hours * HOUR_S, by=by)
    return {line.who: line for line in lines}


def test_leases_of_one_user_on_one_card_count_once() -> None:
    leases = [
        lease(ALICE, 0, 2, "a"),
        lease(ALICE, 1, 3, "a"),
        lease(ALICE, 1, 3, "b", weight=0.25),
        lease(BOB, 2, 3, "a"),
        lease(BOB, -9, -1, "a"),
    ]
    held = held_by_card(leases, BEGAN, BEGAN + 10 * HOUR_S)
    assert {key: held_s / HOUR_S for key, held_s in held.items()} == {
        (ALICE, "a"): 3.0,
        (ALICE, "b"): 0.5,
        (BOB, "a"): 1.0,
    }
    assert held_by_card(leases, BEGAN, BEGAN + HOUR_S)[ALICE, "a"] == HOUR_S


def test_accounts_by_user_and_by_card() -> None:
    found = past(
        lease(ALICE, 1, 2, "a", "b", waited=60.0),
        lease(BOB, 2, 3, "a", waited=600.0),
        activity={ALICE: [seen(ALICE, "a", 1, 1, 0.25)]},
    )
    by_user = accounts(found)
    alice, bob = by_user[user_name(ALICE)], by_user[user_name(BOB)]
    assert list(by_user) == [alice.who, bob.who]  # the largest first
    assert (alice.held_s, alice.busy_s, alice.idle_s) == (7200.0, 900.0, 2700.0)
    assert (alice.waited_s, alice.leases) == (60.0, 1)
    assert (bob.held_s, bob.busy_s, bob.idle_s, bob.waited_s) == (3600.0, 0.0, 0.0, 600.0)
    by_card = accounts(found, by="card")
    assert (by_card["a"].held_s, by_card["b"].held_s) == (7200.0, 3600.0)
    assert by_card["a"].waited_s == 660.0


def test_nobody_says_that_another_was_idle_and_root_is_believed() -> None:
    mine = lease(ALICE, 0, 1, "a")
    slander = {BOB: [seen(ALICE, "a", 1, 1, 0)]}
    line = accounts(past(mine, activity=slander))[user_name(ALICE)]
    assert (line.busy_s, line.idle_s) == (0.0, 0.0)
    boast = {ALICE: [seen(ALICE, "a", 1, 1, 1)], 0: [seen(ALICE, "a", 1, 1, 0.5)]}
    line = accounts(past(mine, activity=boast))[user_name(ALICE)]
    assert (line.busy_s, line.idle_s) == (1800.0, 1800.0)


def test_what_root_has_seen_is_held_whatever_its_user_writes_down() -> None:
    found = past(activity={0: [seen(ALICE, "a", 1, 1, 1)]})
    assert accounts(found)[user_name(ALICE)].held_s == HOUR_S


def test_jobs_are_counted_by_hour() -> None:
    counts = Activity({}, {HOUR: (5, 1), HOUR + 1: (3, 0), HOUR + 50: (7, 7)}, {})
    line = accounts(past(activity={ALICE: [counts, counts]}))[user_name(ALICE)]
    assert (line.jobs, line.failures) == (16, 2)


def test_projects_are_their_users_own(tmp_path: Path) -> None:
    notes = LedgerNotes(SharedFolder(str(tmp_path)))
    nothing = Activity({}, {}, {})
    notes.write_activity(
        "q", nothing, {(HOUR, "vision"): (3, 1, 60.0), (HOUR, "text"): (1, 0, 90.0)}
    )
    path = Path(notes.folder.mine()) / "projects-q"
    assert path.stat().st_mode & 0o077 == 0
    found = past()._replace(projects=notes.projects())
    lines = accounts(found, by="project")
    assert list(lines) == ["text", "vision"]
    assert lines["vision"] == UsageLine("vision", busy_s=60.0, jobs=3, failures=1)
    path.write_text('{"version": 1, "rows": [[1, "x", "many"]]}')
    assert notes.projects() == {os.geteuid(): [{}]}


@pytest.mark.parametrize("by", ["user", "card", "project"])
def test_a_time_without_leases_has_no_accounts(by: str) -> None:
    assert not accounts(past(lease(ALICE, 5, 6, "a")), by=by, hours=1)
