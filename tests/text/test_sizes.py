"""Amounts of disk space and of memory: read and shown."""

from __future__ import annotations

import pytest

from postroom.errors import GpuError, PostroomError
from postroom.text.sizes import format_bytes, from_mib, parse_bytes, to_mib


@pytest.mark.parametrize(
    ("text", "size"),
    [("500M", 500 << 20), ("20G", 20 << 30), ("1.5 GiB", 3 << 29), ("2tb", 2 << 40), ("8k", 8192)],
)
def test_disk_space_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "5", "5X", "-1G", "G", "1e3G", "9" * 400 + "G"])
def test_what_is_not_disk_space_is_refused(text: str) -> None:
    with pytest.raises(PostroomError, match="write 500M, 20G"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (20 << 20, "20 MiB"), (5 << 30, "5 GiB"),
     (5 << 40, "5120 GiB")],
)  # fmt: skip
def test_disk_space_is_shown_in_the_largest_unit_that_fits(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("text", "mib"), [("8G", 8192), ("8 GiB", 8192), ("1.5g", 1536), ("500M", 500), ("500mb", 500)]
)
def test_memory_is_read_with_its_unit(text: str, mib: int) -> None:
    assert to_mib(text) == mib


@pytest.mark.parametrize(
    "text", ["", "lots", "0G", "-1G", "8T", "8K", "1e99", "nan", "inf", "9" * 400 + "G"]
)
def test_what_is_not_memory_is_refused_with_examples(text: str) -> None:
    with pytest.raises(GpuError, match="write 8G or 500M"):
        to_mib(text)


@pytest.mark.parametrize("text", ["6", " 6 ", "1.5", "8000"])
def test_a_number_without_its_unit_is_refused_with_both(text: str) -> None:
    number = text.strip()
    with pytest.raises(GpuError, match=f"{number} of what. write {number}G or {number}M"):
        to_mib(text)


def test_memory_is_shown_in_the_shortest_form() -> None:
    assert [from_mib(mib) for mib in (500, 1536, 8192)] == ["500M", "1.5G", "8G"]
