"""Sweeps: which values, which combinations, which commands."""

from __future__ import annotations

import pytest

from postroom.commands.sweep import SweepError, compile_condition, sweep


def commands(*assignments: str, template: str = "t {x}", where: str = "") -> list[str]:
    return [line.command for line in sweep(template, assignments, where)]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ("1,2,3", ["1", "2", "3"]),
        ("0.1,0.01", ["0.1", "0.01"]),
        ("32:256:x2", ["32", "64", "128", "256"]),
        ("1:4", ["1", "2", "3", "4"]),
        ("0:1:0.25", ["0", "0.25", "0.5", "0.75", "1"]),
        ("0.1:1:0.1", ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1"]),
        ("-5:-1", ["-5", "-4", "-3", "-2", "-1"]),
        ("-5:-1:2", ["-5", "-3", "-1"]),
        ("-0.3:-0.1:0.1", ["-0.3", "-0.2", "-0.1"]),
        ("1:3,10", ["1", "2", "3", "10"]),
        ("adam,sgd", ["adam", "sgd"]),
        ("host:image:tag", ["host:image:tag"]),
    ],
)
def test_values_are_lists_and_ranges(values: str, texts: list[str]) -> None:
    assert commands(f"x={values}") == [f"t {text}" for text in texts]


def test_every_combination_comes_once_with_its_values() -> None:
    lines = list(sweep("t {a} {b} {a}", ["a=1,2", "b=x,y"]))
    assert [line.command for line in lines] == ["t 1 x 1", "t 1 y 1", "t 2 x 2", "t 2 y 2"]
    assert lines[1].arguments == {"a": 1, "b": "y"}


def test_a_condition_leaves_out_combinations() -> None:
    found = commands("lr=0.1,0.01", "bs=32:256:x2", template="{lr} {bs}", where="lr*bs<5")
    assert found == ["0.1 32", "0.01 32", "0.01 64", "0.01 128", "0.01 256"]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a < b", True),
        ("a == 1 and not b == 1", True),
        ("1 < a < 3", False),
        ("s in ['x', 'y']", True),
        ("s != 'x' or b % 2 == 0", True),
        ("-a + b // 2 > 0", False),
    ],
)
def test_conditions_are_arithmetic_and_comparisons(text: str, holds: bool) -> None:
    assert compile_condition(text, {"a", "b", "s"})({"a": 1, "b": 2, "s": "x"}) is holds


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.real",
        "a[0]",
        "(lambda: 1)()",
        "c > 1",
        "a ** 9",
        "f'{a}'",
        "a <",
        "a if a else b",
    ],
)
def test_anything_else_in_a_condition_is_refused(text: str) -> None:
    with pytest.raises(SweepError):
        compile_condition(text, {"a", "b"})


def test_a_condition_that_cannot_be_decided_says_for_which_values() -> None:
    with pytest.raises(SweepError, match="cannot be decided for"):
        compile_condition("a * 2 < 3", {"a"})({"a": "text"})


@pytest.mark.parametrize(
    "bad",
    ["x", "x=", "=1", "a b=1", "x=1:0", "x=0:9:x2", "x=1:9:x1", "x=1:9:0", "x=1:inf:x2", "x=nan:3"],
)
def test_what_gives_no_values_is_refused(bad: str) -> None:
    with pytest.raises(SweepError):
        commands(bad)


def test_names_without_values_and_values_without_names_are_refused() -> None:
    with pytest.raises(SweepError, match=r"\{y\}"):
        commands("x=1", template="{x} {y}")
    with pytest.raises(SweepError, match="z has values"):
        commands("x=1", "z=1")
