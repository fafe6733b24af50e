from __future__ import annotations

import pytest

from postroom.errors import PostroomError
from postroom.text.byte_sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("500M", 500 << 20), ("20G", 20 << 30), ("1.5 GiB", 3 << 29), ("2tb", 2 << 40), ("8k", 8192)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "5", "5X", "-1G", "G", "1e3G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(PostroomError, match="write 500M, 20G"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (20 << 20, "20 MiB"), (5 << 30, "5 GiB"),
     (5 << 40, "5120 GiB")],
)  # fmt: skip
def test_sizes_are_shown_in_the_largest_unit_that_fits(size: int, text: str) -> None:
    assert format_bytes(size) == text
