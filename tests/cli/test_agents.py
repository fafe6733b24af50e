"""`postroom agents`: which agents and which base its words mean; nothing is started here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroom.cli.agents import command
from postroom.store.base import Base


def call(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def test_a_base_without_agents_says_how_to_start_one(base: Base) -> None:
    assert f"postroom up {base.root}" in call("list", base.root).stdout
    assert json.loads(call("list", base.root, "--json").stdout) == []
    assert call("stop", "-b", base.root).stdout == "no agent is running\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["start"], "start COUNT"),
        (["start", "none", "x"], "is not a number of agents"),
        (["start", "0", "x"], "is not a number of agents"),
        (["start", "1", "x", "y"], "start COUNT"),
        (["start", "x", "y", "--gpus", "0"], "start COUNT"),
        (["add"], "add [BASE] GPUS"),
        (["remove"], "name the agents"),
    ],
)
def test_what_is_missing_is_said(words: list[str], error: str, tmp_path: Path) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert error in done.output


def test_the_first_word_is_the_base_only_if_it_is_a_folder_with_one(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(base.root).parent)
    monkeypatch.setenv("POSTROOM_BASE", "base")
    for words in (["drain", "7"], ["drain", "base", "7"], ["drain", "-b", "base", "7"]):
        done = call(*words)
        assert "there is no agent '7'" in str(done.exception)
    assert "no base" in str(call("drain", "./nowhere", "7").exception)
