"""The unit of `postroom up --install`, read by systemd itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from postroom.cli.service import install, uninstall, unit_path, unit_text
from postroom.errors import PostroomError
from postroom.store.base import own_queue


def verify(path: Path) -> str:
    """What systemd finds wrong with a unit."""
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI"):
            pytest.fail("systemd-analyze is missing")
        pytest.skip("systemd-analyze is missing")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(path.parent)}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    found = [line for line in done.stderr.splitlines() if path.name in line]
    return "\n".join(found) + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_systemd_finds_nothing_wrong_with_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_REST", '5% "of" \\ 10m')
    unit = tmp_path / "postroom.service"
    unit.write_text(unit_text("/home/a b/50%", ["/bin/sh", "-c", 'echo "$HOME" \\ 100%']))
    assert verify(unit) == ""
    unit.write_text(unit.read_text().replace("Type=exec", "Type=sometimes"))
    assert verify(unit) != ""  # the verifier does see faults


def test_without_systemd_the_line_for_cron_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.setenv("POSTROOM_LEDGER", "/lab ledger/100%")
    install("/q", gpus="0,1", page=False, port=None, yields=True)
    said = capsys.readouterr().out
    assert said.startswith("@reboot env PATH=")
    assert r"'POSTROOM_LEDGER=/lab ledger/100\%'" in said
    assert said.endswith(" up /q --gpus 0,1 --no-page --yield\n")
    assert not os.listdir(tmp_path)
    with pytest.raises(PostroomError, match="crontab -e"):
        uninstall("/q")


def test_each_base_has_a_unit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    assert unit_path(own_queue()) == "/c/systemd/user/postroom.service"
    assert unit_path("/data/my queue") == "/c/systemd/user/postroom-data-my-queue.service"
