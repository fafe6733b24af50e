"""Completion in shells: scripts, and the job ids that are offered."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from postroom.cli.verbs import postroom
from postroom.store.base import Base
from tests.queue.kit import queue


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    done = CliRunner().invoke(postroom, ["completion", shell])
    assert done.exit_code == 0 and "_POSTROOM_COMPLETE" in done.output


def test_ids_are_completed_with_name_and_state(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_BASE", base.root)
    (job,) = queue(base, "train it")
    for verb in ("show", "kill", "logs", "rerun", "wait"):
        words = f"postroom {verb} {job.short[:3]}"
        done = CliRunner().invoke(
            postroom,
            env={"_POSTROOM_COMPLETE": "zsh_complete", "COMP_WORDS": words, "COMP_CWORD": "2"},
            prog_name="postroom",
        )
        assert done.output.split("\n")[:3] == ["plain", job.short, "queued: train it"]
