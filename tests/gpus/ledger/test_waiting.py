from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.errors import GpuError
from postroom.gpus.ledger import waiting
from postroom.gpus.ledger.waiting import append, glance_s, look_s


def test_later_and_older_requests_look_less_often() -> None:
    assert look_s(0, 0.0) == waiting.LOOK_S
    assert look_s(0, 3600.0) == 5 * waiting.LOOK_S
    assert look_s(9, 0.0) == pytest.approx(10 * waiting.LOOK_S)
    assert look_s(10_000, 3600.0) == waiting.LOOK_LIMIT_S
    assert glance_s(0) == waiting.LOOK_S
    assert glance_s(10_000) == waiting.GLANCE_LIMIT_S


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path / "lease", os.O_RDWR | os.O_CREAT)
    append(fd, b"one\n")
    append(fd, b"two\n")
    assert (tmp_path / "lease").read_bytes() == b"one\ntwo\n"
    monkeypatch.setattr(os, "write", lambda fd, text: len(text) - 1)
    with pytest.raises(GpuError, match="disk is full"):
        append(fd, b"three\n")
    os.close(fd)
