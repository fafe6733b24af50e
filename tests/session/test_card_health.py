from __future__ import annotations

from postroom.gpus.devices.faults import Fault
from postroom.session.card_health import MOST_PAUSE_S, CardHealth


class Ward:
    """A Health with a driver that says what the test wants, and a ledger that takes notes."""

    def __init__(self, gpu: str = "GPU-1", driver_says: str = "") -> None:
        self.quarantined: list[tuple[str, str]] = []
        self.health = CardHealth(
            gpu,
            ask_driver=lambda: driver_says,
            quarantine=lambda uuid, why: self.quarantined.append((uuid, why)),
        )

    def die(self, job: int, kind: str = "a:f", *, finished_any: bool = False) -> str | None:
        return self.health.worker_died(
            ready=True, finished_any=finished_any, lost=("run", job), kind=kind
        )


def test_one_death_is_nobodys_fault() -> None:
    ward = Ward()
    assert ward.die(1) is None
    assert ward.quarantined == []


def test_the_same_job_again_and_again_is_the_jobs_fault() -> None:
    ward = Ward()
    assert [ward.die(1) for _ in range(5)] == [None] * 5


def test_three_different_jobs_of_one_kind_stop_the_session_but_not_the_card() -> None:
    ward = Ward()
    assert [ward.die(1), ward.die(2)] == [None, None]
    assert "takes no more" in (ward.die(3) or "")
    assert ward.quarantined == []


def test_three_jobs_of_different_kinds_quarantine_the_card() -> None:
    ward = Ward()
    assert [ward.die(1, "a:f"), ward.die(2, "b:g")] == [None, None]
    assert "quarantined" in (ward.die(3, "a:f") or "")
    assert ward.quarantined == [("GPU-1", "jobs of different kinds died on it: a:f, b:g")]


def test_a_finished_job_in_between_clears_the_count() -> None:
    ward = Ward()
    ward.die(1)
    ward.die(2)
    assert ward.die(3, finished_any=True) is None
    assert ward.die(4) is None
    assert ward.die(5) is not None


def test_a_card_that_the_driver_calls_sick_is_quarantined_at_the_first_death() -> None:
    ward = Ward(driver_says="lost: fell off the bus")
    assert "fell off the bus" in (ward.die(1) or "")
    assert len(ward.quarantined) == 1


def first_uses(ward: Ward, *faults: Fault) -> list[tuple[str | None, float]]:
    ends = []
    for fault in faults:
        ward.health.touch_failed, ward.health.fault = "CUDA error", fault
        ends.append(ward.health.first_use_failed())
    return ends


def test_a_full_or_busy_card_is_waited_for_longer_each_time_and_never_quarantined() -> None:
    ward = Ward()
    ends = first_uses(ward, *[Fault.MEMORY, Fault.BUSY] * 5)
    assert [why for why, _ in ends] == [None] * 10
    assert [pause for _, pause in ends][:7] == [1, 2, 4, 8, 16, 32, MOST_PAUSE_S]
    assert ward.quarantined == []


def test_a_card_that_three_new_processes_in_a_row_cannot_use_is_quarantined() -> None:
    ward = Ward()
    assert [why for why, _ in first_uses(ward, Fault.OTHER, Fault.MEMORY, Fault.OTHER)] == [
        None
    ] * 3
    ((why, _),) = first_uses(ward, Fault.OTHER)
    assert "3 new processes in a row could not use it: CUDA error" in (why or "")
    assert len(ward.quarantined) == 1
    ward = Ward()
    first_uses(ward, Fault.OTHER, Fault.OTHER)
    ward.health.was_ready()
    assert first_uses(ward, Fault.OTHER, Fault.OTHER) == [(None, 1.0), (None, 2.0)]


def test_a_fault_of_the_card_or_the_drivers_word_quarantines_it_at_once() -> None:
    sick = Ward(driver_says="lost: fell off the bus")
    assert "fell off the bus" in (first_uses(sick, Fault.BUSY)[0][0] or "")
    worn = Ward()
    assert "CUDA error" in (first_uses(worn, Fault.CARD)[0][0] or "")
    used = Ward()
    used.health.touch_failed, used.health.fault = "uncorrectable ECC error", Fault.CARD
    assert "uncorrectable" in (used.die(1) or "")
    assert [len(ward.quarantined) for ward in (sick, worn, used)] == [1, 1, 1]


def test_workers_that_never_get_ready_stop_the_session() -> None:
    ward = Ward()

    def stillborn() -> str | None:
        return ward.health.worker_died(ready=False, finished_any=False, lost=None, kind="")

    assert [stillborn(), stillborn()] == [None, None]
    ward.health.was_ready()
    assert [stillborn(), stillborn()] == [None, None]
    assert "before they were ready" in (stillborn() or "")


def test_the_cpu_is_never_quarantined() -> None:
    ward = Ward("cpu", driver_says="never asked")
    assert [ward.die(1, "a"), ward.die(2, "b")] == [None, None]
    assert "takes no more" in (ward.die(3, "c") or "")
    assert ward.quarantined == []


def test_the_out_of_memory_killer_says_nothing_about_the_card() -> None:
    ward = Ward(driver_says="never asked")
    for _ in range(9):
        ward.health.out_of_memory(finished_any=False)
    assert ward.quarantined == []
    ward = Ward()
    assert [ward.die(1, "a"), ward.die(2, "b")] == [None, None]
    ward.health.out_of_memory(finished_any=False)
    assert ward.quarantined == []


def test_the_pause_grows_while_memory_stays_short_and_begins_anew_after_a_finished_job() -> None:
    health = Ward().health
    pauses = [health.out_of_memory(finished_any=False) for _ in range(2000)]
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, MOST_PAUSE_S, MOST_PAUSE_S]
    assert pauses[-1] == MOST_PAUSE_S
    assert health.out_of_memory(finished_any=True) == 1
