"""What JSON has no word for becomes null."""

from __future__ import annotations

import json

from postroom.text.strict_json import strict_json


def test_what_is_not_a_finite_number_becomes_null() -> None:
    value = {"a": float("nan"), "b": [float("inf"), (-float("inf"), 1.5)], "c": "nan", "d": {1: 2}}
    assert json.loads(strict_json(value)) == {
        "a": None,
        "b": [None, [None, 1.5]],
        "c": "nan",
        "d": {"1": 2},
    }
