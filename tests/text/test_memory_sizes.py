"""Amounts of memory: read and shown."""

from __future__ import annotations

import pytest

from postroom.errors import GpuError
from postroom.text.sizes import from_mib, to_mib


@pytest.mark.parametrize(
    ("text", "mib"), [("8G", 8192), ("8 GiB", 8192), ("1.5g", 1536), ("500M", 500)]
)
def test_sizes_are_read_with_their_units(text: str, mib: int) -> None:
    assert to_mib(text) == mib


@pytest.mark.parametrize("text", ["", "lots", "0G", "-1G", "8T", "1e99", "nan", "inf"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(GpuError, match="write 8G or 500M"):
        to_mib(text)


@pytest.mark.parametrize("text", ["6", " 6 ", "1.5", "8000"])
def test_a_number_without_its_unit_is_refused_with_both(text: str) -> None:
    number = text.strip()
    with pytest.raises(GpuError, match=f"{number} of what. write {number}G or {number}M"):
        to_mib(text)


def test_sizes_are_shown_in_the_shortest_form() -> None:
    assert [from_mib(mib) for mib in (500, 1536, 8192)] == ["500M", "1.5G", "8G"]
