"""The acting Master says how many jobs wait for pilots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from postroom.dispatch.pilot_demand import REPEAT_S, PilotCaller
from postroom.dispatch.run_queue import Capacity
from postroom.store.base import create_base
from postroom.store.files import LocalFiles, SystemClock
from postroom.store.pilot_records import PilotGroup, change_groups, read_demand


def test_it_says_for_each_group_how_many_jobs_fit_and_says_it_again(tmp_path: Path) -> None:
    files, base, clock = LocalFiles(), create_base(tmp_path / "base"), SystemClock()
    caller = PilotCaller(files, base, clock)
    asked: list[Capacity] = []

    def fitting(capacity: Capacity) -> int:
        asked.append(capacity)
        return 7 if capacity.gpus >= 4 else 2

    caller.step(1.0, fitting)
    assert asked == []  # no groups, no work
    small, large = (
        PilotGroup("slurm", gpus=1),
        PilotGroup("slurm", gpus=4, memory_mib=80_000, gpu_name="A100", time_s=3600.0),
    )
    change_groups(files, base, lambda groups: groups.groups.update(a=small, b=large))
    caller.step(2.0, fitting)
    assert asked == [
        Capacity(1, 0, "slurm", seen=False),
        Capacity(4, 80_000, "slurm", "A100", lives_s=3600.0),
    ]
    assert read_demand(files, base, clock.wall()) == {"a": 2, "b": 7}
    Path(base.pilot_demand).unlink()
    caller.step(3.0, fitting)
    assert not Path(base.pilot_demand).exists()  # the same was said a moment ago
    caller.step(3.0 + REPEAT_S, fitting)
    assert read_demand(files, base, clock.wall()) == {"a": 2, "b": 7}


def test_a_job_whose_time_limit_is_longer_than_a_pilot_lives_does_not_fit_it() -> None:
    pilot = Capacity(1, 0, "slurm", lives_s=600.0)
    assert pilot.has(1, 0, "", "", 600.0)
    assert not pilot.has(1, 0, "", "", 601.0)
    assert pilot.has(1, 0, "", "", 0.0)  # none was said
    assert not pilot.has(1, 0, "local")
    # What is asked of a GPU fits until one was seen that is smaller.
    assert not pilot.has(1, 40_000)
    assert replace(pilot, seen=False).has(1, 40_000, "", "A100")
    assert pilot.has(1, 0, "slurm")
