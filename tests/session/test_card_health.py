from __future__ import annotations

import pytest

from postroom.session.card_health import MOST_PAUSE_S, CardHealth, touch


class Ward:
    """A Health with a driver that says what the test wants, and a ledger that takes notes."""

    def __init__(self, gpu: str = "GPU-1", driver_says: str = "") -> None:
        self.quarantined: list[tuple[str, str]] = []
        self.health = CardHealth(
            gpu,
            ask_driver=lambda _: driver_says,
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


def test_a_failed_first_touch_quarantines_the_card() -> None:
    ward = Ward()
    ward.health.touch_failed = "CUDA error"
    why = ward.health.worker_died(ready=False, finished_any=False, lost=None, kind="")
    assert "first use of the GPU failed" in (why or "")
    assert ward.quarantined


def test_a_job_that_broke_its_context_gets_a_new_worker_first() -> None:
    ward = Ward()
    ward.health.touch_failed = "device-side assert"
    assert ward.die(1) is None
    assert ward.quarantined == []


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


@pytest.mark.parametrize("device", [None, "cpu"])
def test_only_real_cards_are_touched(device: object) -> None:
    assert touch(device) == ""
