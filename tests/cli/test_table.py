"""`postroom table`: tables and plots of a batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroom.cli.table import command
from postroom.commands.job_folder import JobFolder
from postroom.errors import PostroomError


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for number in (1, 2):
        folder = JobFolder(str(tmp_path / "out" / f"job_{number}"))
        folder.begin()
        folder.tell({"name": folder.name, "command": "x", "arguments": json.dumps({"lr": number})})
        Path(folder.out).write_text(f"loss: {number / 10}\n")
        folder.finish(ok=True)
    monkeypatch.chdir(tmp_path)
    return "out"


def test_a_table_is_printed_as_text_csv_and_json(output: str) -> None:
    for form in ([], ["--csv"], ["--json"]):
        done = CliRunner().invoke(command, [output, "--pattern", "loss: (.*)", *form])
        assert done.exit_code == 0 and "0.2" in done.stdout


def test_a_plot_is_a_picture_and_nothing_else(output: str) -> None:
    words = [output, "--pattern", "loss: (.*)", "--plot", "lr", "loss"]
    assert CliRunner().invoke(command, words).exit_code == 0
    assert Path("plot.svg").read_text().startswith("<svg ")
    done = CliRunner().invoke(command, [*words, "--svg", "plot.pdf"])
    assert done.exit_code == 2 and "a name that ends in .svg" in done.output
    assert not Path("plot.pdf").exists()


def test_a_folder_without_jobs_and_a_plot_that_cannot_be_written_are_said(
    output: str, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    said = CliRunner().invoke(command, [str(empty)]).stderr
    assert said == f"there are no jobs in {empty}\n"
    words = [output, "--pattern", "loss: (.*)", "--plot", "lr", "loss", "--svg", "/nowhere/x.svg"]
    with pytest.raises(PostroomError, match=r"cannot write /nowhere/x.svg: No such file"):
        CliRunner().invoke(command, words, standalone_mode=False, catch_exceptions=False)


def test_without_a_batch_it_says_which_folder_it_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 2 and "name the output folder of a `postroom run`" in done.output
