"""Results side by side: what becomes a cell, what is stacked, and what is written for each job."""

from __future__ import annotations

import datetime
import os
import zipfile
from argparse import Namespace
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.errors import PostroomError
from postroom.parcel.columns import cells, merged, save_arrays

Pair = namedtuple("Pair", "a b")


class Colour(Enum):
    RED = 1


@dataclass
class Config:
    lr: float
    more: Any = None


def saved(path: Path, values: list[Any]) -> dict[str, np.ndarray[Any, Any]]:
    numbers = [n + 5 for n in range(len(values))]
    save_arrays(str(path), {"job": numbers}, numbers, values)
    with np.load(path, allow_pickle=False) as archive:
        found = {name: archive[name] for name in archive.files}
    assert found.pop("job").tolist() == numbers
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, {"result": 3}),
        ((1, "a"), {"result.0": 1, "result.1": "a"}),
        (Pair(1, {"c": 2}), {"a": 1, "b.c": 2}),
        (Config(0.1, Namespace(x=1, y=[2])), {"lr": 0.1, "more.x": 1}),
        ({"c": Colour.RED, "p": Path("/x")}, {"c": "RED", "p": "/x"}),
        ({"d": datetime.date(2020, 1, 1)}, {"d": datetime.date(2020, 1, 1)}),
        ({"z": np.array(2.5), "v": np.ones(2), "n": None, "s": {1}}, {"z": 2.5}),
        (None, {}),
    ],
    ids=repr,
)
def test_what_fits_a_cell(value: Any, expected: dict[str, Any]) -> None:
    assert cells(value) == expected


def test_a_name_that_is_taken_gets_its_tables_prefix_in_every_row() -> None:
    rows = merged({"": [{"a": 1}, {}], "b.": [{"a": 2, "c": 3}, {"a": 4}]})
    assert rows == [{"a": 1, "b.a": 2, "c": 3}, {"b.a": 4}]


def test_results_of_one_shape_are_stacked_and_others_stand_alone(tmp_path: Path) -> None:
    values = [
        {"x": np.full((2, 2), n), "y": np.ones(n), "n": n if n else 0.5, "t": "a" * n}
        for n in range(3)
    ]
    found = saved(tmp_path / "r.npz", [*values[:2], values[2] | {"only": 1}])
    assert found["x"].shape == (3, 2, 2)
    assert found["n"].tolist() == [0.5, 1, 2]
    assert found["t"].tolist() == ["", "a", "aa"]
    assert found["y.000000007"].tolist() == [1, 1]
    assert found["only.000000007"] == 1
    assert "y" not in found


def test_numbers_and_texts_are_not_mixed(tmp_path: Path) -> None:
    found = saved(tmp_path / "r.npz", [{"k": 1}, {"k": "a"}])
    assert sorted(found) == ["k.000000005", "k.000000006"]


def test_tensors_that_numpy_lacks_become_plain_floats(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = [{"b": torch.full((2,), 1.5, dtype=torch.bfloat16), "s": torch.eye(2).to_sparse()}]
    found = saved(tmp_path / "r.npz", values)
    assert found["b"].dtype == np.float32
    assert found["b"].tolist() == [[1.5, 1.5]]
    assert "s" not in found


def test_what_no_array_can_hold_is_left_out(tmp_path: Path) -> None:
    values = [{"o": np.array([None]), "l": [[1], [2, 3]], "e": [], "d": {"x": 1}, "big": 1 << 99}]
    assert sorted(saved(tmp_path / "r.npz", values)) == ["d.x"]


def test_names_stay_within_the_folder_and_are_unique(tmp_path: Path) -> None:
    values = [{"../x": 1, "_x": 2, "job": 3, "a/b": 4, "": 5}]
    found = saved(tmp_path / "r.npz", values)
    assert sorted(found) == ["_", "_x", "_x-2", "a_b", "result.job"]
    with zipfile.ZipFile(tmp_path / "r.npz") as archive:
        assert archive.testzip() is None


def test_a_file_is_whole_or_not_there_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    path.write_text("mine")
    with pytest.raises(PostroomError, match="exists"):
        saved(path, [1])
    assert path.read_text() == "mine"
    with pytest.raises(PostroomError, match=r"cannot write .*No such file"):
        saved(tmp_path / "no" / "r.npz", [1])
    assert os.listdir(tmp_path) == ["r.npz"]
