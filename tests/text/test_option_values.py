"""Task arrays and environments, as options give them."""

from __future__ import annotations

import pytest

from postroom.errors import PostroomError
from postroom.text.option_values import environment, parse_array


def test_arrays_have_both_ends_and_a_step() -> None:
    assert list(parse_array("2-9:3")) == [2, 5, 8]
    assert list(parse_array("1-3")) == [1, 2, 3]


@pytest.mark.parametrize("text", ["9-1", "1-9:0", "5", "a-b", "1-", "0-100000"])
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(PostroomError):
        parse_array(text)


def test_an_environment_keeps_later_equals_signs() -> None:
    assert environment(["A=1=2", "B="]) == {"A": "1=2", "B": ""}
    for wrong in ("A", "=1"):
        with pytest.raises(PostroomError, match="NAME=VALUE"):
            environment([wrong])
