"""The table of a batch, from its folders alone."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from postroom.batch.batch_table import (
    Row,
    TableError,
    arguments_of,
    as_csv,
    as_json,
    as_plot,
    as_text,
    average,
    read_table,
    sort_rows,
)
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


def a_job(output: Path, **arguments: object) -> JobFolder:
    folder = JobFolder(str(output / "job_1"))
    folder.begin()
    folder.tell({"name": "job_1", "command": "=cmd", "arguments": json.dumps(arguments)})
    folder.tell({"seconds": 1.5, "outcome": "failed", "exit": 3})
    folder.finish(ok=False)
    return folder


def test_no_argument_and_no_pattern_replaces_a_column(tmp_path: Path) -> None:
    folder = a_job(tmp_path, outcome="fine", folder=7, lr=0.1)
    Path(folder.out).write_text("exit: 9\nlr: 8\nloss: 1\n")
    patterns = [r"exit: (\d)", r"lr: (\d)", r"loss: (\d)"]
    (row,) = read_table(str(tmp_path), patterns)
    assert (row["outcome"], row["arg.outcome"]) == ("failed", "fine")
    assert (row["folder"], row["arg.folder"]) == (folder.path, 7)
    assert (row["exit"], row["log.exit"]) == (3, 9)
    assert (row["lr"], row["log.lr"], row["loss"]) == (0.1, 8, 1)
    (read,) = csv.DictReader(io.StringIO(as_csv([row])))
    assert (read["outcome"], read["arg.outcome"]) == ("failed", "fine")
    with pytest.raises(TableError, match="same column"):
        read_table(str(tmp_path), [r"loss: (\d)", r"loss=x(\d)"])


def test_json_has_no_nan(tmp_path: Path) -> None:
    folder = a_job(tmp_path, lr=float("nan"))
    Path(folder.out).write_text("loss: inf\n")
    text = as_json(read_table(str(tmp_path), [r"loss: (.*)"]))
    assert "NaN" not in text and "Infinity" not in text
    assert [json.loads(text)[0][key] for key in ("lr", "loss")] == [None, None]


def test_a_text_in_csv_is_no_formula_and_a_number_stays_one(tmp_path: Path) -> None:
    texts = ["=1+1", "+x", "-x", "@x", "\tx", "\rx"]
    a_job(tmp_path, lr=-0.5, **{f"a{place}": text for place, text in enumerate(texts)})
    (read,) = csv.DictReader(io.StringIO(as_csv(read_table(str(tmp_path))), newline=""))
    assert read["lr"] == "-0.5"
    assert read["command"] == "'=cmd"
    safe = [f"'{text}" for text in texts[:-1]] + ["'\nx"]  # a single \\r would end the row
    assert [read[f"a{place}"] for place in range(len(texts))] == safe


def test_a_fifo_for_a_log_or_info_holds_nobody_up(tmp_path: Path) -> None:
    folder = a_job(tmp_path, lr=1)
    os.mkfifo(folder.out)
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "other" / "INFO")
    assert [row["lr"] for row in read_table(str(tmp_path), ["loss: (.*)"])] == [1]


def test_arguments_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path / "job_1"))
    folder.begin()
    folder.tell({"name": "job_1", "arguments": "{not json"})
    (row,) = read_table(str(tmp_path))
    assert row["name"] == "job_1"


def test_a_plot_shows_two_columns(output: Path) -> None:
    rows = read_table(str(output), [r"loss: (.*)"])
    drawn = as_plot(rows, "bs", "loss")
    assert drawn.startswith(b"<svg ") and drawn.count(b"<circle ") == 3
    with pytest.raises(TableError, match="no job has a number"):
        as_plot(rows, "bs", "name")


ROWS: list[Row] = [
    {"name": f"job_{n}", "outcome": "ok", "lr": lr, "seed": seed, "loss": loss}
    for n, (lr, seed, loss) in enumerate(
        [(0.1, 1, 4.0), (0.1, 2, 6.0), (10, 1, 1.0), (10, 2, ""), (1, 1, 0.5)]
    )
]


def test_rows_are_sorted_by_numbers_and_those_without_one_come_last() -> None:
    assert [row["loss"] for row in sort_rows(ROWS, ["loss"])] == [0.5, 1.0, 4.0, 6.0, ""]
    assert [row["loss"] for row in sort_rows(ROWS, ["-loss"])] == [6.0, 4.0, 1.0, 0.5, ""]
    found = sort_rows(ROWS, ["-seed", "lr"])
    assert [(row["seed"], row["lr"]) for row in found] == [
        (2, 0.1),
        (2, 10),
        (1, 0.1),
        (1, 1),
        (1, 10),
    ]
    assert sort_rows([{"a": "job_10"}, {"a": "job_9"}], ["a"])[0] == {"a": "job_9"}
    with pytest.raises(TableError, match="no column nothing; columns: name, outcome, lr"):
        sort_rows(ROWS, ["nothing"])


def test_figures_are_averaged_over_seeds() -> None:
    first, second, third = average(ROWS, ["lr"], ["lr", "seed"])
    assert first == {"lr": 0.1, "jobs": 2, "ok": 2, "loss": 5.0, "loss.std": pytest.approx(2**0.5)}
    assert second == {"lr": 10, "jobs": 2, "ok": 2, "loss": 1.0}
    assert third == {"lr": 1, "jobs": 1, "ok": 1, "loss": 0.5}


def test_arguments_are_known_from_the_folders(output: Path) -> None:
    assert arguments_of(str(output)) == ["bs"]


def test_a_plot_has_a_line_for_each_group_and_no_zero_on_a_log_axis() -> None:
    drawn = as_plot(ROWS, "lr", "loss", by=["seed"], log="x")
    assert drawn.count(b"<circle ") == 4 and b"seed 1" in drawn and b"seed 2" in drawn
    below = [{"lr": 0.0, "loss": 1.0}, {"lr": 1.0, "loss": 2.0}]
    assert as_plot(below, "lr", "loss", log="x").count(b"<circle ") == 1
    with pytest.raises(TableError, match="no job has a number above 0"):
        as_plot(below[:1], "lr", "loss", log="xy")
