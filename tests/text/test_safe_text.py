"""Text from jobs is safe to show, whole or in pieces."""

from __future__ import annotations

import pytest

from postroom.text.safe_text import (
    complete_length,
    final_text,
    for_terminal,
    printable,
    strip_escapes,
)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("bell\x07", "bell\u2407"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x85b", "a\\u0085b"),
        ("one\r\ntwo\n", "one\ntwo\n"),
        ("tab\tstays", "tab\tstays"),
        ("\0\0holes", "holes"),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out_or_shown(raw: str, shown: str) -> None:
    assert strip_escapes(raw) == shown


def test_of_a_progress_bar_the_last_state_is_left() -> None:
    assert final_text("10%\r20%\r30%\ndone\r\n50%\r") == "30%\ndone\n50%"


@pytest.mark.parametrize("text", ["ä€𝄞", "a\x1b[31mb\x1b[0m", "x\x1b]0;t\x07y", "one\r\ntwo"])
def test_in_whatever_pieces_it_comes_the_text_is_the_same(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        first = complete_length(data[:cut])
        assert first <= cut
        pieces = data[:first].decode(), data[first:].decode()
        assert strip_escapes(pieces[0]) + strip_escapes(pieces[1]) == strip_escapes(text)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        ("\x1b[38:2::1:2:3mred", "\x1b[38:2::1:2:3mred\x1b[0m"),
        ("10%\r20%\r\x1b[Kdone\n", "10%\r20%\rdone\n"),
        ("\x1b]0;\x1b[31mtitle\x07", "\x1b[31mtitle\u2407\x1b[0m"),
        ("\x1b[?1049h\x1bc\x1b[6nx", "x"),
        ("\x1b[31", "[31"),
        ("ä\x9b2J", "ä\\u009b2J"),
    ],
)
def test_a_log_on_a_terminal_keeps_its_colours_only(raw: str, shown: str) -> None:
    data = raw.encode()
    for cut in range(len(data) + 1):
        printed = b"".join(for_terminal([data[:cut], data[cut:]])).decode()
        assert printed.replace("\u241b", "") == shown


def test_on_a_terminal_every_control_character_is_shown() -> None:
    assert printable("a\x1b[31mb\rc\u202e\nd") == "a\\x1b[31mb\\x0dc\\x202e\nd"
