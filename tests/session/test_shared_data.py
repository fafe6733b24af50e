from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from postroom.session.shared_data import SharedData

torch = pytest.importorskip("torch")


def data() -> dict[str, Any]:
    return {"w": torch.zeros(2), "many": [torch.ones(1), 3], "x": np.ones(2)}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda d: d["w"].mul_(2), "shared['w']"),
        (lambda d: d["many"][0].add_(1), "shared['many'][0]"),
        (lambda d: d["w"][0:1].fill_(5), "shared['w']"),
        (lambda d: d["w"].requires_grad_(), "shared['w']"),
        (lambda d: setattr(d["w"], "grad", torch.ones(2)), "shared['w']"),
        (lambda d: d.update(w=torch.zeros(2)), "shared['w']"),
        (lambda d: d["many"].append(4), "the items of its shared data"),
        (lambda d: d.pop("x"), "the items of its shared data"),
    ],
)
def test_a_change_is_found_and_named(change: Callable[[dict[str, Any]], Any], name: str) -> None:
    shared = SharedData(data())
    change(shared.value)
    assert shared.changed() == name


def test_reading_changes_nothing() -> None:
    shared = SharedData(data())
    value = shared.value
    _ = value["w"] * 2 + value["w"].sum(), value["w"].clone().mul_(3), list(value["many"])
    assert shared.changed() == ""


def test_of_many_items_the_tensors_are_compared() -> None:
    shared = SharedData({"numbers": list(range(1000)), "w": torch.zeros(1)})
    shared.value["numbers"].append(1)
    assert shared.changed() == ""
    shared.value["w"].add_(1)
    assert shared.changed() == "shared['w']"
