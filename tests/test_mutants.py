"""The mutants still apply; that each is caught, `python -m tests.mutants` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from .mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_mutant_still_applies(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


def test_no_rule_is_removed_twice_in_the_same_words() -> None:
    assert len({mutant.rule for mutant in MUTANTS}) == len(MUTANTS) >= 20
