from __future__ import annotations

import pytest

from postroom.system.frozen import Frozen, replace


class Point(Frozen):
    x: int
    y: int = 0


def test_a_value_is_equal_by_its_fields_and_can_be_a_key() -> None:
    assert Point(1) == Point(1, 0) == Point(y=0, x=1)
    assert Point(1) != Point(2)
    assert {Point(1): "a"}[Point(1, 0)] == "a"
    assert repr(Point(1)) == "Point(x=1, y=0)"


def test_values_of_two_classes_are_never_equal() -> None:
    class Place(Frozen):
        x: int
        y: int = 0

    assert Place(1) != Point(1)


def test_a_value_never_changes() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    assert replace(point, x=2) == Point(2)
    assert point == Point(1)


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, 3), {}), ((1,), {"x": 2}), ((1,), {"z": 2})]
)
def test_fields_must_be_given_once_each(values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="Point has the fields x, y"):
        Point(*values, **named)
