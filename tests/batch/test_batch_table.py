"""The table of a batch, from its folders alone."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from postroom.batch.batch_table import TableError, as_csv, as_json, as_plot, as_text, read_table
from postroom.commands.job_folder import JobFolder


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for place in (10, 9, 2):
        folder = JobFolder(str(tmp_path / f"job_{place}"))
        folder.begin()
        arguments = json.dumps({"bs": place})
        folder.tell({"name": folder.name, "command": f"train --bs {place}", "arguments": arguments})
        Path(folder.out).write_text(f"loss: 9\nloss: {1 / place:.3f}\n")
        Path(folder.err).write_text("\x1b[31mwarning\n")
        if place != 9:
            folder.tell({"seconds": 1.5, "outcome": "ok", "exit": 0})
            folder.finish(ok=place == 10)
    (tmp_path / "results.csv").write_text("")
    return tmp_path


def test_a_table_has_a_row_for_each_job_in_the_order_of_numbers(output: Path) -> None:
    rows = read_table(str(output))
    assert [row["name"] for row in rows] == ["job_2", "job_9", "job_10"]
    assert [row["outcome"] for row in rows] == ["ok", "running", "ok"]
    assert [row["bs"] for row in rows] == [2, 9, 10]


def test_a_pattern_finds_the_last_value_in_each_log(output: Path) -> None:
    rows = read_table(str(output), [r"loss: (.*)", r"first=loss: (\d)$"])
    assert [row["loss"] for row in rows] == [0.5, 0.111, 0.1]
    assert [row["first"] for row in rows] == [9, 9, 9]


def test_a_pattern_that_is_none_is_refused(output: Path) -> None:
    with pytest.raises(TableError, match="not a regular expression"):
        read_table(str(output), ["loss: ("])


def test_csv_json_and_text_hold_the_same_rows(output: Path) -> None:
    rows = read_table(str(output), [r"loss: (.*)"])
    read = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert [row["loss"] for row in read] == ["0.5", "0.111", "0.1"]
    assert [row["loss"] for row in json.loads(as_json(rows))] == [0.5, 0.111, 0.1]
    lines = as_text(rows).splitlines()
    assert len(lines) == 4
    assert lines[0].split()[0] == "name"
    assert "train --bs 10" in lines[3]


def test_a_plot_shows_two_columns(output: Path) -> None:
    rows = read_table(str(output), [r"loss: (.*)"])
    drawn = as_plot(rows, "bs", "loss")
    assert drawn.startswith("<svg ") and drawn.count("<circle ") == 3
    with pytest.raises(TableError, match="no job has a number"):
        as_plot(rows, "bs", "name")
