"""The administrator's file: what it may say, and who may write it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.gpus.ledger.ledger_rules import FILE, Limit, parse_rules, read_rules

TEXT = """
half_life = "2d"
patience = "1h"
[everybody]
cards = 4
[users.alice]
cards = 6
memory = "200G"
hours = 24
[groups.students]
cards = 8
"""


def test_rules_are_read() -> None:
    rules = parse_rules(TEXT)
    assert (rules.half_life_s, rules.patience_s) == (2 * 86_400, 3600)
    assert rules.everybody == Limit(cards=4)
    assert rules.users == {"alice": Limit(6, 200 * 1024, 24)}
    assert rules.groups == {"students": Limit(cards=8)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("half_live = 3", "'half_live' is unknown: use half_life"),
        ("[users.bob]\ncard = 1", r"\[users.bob\] has 'card': use cards, memory and hours"),
        ("[everybody]\ncards = -1", "is not a whole number"),
        ("[everybody]\nhours = true", "is not a number above 0"),
        ("users = 3", r"write \[users.NAME\]"),
        ("half_life = 'soon'", "is not a duration"),
        ("= 3", "Invalid"),
    ],
)
def test_what_is_wrong_in_them_is_named_and_they_limit_nothing(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / FILE).write_text(text)
    os.chmod(tmp_path / FILE, 0o644)
    rules = read_rules(str(tmp_path))
    assert not rules.users and rules.everybody == Limit()
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(rules.problem)


def test_a_file_that_others_can_write_to_does_not_count(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(TEXT)
    os.chmod(tmp_path / FILE, 0o666)
    assert "others than its owner can write to it" in read_rules(str(tmp_path)).problem
    os.chmod(tmp_path / FILE, 0o644)
    assert read_rules(str(tmp_path)).everybody == Limit(cards=4)
    os.rename(tmp_path / FILE, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / FILE)
    assert read_rules(str(tmp_path)).everybody == Limit()


def test_without_a_file_nobody_is_limited(tmp_path: Path) -> None:
    rules = read_rules(str(tmp_path))
    assert rules.caps([0, 1]) == {} and not rules.problem
