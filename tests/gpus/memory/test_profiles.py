"""What is learned of jobs, kept, raised, aged out and generalised."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import GpuError
from postroom.gpus.memory.packing import CONTEXT_MIB, Growth, Learned, advice, reservation
from postroom.gpus.memory.placement import PlacementRequest, order
from postroom.gpus.memory.profiles import DOUBTED, RECENT, Kind, ProfileRow, Profiles
from tests.gpus.ledgerkit import wait_until

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profiles:
    monkeypatch.setenv("POSTROOM_PROFILES", str(tmp_path / "profiles"))
    return Profiles()


def kind(code: str = "v1", **call: Any) -> Kind:
    return Kind("train.py::train", code, call)


def seen(profiles: Profiles, peak_mib: int | None, at_least_mib: int = 0, **call: Any) -> None:
    profiles.add(kind(**call), ProfileRow(call, peak_mib, at_least_mib, runs=1))


def test_what_was_learned_survives_a_restart(profiles: Profiles) -> None:
    seen(profiles, 6000)
    assert Profiles().learned(kind()) == Learned(6000)


def test_a_peak_is_raised_at_once_and_falls_when_the_last_runs_needed_less(
    profiles: Profiles,
) -> None:
    for peak in (6000, 7000, 5000):
        seen(profiles, peak)
    assert profiles.learned(kind()) == Learned(7000)
    for _ in range(RECENT - 2):
        seen(profiles, 5000)
    assert profiles.learned(kind()) == Learned(7000), "one of the last runs still needed it"
    seen(profiles, 5000)
    assert Profiles().learned(kind()) == Learned(5000)


def test_what_was_too_little_is_doubted_when_runs_get_by_with_it(profiles: Profiles) -> None:
    """It ran out because of somebody else: that must not take whole cards for ever."""
    seen(profiles, None, 6144)
    for _ in range(DOUBTED - 1):
        seen(profiles, 3000)
        assert profiles.learned(kind()) == Learned(None, 6144)
    seen(profiles, 3000)
    assert profiles.learned(kind()) == Learned(3000)


def test_only_a_successful_run_lowers_what_is_known(profiles: Profiles) -> None:
    seen(profiles, 6000)
    for _ in range(2 * RECENT):
        profiles.add(kind(), ProfileRow({}, 2000, failures=1))
    assert profiles.learned(kind()) == Learned(6000)


def test_another_version_of_the_code_starts_anew(profiles: Profiles) -> None:
    seen(profiles, 6000)
    assert profiles.learned(kind("v2")) == Learned()
    profiles.add(kind("v2"), ProfileRow({}, 3000))
    assert profiles.learned(kind("v2")) == Learned(3000)
    assert profiles.learned(kind("v1")) == Learned()


def test_running_out_of_memory_teaches_a_lower_bound(profiles: Profiles) -> None:
    seen(profiles, 6000)
    seen(profiles, None, 6144)
    assert profiles.learned(kind()) == Learned(None, 6144)
    seen(profiles, 9000)
    assert profiles.learned(kind()) == Learned(9000, 6144)


def test_another_size_is_another_kind(profiles: Profiles) -> None:
    seen(profiles, 1000, batch=1)
    assert profiles.learned(kind(batch=512)) == Learned()
    seen(profiles, 20000, batch=512)
    assert profiles.learned(kind(batch=1)) == Learned(1000)
    assert profiles.learned(kind(batch=64)) == Learned()


def test_what_turns_out_not_to_matter_is_measured_once_more_and_then_known(
    profiles: Profiles,
) -> None:
    seen(profiles, 6000, width=64, seed=10)
    assert profiles.learned(kind(width=64, seed=11)) == Learned()
    seen(profiles, 6010, width=64, seed=11)
    assert profiles.learned(kind(width=64, seed=12)) == Learned(6010)
    assert profiles.learned(kind(width=128, seed=12)) == Learned()
    seen(profiles, 9000, width=128, seed=12)
    assert profiles.learned(kind(width=128, seed=13)) == Learned(9000)


def test_two_sizes_that_need_the_same_say_nothing_of_a_much_larger_one(
    profiles: Profiles,
) -> None:
    seen(profiles, 1000, batch=1)
    seen(profiles, 1001, batch=2)
    assert profiles.learned(kind(batch=4)) == Learned(1001)
    assert profiles.learned(kind(batch=512)) == Learned()


def test_evidence_that_it_matters_beats_evidence_that_it_does_not(profiles: Profiles) -> None:
    seen(profiles, 1000, model="a")
    seen(profiles, 1000, model="b")
    assert profiles.learned(kind(model="c")) == Learned(1000)
    seen(profiles, 8000, model="c")
    assert profiles.learned(kind(model="d")) == Learned()


def test_a_file_that_makes_no_sense_is_as_good_as_none(profiles: Profiles) -> None:
    seen(profiles, 6000)
    (path,) = Path(profiles.where).glob("*.json")
    path.write_text("{")
    assert profiles.learned(kind()) == Learned()
    seen(profiles, 5000)
    assert profiles.learned(kind()) == Learned(5000)


def test_many_processes_raise_one_profile_and_lose_nothing(
    profiles: Profiles, python: Start
) -> None:
    code = (
        "from postroom.gpus.memory.profiles import *\n"
        "n = int(sys.argv[1])\n"
        "for i in range(20):\n"
        "    Profiles().add(Kind('t'), ProfileRow({}, 100 * n + i, runs=1))\n"
    )
    started = [python(code, str(n)) for n in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    (row,) = profiles.get("t").rows
    assert (row.peak_mib, len(row.recent), row.runs) == (max(row.recent), RECENT, 80)


def test_the_right_to_measure_ends_with_its_holders_death(
    profiles: Profiles, python: Start
) -> None:
    holder = python(
        "from postroom.gpus.memory.profiles import *\n"
        "right = Profiles().try_measure('t')\n"
        "print('held', flush=True); time.sleep(600)\n"
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert profiles.try_measure("t") is None
    other = profiles.try_measure("another")
    assert other is not None
    other.close()
    os.kill(holder.pid, signal.SIGKILL)
    right = wait_until(lambda: profiles.try_measure("t"), show="the right is still held")
    assert right is not None
    right.close()


def test_a_reservation_is_the_larger_of_declared_and_learned_with_the_context() -> None:
    assert reservation(Learned(), None, largest_mib=24576) is None
    assert reservation(Learned(), 6144, largest_mib=24576) == 6144 + CONTEXT_MIB
    learned = reservation(Learned(10000), 6144, largest_mib=24576)
    assert learned is not None
    assert 10000 < learned < 10400
    assert reservation(Learned(2000), 6144, largest_mib=24576) == 6144 + CONTEXT_MIB


def test_a_job_as_large_as_the_card_is_not_refused_for_its_margins() -> None:
    assert reservation(Learned(24576), None, largest_mib=24576) == 24576
    assert reservation(Learned(), 24576, largest_mib=24576) == 24576


def test_what_was_declared_is_measured_once_it_was_shown_to_be_too_little() -> None:
    assert reservation(Learned(None, 7000), 6144, largest_mib=24576) is None


def test_what_no_card_can_hold_is_asked_for_so_that_it_is_refused() -> None:
    asked = reservation(Learned(None, 24576), None, largest_mib=24576)
    assert asked is not None
    assert asked > 24576


def test_growth_has_stopped_only_after_a_while_and_half_of_its_life() -> None:
    growth = Growth(0.0)
    assert not growth.settled(100.0)  # it has used nothing yet
    for second in range(10):
        growth.add(float(second), 1000 * second)
    assert not growth.settled(18.0)
    assert growth.settled(19.0)
    growth.add(50.0, 20000)
    assert not growth.settled(99.0)
    assert growth.settled(100.0)


def test_who_has_many_jobs_measures_first_and_hands_out_large_before_small() -> None:
    asks = [PlacementRequest(memory_mib, ("card",)) for memory_mib in (1, None, 3, 2, None, 3)]
    assert order(asks) == [1, 4, 2, 5, 3, 0]
    urgent = [*asks, PlacementRequest(1, ("card",), priority=1)]
    assert order(urgent) == [6, 1, 4, 2, 5, 3, 0]


def test_advice_says_how_many_fit() -> None:
    assert (
        advice("train", 6246, 24576, 12.0)
        == "train: peak 6.1 of 24 GB, 12.0 s: three fit on one card"
    )
    assert advice("train", 20000, 24576, 6000).endswith("100 min: it needs a card of its own")


def test_a_folder_that_cannot_be_used_is_named_and_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    says = "cannot be kept in .*: Not a directory; set POSTROOM_PROFILES to a folder"
    with pytest.raises(GpuError, match=says):
        Profiles(str(tmp_path / "file" / "profiles"))
    store = Profiles(str(tmp_path / "profiles"))
    assert store.writable() is store
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(GpuError, match="you may not write there"):
        store.writable()
    os.rmdir(store.where)
    with pytest.raises(GpuError, match="No such file or directory"):
        store.try_measure("train.py::train")
