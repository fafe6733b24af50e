"""`postroom new`: a project in an empty folder."""

from __future__ import annotations

import os
from pathlib import Path

from click.testing import CliRunner

from postroom.cli.new import command


def test_a_project_is_created_only_where_nothing_is(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for code in (0, 2):
        assert CliRunner().invoke(command, [str(folder)]).exit_code == code
    assert {"main.py", "agent.py", "expensive_task.py"} <= set(os.listdir(folder))
    assert os.access(folder / "start_agent.sh", os.X_OK)
