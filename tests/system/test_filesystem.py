"""Which folders other hosts may see, too."""

from __future__ import annotations

import builtins
import io
import os
from pathlib import Path

import pytest

from postroom.system.filesystem import filesystem_of, network_filesystem


@pytest.mark.parametrize(("kind", "says"), [("nfs4", "nfs4"), ("ext4", ""), ("overlay", "")])
def test_the_type_of_the_mount_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, says: str
) -> None:
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    table = (
        "22 1 0:5 / /proc rw - proc proc rw\n"
        f"36 22 {number} /export {tmp_path} rw,relatime shared:1 - {kind} server:/x rw\n"
    )
    real = open

    def mounts(path: str, *words: object, **options: object) -> object:
        if path == "/proc/self/mountinfo":
            return io.StringIO(table)
        return real(path, *words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "open", mounts)
    assert network_filesystem(str(tmp_path)) == says
    assert network_filesystem(f"{tmp_path}/missing") == ""


def test_the_type_of_the_filesystem_is_found() -> None:
    assert filesystem_of("/dev/shm") == "tmpfs"
    assert filesystem_of("/proc/self") == "proc"


def test_a_device_that_no_mount_has_is_of_the_nearest_mount_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"22 1 0:5 / / rw - ext4 a rw\n36 22 0:99999 / {tmp_path} rw - btrfs b rw\n"
    monkeypatch.setattr(builtins, "open", lambda *words, **options: io.StringIO(table))
    assert filesystem_of(f"{tmp_path}/.") == "btrfs"
