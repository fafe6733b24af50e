"""A part of other projects' own tests, over our adapters; `make doors` runs all of them."""

from __future__ import annotations

import os

import pytest

from .foreign import SUITES, counts, run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SUITES)
def test_their_own_tests_pass_over_our_adapter(name: str) -> None:
    needs = SUITES[name].needs
    if needs not in {"", *os.environ}:
        pytest.skip(f"the wheel has no tests: {needs} says where those of the source release are")
    done = run(name, quick=True)
    assert done.returncode == 0, done.stdout
    assert counts(done)["passed"] >= SUITES[name].at_least, done.stdout
