"""What is missing is said in a sentence that says what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from postroom.system.shortage import explain, full_disk

ROOM = {"f_bavail": 1 << 20, "f_bfree": 1 << 20, "f_frsize": 4096, "f_files": 100, "f_ffree": 50}


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk of /base is full: free some space"),
        (errno.EDQUOT, "your quota on the disk of /base is used up: free"),
        (errno.EROFS, "the disk of /base is read-only: make it writable"),
        (errno.EMFILE, "raise the limit (`ulimit -n`)"),
        (errno.ENFILE, "on this machine: end programs"),
        (errno.ENOMEM, "no memory left: end programs"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_every_shortage_says_what_to_do(number: int, said: str) -> None:
    assert said in explain(OSError(number, os.strerror(number)), "/base")


def test_a_file_says_which_disk() -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "/base/run")
    assert explain(error).startswith("the disk of /base/run is full")
    assert explain(OSError(errno.ENOSPC, "")).startswith("a disk is full")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"f_bavail": 2, "f_bfree": 2}, "is full: free some space"),
        ({"f_ffree": 0}, "can hold no more files: remove some"),
        ({"f_files": 0, "f_ffree": 0}, ""),  # btrfs does not count them
    ],
)
def test_a_disk_is_full_when_no_parcel_or_no_name_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], said: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**{**ROOM, **changes}))
    found = full_disk(str(tmp_path))
    assert said in found and bool(said) == bool(found)


def test_what_cannot_be_asked_is_not_called_full(tmp_path: Path) -> None:
    assert full_disk(str(tmp_path / "missing")) == ""
