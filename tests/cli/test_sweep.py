"""`postroom sweep`: the commands that it would run."""

from __future__ import annotations

from click.testing import CliRunner

from postroom.cli.sweep import command


def test_a_dry_run_prints_every_combination_that_the_condition_keeps() -> None:
    words = ["train --lr {lr} --bs {bs}", "lr=0.1,0.01", "bs=32:64:x2", "--where", "lr*bs<5"]
    done = CliRunner().invoke(command, [*words, "--dry-run"])
    assert done.stdout.splitlines() == [
        "train --lr 0.1 --bs 32",
        "train --lr 0.01 --bs 32",
        "train --lr 0.01 --bs 64",
    ]
