"""Which kind of job a call is."""

from __future__ import annotations

import numpy as np

from postroom.functions.function_kind import WORD_LIMIT, call_of, code_of, type_of


def plain(x: int) -> int:
    return x + 1


def test_only_what_may_set_sizes_makes_another_kind() -> None:
    arguments = {"x": np.zeros((3, 4), np.float32), "lr": 0.1, "n": 3, "f": print, "m": "net"}
    assert call_of(arguments) == {"x": [3, 4, "float32"], "n": 3, "m": "net"}
    assert call_of(arguments, ["lr"]) == {"lr": 0.1}


def test_long_texts_are_data_and_containers_count_by_their_length() -> None:
    arguments = {"text": "x" * (WORD_LIMIT + 1), "files": ["a", "b"], "flag": True}
    assert call_of(arguments) == {"files": [2, "list"], "flag": True}


def test_a_function_is_named_by_its_file() -> None:
    assert type_of(plain) == f"{__file__}::plain"


def test_only_code_makes_another_version() -> None:
    def same(x: int) -> int:  # a comment does not count
        return x + 1

    def other(x: int) -> int:
        return x + 2

    versions = [code_of(function) for function in (same, other)]
    assert versions[0] != versions[1]
    assert code_of(same) == versions[0]
