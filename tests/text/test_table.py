"""Tables of text."""

from __future__ import annotations

from postroom.text.table import cut, table_lines


def test_columns_are_aligned_and_lines_end_without_blanks() -> None:
    assert table_lines([["A", "B"], ["long", "x"], ["1", ""]], indent=" ") == [
        " A     B",
        " long  x",
        " 1",
    ]
    assert table_lines([]) == []


def test_lines_are_cut_to_the_width() -> None:
    assert table_lines([["abc", "defgh"]], width=7) == ["abc  d…"]
    assert (cut("abc", 3), cut("abcd", 3), cut("abc", 0)) == ("abc", "ab…", "…")


def test_a_cell_cannot_break_its_line_or_steer_the_terminal() -> None:
    assert table_lines([["a\nb\x1b[2J", "c"]]) == ["a b\\x1b[2J  c"]
