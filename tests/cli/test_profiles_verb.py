from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroom.cli.profiles import command
from postroom.errors import PostroomError
from postroom.gpus.memory.profiles import Kind, ProfileRow, Profiles


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profiles:
    monkeypatch.setenv("POSTROOM_PROFILES", str(tmp_path / "profiles"))
    store = Profiles()
    store.add(
        Kind("a.py::train", "v", {"batch": 8}), ProfileRow({"batch": 8}, 6144, 0, 12.5, runs=2)
    )
    store.add(Kind("a.py::train", "v", {"x": [3, "f4"]}), ProfileRow({"x": [3, "f4"]}, None, 2048))
    store.add(Kind("b.py::train", "v"), ProfileRow({}, 512, runs=1))
    return store


def said(*words: str) -> str:
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_profiles_are_listed(profiles: Profiles) -> None:
    head, train, test = said().splitlines()
    assert head.split()[0] == "PEAK"
    assert train.split()[:4] == ["6G", "12.5", "2", "2"]
    assert test.endswith("b.py::train")
    assert [row["type"] for row in json.loads(said("list", "--json"))] == [
        "a.py::train",
        "b.py::train",
    ]


def test_one_is_shown_by_the_end_of_its_name(profiles: Profiles) -> None:
    shown = said("show", "a.py::train")
    assert "batch=8" in shown
    assert "x=3xf4" in shown
    assert "2G" in shown
    with pytest.raises(PostroomError, match="no type"):
        said("show", "nothing")
    with pytest.raises(PostroomError, match="more than one"):
        said("show", "train")


def test_what_is_forgotten_is_gone(profiles: Profiles) -> None:
    said("forget", "a.py::train")
    assert [profile.type for profile in profiles.all()] == ["b.py::train"]
    said("forget", "--all")
    assert profiles.all() == []
    assert CliRunner().invoke(command, ["forget"]).exit_code == 2
