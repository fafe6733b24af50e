"""Groups and records of pilots on disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from postroom.errors import BadFileError, PostroomError
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.pilot_records import (
    DEMAND_S,
    PilotDemand,
    PilotGroup,
    PilotGroups,
    PilotRecord,
    PilotState,
    change_groups,
    read_demand,
    read_groups,
    read_pilots,
    write_demand,
    write_pilot,
)


def test_groups_are_changed_one_after_another(tmp_path: Path) -> None:
    files, base = LocalFiles(), create_base(tmp_path / "base")
    assert read_groups(files, base) == PilotGroups()

    def add(name: str) -> None:
        def change(groups: PilotGroups) -> None:
            groups.groups[name] = PilotGroup("slurm", options=("-p", "gpu"))

        change_groups(files, base, change)

    add("a")
    add("b")
    assert list(read_groups(files, base).groups) == ["a", "b"]
    with pytest.raises(PostroomError, match="the name of a group"):
        add("../x")
    assert list(read_groups(files, base).groups) == ["a", "b"]
    Path(base.pilot_groups).write_text("{")
    with pytest.raises(BadFileError):
        read_groups(files, base)


def test_pilots_are_read_without_the_other_files_of_their_folder(tmp_path: Path) -> None:
    files, base = LocalFiles(), create_base(tmp_path / "base")
    change_groups(files, base, lambda groups: None)
    record = PilotRecord("slurm-10", "slurm", "slurm", PilotState.SERVING, "x", 1.0)
    write_pilot(files, base, record)
    Path(base.pilot_record("slurm-9")).write_text("garbage")
    assert read_pilots(files, base) == {"slurm-10": record}


def test_what_a_dead_master_said_of_waiting_jobs_counts_no_more(tmp_path: Path) -> None:
    files, base = LocalFiles(), create_base(tmp_path / "base")
    assert read_demand(files, base, time.time()) == {}
    write_demand(files, base, PilotDemand(100.0, {"slurm": 3}))
    assert read_demand(files, base, 101.0) == {"slurm": 3}
    assert read_demand(files, base, 100.0 + DEMAND_S) == {}
