"""Values that JSON can hold as they are."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from postroom.parcel.jsonable import copied, is_json, is_plain, plain_values, weight


@pytest.mark.parametrize("value", [None, True, 1, -1.5, "a", [], {"a": [1, {"b": None}]}])
def test_what_json_can_hold_is_kept_as_it_is(value: Any) -> None:
    assert is_json(value)
    assert is_plain(value)
    assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        1 << 63,
        math.nan,
        math.inf,
        "\u00e9",
        (1,),
        {1: 2},
        {"$a": 1},
        b"",
        np.float64(1),
        {"a": {1}},
    ],
)
def test_what_json_would_change_is_not(value: Any) -> None:
    assert not is_json(value)


def test_a_value_without_end_is_not_json() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert not is_json(endless)
    assert not is_plain(endless)


def test_an_encoded_value_is_not_plain() -> None:
    assert not is_plain({"a": [{"$array": "x"}]})


def test_equal_values_are_kept_once_and_unequal_ones_that_compare_equal_are_not() -> None:
    assert plain_values([{"a": 1}] * 3)["trees"] == [{"a": 1}]  # type: ignore[index]
    assert plain_values([1, 1.0, True])["trees"] == [1, 1.0, True]  # type: ignore[index]


def test_a_copy_shares_nothing_that_can_change() -> None:
    tree = {"a": [1, {"b": 2}]}
    copy = copied(tree)
    copy["a"][1]["b"] = 3
    assert tree == {"a": [1, {"b": 2}]}


def test_the_weight_is_about_the_bytes() -> None:
    assert weight({"x": np.zeros(1000), "y": "abc", "z": [1, 2]}) == 8000 + 3 + 16


def test_the_weight_of_an_object_counts_its_arrays() -> None:
    assert weight(SimpleNamespace(x=np.zeros(1000), lr=0.1)) > 8000


class Odd:
    nbytes = "many"


@pytest.mark.parametrize("value", [np.float32, Odd(), object(), {1, 2}, range(3)])
def test_whatever_a_value_is_it_can_be_weighed(value: Any) -> None:
    endless: list[Any] = [value]
    endless.append((endless, endless))
    assert weight({"x": value}) > 0
    assert weight(endless) > 0
