"""What is not a regular file is refused, and nobody waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.system.regular_file import open_regular


def test_a_file_is_read_and_a_link_to_it_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(str(tmp_path / name)) as file:
            assert file.read() == b"text"


def test_a_fifo_a_folder_and_a_device_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = os.listdir("/proc/self/fd")
    for path in (str(tmp_path / "fifo"), str(tmp_path), "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(FileNotFoundError):
        open_regular(str(tmp_path / "nothing"))
