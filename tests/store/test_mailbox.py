"""Letters: half a letter is no letter, and neither is a spoilt one."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from postroom.store.base import create_base
from postroom.store.files import LETTER_LIMIT, LocalFiles
from postroom.store.mailbox import InHand, Letter, is_plain_name, put_up, read_in_hand, read_letter

LETTER = Letter(3, 17, "20250101-000000-abcdef", 256, 300, 310, attempt=2, failed=1)


def sealed(fields: object) -> bytes:
    """A letter with a right length and checksum, whatever it says."""
    body = (
        fields if isinstance(fields, bytes) else json.dumps(fields, separators=(",", ":")).encode()
    )
    return b"POSTROOM %04d %08x %s" % (len(body), zlib.crc32(body), body)


def test_a_letter_comes_back_as_it_was_written() -> None:
    assert Letter.decode(LETTER.encode()) == LETTER


def test_the_largest_letter_can_be_read_whole() -> None:
    large = Letter(10**12, 10**12, "r" * 100, 10**9, 10**9, 10**9 + 512, 10**6, 10**6)
    assert len(large.encode()) < LETTER_LIMIT


def test_every_beginning_of_a_letter_is_no_letter() -> None:
    data = LETTER.encode()
    for size in range(len(data)):
        assert Letter.decode(data[:size]) is None


def test_every_flipped_bit_makes_it_no_letter() -> None:
    data = LETTER.encode()
    for position in range(len(data) * 8):
        spoilt = bytearray(data)
        spoilt[position // 8] ^= 1 << position % 8
        assert Letter.decode(bytes(spoilt)) is None


def test_what_is_left_of_a_longer_letter_makes_it_no_letter() -> None:
    assert Letter.decode(LETTER.encode() + b"}") is None


def test_a_letter_over_half_of_an_older_one_is_no_letter() -> None:
    older = LETTER._replace(serial=16).encode()
    newer = LETTER.encode()
    for cut in range(1, len(newer)):
        mixed = newer[:cut] + older[cut:]
        assert mixed in (older, newer) or Letter.decode(mixed) is None


FIELDS = json.loads(LETTER.encode()[len("POSTROOM 0000 00000000 ") :])


@pytest.mark.parametrize(
    "change",
    [
        {"stop": 300}, {"first": -1}, {"parcel": 301}, {"attempt": 0}, {"epoch": "3"},
        {"serial": 1.5}, {"run": "../../etc"}, {"run": ""}, {"run": "a/b"}, {"run": 7},
        {"first": True, "parcel": 0}, {"unknown": 1}, {"run": "r" * 101}, {"run": "ü"},
    ],
)  # fmt: skip
def test_a_sealed_letter_that_makes_no_sense_is_no_letter(change: dict[str, object]) -> None:
    assert Letter.decode(sealed(FIELDS)) == LETTER
    assert Letter.decode(sealed({**FIELDS, **change})) is None


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"{}", b"\xff", b'{"epoch":', b"[" * 900, LETTER.encode()[23:] + b" "]
)
def test_garbage_with_a_good_seal_is_no_letter(body: bytes) -> None:
    assert Letter.decode(sealed(body)) is None


def test_letters_have_names_of_their_own() -> None:
    names = {Letter(e, s, "r", 0, 0, 1).letter_id for e in range(12) for s in range(12)}
    assert len(names) == 144


def test_plain_names_cannot_leave_their_folder() -> None:
    assert all(is_plain_name(name) for name in ("0", "gpu-1", "20250101-000000-abcdef"))
    bad = ("", ".", "..", "a/b", "a.b", "a b", "a\n", "ü", "x" * 101)
    assert not any(is_plain_name(name) for name in bad)


def test_the_line_in_hand_has_one_length_and_comes_back() -> None:
    lines = [InHand("idle"), InHand("running", "12.345", 10**9, 1.7e9, 10**9)]
    assert len({len(line.encode()) for line in lines}) == 1
    assert [InHand.decode(line.encode()) for line in lines] == lines


@pytest.mark.parametrize("data", [b"", b"idle", b"idle - x 0 0\n", b"\xff" * 40, b"a b c d e f\n"])
def test_a_spoilt_line_in_hand_says_nothing(data: bytes) -> None:
    assert InHand.decode(data) is None


def test_an_absent_or_huge_mailbox_holds_no_letter(tmp_path: Path) -> None:
    base, files = create_base(tmp_path / "base"), LocalFiles()
    assert read_letter(files, base, "0") is None
    assert read_in_hand(files, base, "0") is None
    Path(base.mailbox("0")).write_bytes(b"x" * (LETTER_LIMIT + 1))
    assert read_letter(files, base, "0") is None


def test_a_mailbox_is_put_up_once(tmp_path: Path) -> None:
    base, files = create_base(tmp_path / "base"), LocalFiles()
    box = put_up(files, base, "0")
    assert box.size() == 0
    with pytest.raises(FileExistsError):
        put_up(files, base, "0")


def test_a_letter_is_not_touched_after_its_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader may have emptied the box by then, and would find a piece of it again."""
    import os

    base, files = create_base(tmp_path / "base"), LocalFiles()
    box = put_up(files, base, "0")
    real, reader = os.pwrite, files.open_box(base.mailbox("0"))
    assert reader is not None

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        written = real(fd, data, offset)
        assert Letter.decode(reader.read()) == LETTER
        reader.clear()
        return written

    monkeypatch.setattr(os, "pwrite", pwrite)
    box.write(LETTER.encode())
    assert box.size() == 0


class TestAShortenedLetter:
    def test_a_line_behind_a_letter_shortens_it(self) -> None:
        shorter, line = LETTER.shortened(303)
        assert (shorter.first, shorter.stop) == (300, 303)
        assert Letter.decode(LETTER.encode() + line) == shorter

    def test_half_a_line_and_a_spoilt_one_change_nothing(self) -> None:
        _, line = LETTER.shortened(303)
        for size in range(len(line)):
            assert Letter.decode(LETTER.encode() + line[:size]) == LETTER
        for position in range(8, len(line) * 8):
            spoilt = bytearray(line)
            spoilt[position // 8] ^= 1 << position % 8
            assert Letter.decode(LETTER.encode() + spoilt) == LETTER

    def test_a_letter_is_never_made_longer_nor_empty(self) -> None:
        for stop in (300, 310, 311):
            assert Letter.decode(LETTER.encode() + LETTER.shortened(stop)[1]) == LETTER

    def test_the_line_of_another_letter_changes_nothing(self) -> None:
        other = LETTER._replace(serial=16)
        assert Letter.decode(LETTER.encode() + other.shortened(303)[1]) == LETTER
