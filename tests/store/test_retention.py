from __future__ import annotations

from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.store.retention import (
    RESULTS_BYTES,
    RESULTS_S,
    Retention,
    RetentionSettings,
    parse_keep,
    program_lives,
    register_program,
    retention_of,
    write_settings_of,
)

FILES = LocalFiles()


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


def test_an_argument_beats_the_environment_beats_the_file_beats_the_default(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert retention_of(FILES, base) == Retention(RESULTS_S, RESULTS_BYTES)
    write_settings_of(FILES, base, RetentionSettings(30.0, 3000))
    assert retention_of(FILES, base) == Retention(30.0, 3000)
    monkeypatch.setenv("POSTROOM_KEEP_RESULTS", "20s")
    assert retention_of(FILES, base) == Retention(20.0, 3000)
    assert retention_of(FILES, base, parse_keep(10, None)) == Retention(10.0, 3000)
    monkeypatch.setenv("POSTROOM_KEEP_BYTES", "forever")
    assert retention_of(FILES, base).results_bytes is None
    monkeypatch.setenv("POSTROOM_KEEP_BYTES", "much")
    with pytest.raises(PostroomError, match=r"POSTROOM_KEEP_BYTES.*write 500M"):
        retention_of(FILES, base)


def test_a_small_disk_keeps_a_tenth_of_it(base: Base) -> None:
    assert retention_of(FILES, base, disk_bytes=1 << 30).results_bytes == (1 << 30) // 10


def test_people_write_days_and_gigabytes(base: Base) -> None:
    assert parse_keep("30d", "20G") == RetentionSettings(30 * 86_400.0, 20 << 30)
    assert str(retention_of(FILES, base, parse_keep("30d", "20G"))) == "for 30 d 0 h, up to 20 GiB"
    assert str(retention_of(FILES, base, parse_keep("forever", "forever"))) == "for ever"


@pytest.mark.parametrize("content", [b"{", b'{"version": 9}', b'{"version": 1, "results_s": "x"}'])
def test_a_file_that_cannot_be_read_keeps_everything(base: Base, content: bytes) -> None:
    Path(base.retention).write_bytes(content)
    assert retention_of(FILES, base) == Retention(None, None)


def test_a_program_lives_as_long_as_its_lock(base: Base) -> None:
    token, lock = register_program(FILES, base)
    assert lock is not None and program_lives(FILES, base, token)
    lock.release()
    assert not program_lives(FILES, base, token)
    assert not program_lives(FILES, base, "") and not program_lives(FILES, base, "../x")
