"""Every `--help`, compared with a stored copy, so that a changed text is always seen.

python -m tests.cli.test_help      writes the copies anew; read the difference, then commit it
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from postroom.cli.verbs import GROUPS, VERBS, postroom

COPIES = Path(__file__).parent / "help"


def paths(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and of every command below it."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from paths(below, (*path, name))


ALL = sorted(paths(postroom))


def help_of(path: tuple[str, ...]) -> str:
    done = CliRunner().invoke(
        postroom, [*path, "--help"], prog_name="postroom", terminal_width=80, env={"COLUMNS": "80"}
    )
    assert done.exit_code == 0, done.output
    return "".join(f"{line.rstrip()}\n" for line in done.output.splitlines())


def copy_of(path: tuple[str, ...]) -> Path:
    return COPIES / f"{'-'.join(('postroom', *path))}.txt"


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_is_the_stored_one(path: tuple[str, ...]) -> None:
    stored = copy_of(path)
    renew = "renew the copies: python -m tests.cli.test_help"
    assert stored.exists(), renew
    assert help_of(path) == stored.read_text(encoding="utf-8"), renew


def test_no_copy_is_left_of_a_verb_that_is_gone() -> None:
    assert {file.name for file in COPIES.iterdir()} == {copy_of(path).name for path in ALL}


@pytest.mark.parametrize(
    "path", [path for path in ALL if path and path[0] not in ("gpu", "profiles")], ids=" ".join
)
def test_every_verb_shows_an_example(path: tuple[str, ...]) -> None:
    assert f"postroom {' '.join(path)}" in help_of(path).split("\n", 1)[1]


def test_help_names_only_what_the_wheel_installs() -> None:
    for path in ALL:
        for script in ("agent.py", "master.py", "gpu_session.py", "start_agent.sh"):
            assert script not in help_of(path), path


def test_each_verb_stands_in_one_group_and_begins_with_a_verb_of_its_own() -> None:
    assert sum(len(group) for group in GROUPS.values()) == len(VERBS)
    assert next(iter(GROUPS)) == "Start here"
    for _, line in VERBS.values():
        assert line[0].isupper() and line.endswith(".")


def test_without_arguments_the_help_is_printed() -> None:
    done = CliRunner().invoke(postroom, [], prog_name="postroom", terminal_width=80)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.rstrip() == help_of(()).rstrip()


def renew() -> None:
    """Write all copies anew."""
    COPIES.mkdir(exist_ok=True)
    for stored in COPIES.iterdir():
        stored.unlink()
    for path in ALL:
        copy_of(path).write_text(help_of(path), encoding="utf-8")


if __name__ == "__main__":
    renew()
