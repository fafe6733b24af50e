from __future__ import annotations

import os

import pytest

from postroom.gpus.ledger import lease_records
from postroom.gpus.ledger.protocol import LeaseRequest
from postroom.system import processes


def text_of_a_lease() -> bytes:
    entry = lease_records.new_entry(LeaseRequest(name="x", memory_mib=5), ("a", "b"), 1)
    change = {"cards": ("a",), "granted_at": 2.0, "keeper": processes.myself()}
    return lease_records.encode_request(entry) + lease_records.encode_change(change)


def test_a_lease_is_the_request_with_all_later_changes() -> None:
    entry = lease_records.decode(text_of_a_lease(), os.geteuid())
    assert entry is not None
    assert (entry.name, entry.memory_mib, entry.among) == ("x", 5, ("a", "b"))
    assert (entry.cards, entry.granted_at) == (("a",), 2.0)
    assert entry.keeper == processes.myself()


def test_a_line_that_is_still_being_written_is_ignored() -> None:
    text = text_of_a_lease()
    entry = lease_records.decode(text[:-1], os.geteuid())
    assert entry is not None
    assert entry.cards == ()


def test_text_that_is_not_a_lease_is_none() -> None:
    assert lease_records.decode(b"", 0) is None
    assert lease_records.decode(b"[]\n", 0) is None
    assert (
        lease_records.decode(text_of_a_lease().replace(b'"version":1', b'"version":9'), 0) is None
    )


@pytest.mark.parametrize(
    "line",
    [
        b'{"memory_mib":-8000}',  # others would be given more than there is
        b'{"memory_mib":0}',
        b'{"weight":-1e9}',  # it would count as less than nothing
        b'{"weight":NaN}',
        b'{"granted_at":Infinity}',
        b'{"asked_at":-1}',
        b'{"lasts_s":1e999}',
        b'{"count":-3}',
    ],
)
def test_numbers_that_nobody_writes_are_not_believed(line: bytes) -> None:
    assert lease_records.decode(text_of_a_lease() + line + b"\n", 0) is None


def test_text_of_others_cannot_control_a_terminal() -> None:
    assert lease_records.printable("a\x1b[2Jb\n") == "a?[2Jb?"
    assert len(lease_records.printable("x" * 1000)) == 200
