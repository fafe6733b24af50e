"""`postroom run`: what it refuses; what it does is in tests/processes/test_commands.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from postroom.cli.run import command
from postroom.errors import PostroomError


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "name a file of commands"),
        (["jobs.txt", "-c", "true"], "name a file of commands"),
        (["missing.txt"], "there is no file 'missing.txt'"),
        (["--yielder", "missing.py"], "there is no file 'missing.py'"),
        (["-c", "true", "--grace", "long"], "not a duration"),
        (["-c", "true", "--timeout", "0"], "too short"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_written(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 2 and error in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-c", "true", "--gpus", "0,x"], "'x' names no GPU"),
        (["-c", "true", "--gpus", "0,7"], "no card is called '7'"),
        (["-c", "true", "--gpus", ""], "names no GPU"),
        (["-c", "true", "--output-dir", ""], "--output-dir is empty"),
        (["-c", "true", "--gpus", "0,7", "--detach"], "no card is called '7'"),
        (["/bin/sh"], "line 1 of /bin/sh holds a zero byte"),
    ],
)
def test_a_wrong_value_is_named_before_anything_is_written(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "4x24G")
    with pytest.raises(PostroomError, match=error):
        CliRunner().invoke(command, words, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_a_runner_file_has_one_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("x = 1\n")
    words = ["-c", "true", "--gpus", "cpu", "--runner", "mine.py"]
    with pytest.raises(PostroomError, match="must define one subclass"):
        CliRunner().invoke(command, words, catch_exceptions=False)
