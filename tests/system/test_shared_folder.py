"""One user's side of a shared folder; `tests/gpus/ledger/test_users.py` plays several users."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from postroom.errors import GpuError
from postroom.system import shared_folder
from postroom.system.shared_folder import SharedFolder, lock_holders, lock_is_free, lock_key


@pytest.fixture
def folder(tmp_path: Path) -> SharedFolder:
    return SharedFolder(str(tmp_path / "ledger"))


def test_only_regular_files_with_the_prefix_are_opened(folder: SharedFolder) -> None:
    mine = Path(folder.mine())
    (mine / "lease-1").write_text("one")
    (mine / "other").write_text("no")
    (mine / "lease-link").symlink_to("lease-1")
    os.mkfifo(mine / "lease-pipe")
    Path(folder.path, "postroom-file").write_text("not a folder")
    opened = {}
    for found in folder.files("lease-"):
        fd = found.open()
        opened[found.name] = fd is not None
        if fd is not None:
            os.close(fd)
    assert opened == {"lease-1": True, "lease-link": False, "lease-pipe": False}


def test_a_lock_is_seen_and_its_holder_is_named(folder: SharedFolder) -> None:
    path = Path(folder.mine()) / "lease-1"
    with open(path, "w") as held, open(path) as seen:
        assert lock_is_free(seen.fileno())
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not lock_is_free(seen.fileno())
        holder = lock_holders()[lock_key(seen.fileno())]
        assert (holder.pid, holder.uid) == (os.getpid(), os.geteuid())


def test_a_mutex_that_is_never_released_is_an_error(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "MUTEX_PATIENCE_S", 0.05)
    holder = f"kept locked by pid {os.getpid()}"
    with folder.mutex(), pytest.raises(GpuError, match=holder), folder.mutex():
        raise AssertionError("two at once")
    with folder.mutex():
        pass


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuError, match="is not a folder"):
        SharedFolder(str(tmp_path / "file"))
