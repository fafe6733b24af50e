from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from postroom.store.base import create_base
from postroom.system import spread_folder

OTHER_FLAGS, TOP_OF_TREE = 0x80000, 0x20000


def test_the_mark_is_added_to_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [OTHER_FLAGS]

    def ioctl(fd: int, request: int, data: bytes) -> bytes:
        if request == 0x80086601:
            return struct.pack("l", flags[-1])
        flags.append(struct.unpack("l", data)[0])
        return data

    monkeypatch.setattr(spread_folder.fcntl, "ioctl", ioctl)
    spread_folder.spread(str(tmp_path))
    assert flags == [OTHER_FLAGS, OTHER_FLAGS | TOP_OF_TREE]
    create_base(tmp_path / "base")
    assert len(flags) == 3  # its tmp/, when it is made
    create_base(tmp_path / "base")
    assert len(flags) == 3


def test_a_filesystem_that_knows_no_such_mark_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ioctl(fd: int, request: int, data: bytes) -> bytes:
        raise OSError(errno.ENOTTY, "not here")

    monkeypatch.setattr(spread_folder.fcntl, "ioctl", ioctl)
    spread_folder.spread(str(tmp_path))
    spread_folder.spread(str(tmp_path / "absent"))
