from __future__ import annotations

import os

import pytest

from postroom.gpus.cards import simulated
from postroom.gpus.cards.inventory import Card, Usage
from postroom.gpus.memory import meter
from postroom.gpus.memory.meter import Meter, used_by


def card(*used: tuple[int, int]) -> Card:
    processes = tuple(Usage(pid, "me", "x", mib) for pid, mib in used)
    return simulated.cards("24G")[0]._replace(processes=processes, utilisation=50)


def test_a_process_is_measured_with_its_descendants() -> None:
    parent = os.getppid()
    assert used_by(card((os.getpid(), 5), (parent, 7)), os.getpid()) == 5
    assert used_by(card((os.getpid(), 5), (parent, 7)), parent) == 12


def of_a_container(*used: tuple[int, int]) -> Card:
    """A card whose driver shows pids of the host."""
    shown = card(*used)
    others = tuple(usage._replace(user="?", command="?") for usage in shown.processes)
    return shown._replace(processes=others, used_mib=sum(mib for _, mib in used))


def test_alone_on_a_card_what_the_card_shows_is_what_the_job_uses() -> None:
    before = of_a_container((9_000_001, 700))
    measured = Meter(["FAKE-0"], before={"FAKE-0": before})
    measured.look([of_a_container((9_000_001, 900), (9_000_002, 5000))])
    assert (measured.peak_mib, measured.attributed) == (5000, True)
    measured.look([before._replace(used_mib=8700, processes=())])
    assert measured.peak_mib == 8700


def test_a_stranger_that_we_can_see_is_not_counted_alone_on_a_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = card((1, 5000))._replace(used_mib=5000)
    for first, expected in ((True, 0), (False, 5000)):
        name = "postroom.gpus.memory.meter.processes.in_first_pid_namespace"
        monkeypatch.setattr(name, lambda first=first: first)
        assert meter.grown(now, card(), os.getpid()) == expected


@pytest.mark.parametrize(
    "seen",
    [
        of_a_container((9_000_001, 5000)),
        card()._replace(used_mib=5000),
        card((1, 1))._replace(processes=(Usage(1, "me", "x", None),), used_mib=1),
    ],
)
def test_beside_others_what_cannot_be_attributed_is_not_taken_for_nothing(seen: Card) -> None:
    measured = Meter(["FAKE-0"])
    measured.look([card((os.getpid(), 5))])
    assert measured.attributed
    measured.look([seen])
    assert not measured.attributed


def test_the_peak_of_all_samples_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "KEPT", 3)
    measured = Meter(["FAKE-0"])
    for mib in (5, 90, 7, 6, 5):
        measured.look([card((os.getpid(), mib))])
    assert measured.peak_mib == 90
    assert len(measured.samples) <= 3
    head, *rows = measured.timeline().splitlines()
    assert head == "seconds,memory_mib,utilisation"
    assert rows[0].endswith(",5,50")
