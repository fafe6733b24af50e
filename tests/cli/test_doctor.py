"""`postroom doctor`: prints what `queue.base_check` finds."""

from __future__ import annotations

import json

from click.testing import CliRunner

from postroom.cli.doctor import command
from postroom.store.base import Base


def test_findings_are_printed_with_an_exit_code(base: Base) -> None:
    done = CliRunner().invoke(command, [base.root])
    assert done.exit_code == 0 and "ok" in done.stdout
    found = json.loads(CliRunner().invoke(command, [base.root, "--json"]).stdout)
    assert {"level", "what", "advice"} <= set(found[0])
    with open(base.format, "w") as file:
        file.write("postroom 99\n")
    assert CliRunner().invoke(command, [base.root]).exit_code == 1
