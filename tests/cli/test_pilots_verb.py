"""`postroom pilots`: what it writes and what it prints; nothing is started here."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroom.cli.verbs import postroom
from postroom.session.sessions import Sessions
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.pilot_records import PilotRecord, PilotState, read_groups, write_pilot


@pytest.fixture(autouse=True)
def keeper(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which bases a keeper was started for."""
    started: list[str] = []
    monkeypatch.setattr(Sessions, "keep_pilots", lambda self: started.append(self.base.root))
    return started


def call(*words: str) -> Result:
    return CliRunner().invoke(postroom, ["pilots", *words])


def test_a_group_is_added_with_the_engines_own_options(tmp_path: Path, keeper: list[str]) -> None:
    base = str(tmp_path / "base")
    said = call(
        "add", base, "--local", "--max", "3", "--time", "4h", "--", "-p", "gpu", "-A", "lab"
    )
    assert said.exit_code == 0, said.output
    group = read_groups(LocalFiles(), create_base(base)).groups["local"]
    assert (group.most, group.time_s, group.idle_s) == (3, 4 * 3600, 300)
    assert group.options == ("-p", "gpu", "-A", "lab")
    assert keeper == [base]


def test_options_of_an_actor_are_no_base(tmp_path: Path) -> None:
    said = call("add", "--ray", "auto", "--dry-run", "--json", "--", "num_cpus=4")
    assert json.loads(json.loads(said.stdout)["command"][-2])["num_cpus"] == 4


def test_a_dry_run_shows_the_script_and_changes_nothing(tmp_path: Path, keeper: list[str]) -> None:
    setup = tmp_path / "setup.sh"
    setup.write_text("module load cuda\n")
    base = str(tmp_path / "base")
    words = ("add", base, "--slurm", "--setup", str(setup), "--dry-run")
    said = call(*words, "--", "-p", "gpu")
    assert "srun --job-name=" in said.stdout
    assert "-p gpu bash -c SCRIPT" in said.stdout
    assert "module load cuda" in said.stdout
    assert not Path(base).exists()
    assert keeper == []
    assert json.loads(call(*words, "--json").stdout)["command"][0] == "srun"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add",), "name an engine"),
        (("add", "--slurm", "--min", "3", "--max", "2"), "--min 3 is more than --max 2"),
        (("add", "--slurm", "--time", "5s"), "too short"),
        (("add", "--slurm", "-p", "gpu"), "Options of the engine follow --"),
        (("add", "--slurm", "--ray", "auto"), "name one engine"),
        (("add", "--local", "-b", "{base}", "--name", "a b"), "the name of a group has at most"),
        (("add", "lab", "--slurm"), "for a base write ./lab"),
        (("show", "-b", "{base}", "a-1", "a-2"), "name one pilot"),
        (("drain", "-b", "{base}", "nobody"), "there is no group 'nobody'"),
        (("show", "-b", "{base}", "nobody-7"), "there is no pilot 'nobody-7'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    base = create_base(tmp_path / "base").root
    said = call(*(word.format(base=base) for word in words))
    assert said.exit_code != 0
    assert says in said.output + str(said.exception)


def test_groups_and_pilots_are_listed_drained_resumed_stopped_and_removed(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    assert "no pilots" in call("list", base.root).stdout
    call("add", base.root, "--local", "--max", "2")
    now = time.time()
    lives = PilotRecord("local-1", "local", "local", PilotState.SERVING, "x", now, node="n7")
    dead = PilotRecord("local-2", "local", "local", PilotState.ENDED, "y", now, why="PREEMPTED")
    for record in (lives, dead):
        write_pilot(LocalFiles(), base, record)
    alone = call("list", base.root)
    assert "0 serving, 1 of 2" in alone.stdout and "its stand-in is dead" in alone.stdout
    assert "their keeper is dead" in alone.stderr
    lock = LocalFiles().try_lock(base.agent_lock("local-1"))
    assert lock is not None
    listed = call("list", base.root).stdout
    lock.release()
    assert "n7" in listed and "PREEMPTED" in listed
    assert "1 serving, 1 of 2" in listed
    view = json.loads(call("list", base.root, "--json").stdout)
    assert [row["pilot"] for row in view["pilots"]] == ["local-1", "local-2"]
    assert "n7" in call("show", base.root, "local-1").stdout

    def group() -> tuple[bool, bool]:
        found = read_groups(LocalFiles(), base).groups["local"]
        return found.drained, found.stopped

    said = json.loads(call("drain", base.root, "--json").stdout)
    assert [group["state"] for group in said["groups"]] == ["drained"]
    assert group() == (True, False)
    call("resume", base.root, "local")
    assert group() == (False, False)
    call("stop", base.root)
    assert group() == (True, True)
    call("remove", base.root, "local")
    assert not read_groups(LocalFiles(), base).groups
