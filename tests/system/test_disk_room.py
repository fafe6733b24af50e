from __future__ import annotations

import errno
from pathlib import Path

import pytest

from postroom.store.files import LocalFiles
from postroom.system import disk_room
from postroom.system.disk_room import LOOK_BYTES, DiskRoom, NoRoomError, reserve_of
from postroom.system.shortage import explain

MIB = 1 << 20
TOTAL = 1000 * MIB


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the disk answers each time, in MiB; the last for ever."""
    answers: list[int] = []

    def space(folder: str) -> tuple[int, int]:
        return (answers.pop(0) if len(answers) > 1 else answers[0]) * MIB, TOTAL

    monkeypatch.setattr(disk_room, "disk_space", space)
    return answers


def test_what_does_not_fit_beside_the_reserve_is_refused_with_figures(looks: list[int]) -> None:
    looks[:] = [100]
    assert reserve_of(TOTAL) == 20 * MIB
    DiskRoom().take("/disk", 80 * MIB)
    with pytest.raises(NoRoomError) as told:
        DiskRoom().take("/disk", 81 * MIB)
    assert told.value.errno == errno.ENOSPC
    assert "need 81 MiB, and 100 MiB are free on the disk of /disk" in explain(told.value)
    assert "of which 20 MiB are kept for results" in explain(told.value)


def test_the_disk_is_asked_by_bytes_and_not_by_files(looks: list[int]) -> None:
    looks[:] = [*range(900, 800, -1), 800]
    room = DiskRoom()
    for _ in range(1000):
        room.take("/disk", MIB // 4)
    asked = 101 - len(looks)
    assert asked == -(-250 * MIB // LOOK_BYTES)


def test_results_are_never_refused(tmp_path: Path, looks: list[int]) -> None:
    looks[:] = [1]
    files = LocalFiles()
    files.write_new(str(tmp_path / "result"), [b"x"])
    with pytest.raises(NoRoomError):
        files.write_new(str(tmp_path / "arguments"), [b"x"], reserve=True)
    assert not files.has_room(str(tmp_path), 1)
