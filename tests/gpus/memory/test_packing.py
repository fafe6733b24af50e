"""The packing of a mix of jobs, by the real code on simulated time: see benchmarks/packing.py."""

from __future__ import annotations

import pytest

from benchmarks.packing import CARDS, KINDS, OverBooked, Simulation, Task, simulate, tasks


def test_a_mix_of_200_jobs_is_packed_close_to_what_is_possible() -> None:
    result, done = simulate(0)  # raises where a card is over-booked, or something is stuck
    assert len(done) == 200
    assert sum(result.endings.values()) == 200
    assert result.endings["killed"] == 1
    assert result.endings["failed"] > 5
    assert {task.kind.name for task in done if task.ending == "failed"} == {"tune", "large"}
    assert result.by_cover <= 1.15
    assert result.area_s <= result.cover_s <= result.packed_s
    assert result.alone_s > 2 * result.packed_s


def test_every_job_has_its_time_on_one_card() -> None:
    _, done = simulate(1)
    for task in done:
        assert task.card in CARDS
        assert task.ended is not None
        assert task.ended - task.started == pytest.approx(task.ends_after_s)


def test_a_kind_is_measured_once_and_a_failed_first_run_lets_the_next_measure() -> None:
    waiting = tasks(2)
    simulation = Simulation(waiting, packed=True)
    simulation.run()
    for kind in KINDS:
        peak_mib = simulation.learned[kind.name].peak_mib
        assert peak_mib is not None
        assert peak_mib <= kind.peak_mib
        assert peak_mib > 0.95 * kind.peak_mib


def test_the_simulation_would_see_an_over_booked_card() -> None:
    simulation = Simulation([], packed=True)
    for number in range(2):
        simulation.running.append(Task(number, KINDS[-1], 10.0, card=CARDS[0], reserved_mib=1))
    with pytest.raises(OverBooked):
        simulation.check()
