"""Scripts that were written for Slurm or Grid Engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.cli.script_lines import read_lines_of, read_script, seconds_of
from postroom.commands.spec import CommandSpec
from postroom.errors import PostroomError
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base

from .kit import call

SLURM = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --time=1-02:00:00 --gres=gpu:a100:2
#SBATCH -p gpu --mem=32G
#SBATCH --array=3-5%2

echo "$1" $SLURM_ARRAY_TASK_ID
#SBATCH --nice=5
"""


def specs(base: Base) -> list[CommandSpec]:
    with QueueView(base) as view:
        readers = view.read_state().readers
        return [
            CommandSpec.of_job(reader.read_jobs(number), number)
            for reader in readers.values()
            for number in range(reader.asked)
        ]


def test_a_script_of_slurm_is_queued_as_it_asks_and_what_has_no_meaning_is_named(
    base: Base, tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SLURM)
    done = call(base, "submit", "-t", "2h", str(script), "a b")
    script.write_text("echo changed\n")
    said = done.stderr.replace(str(script), "train.sh")
    assert "train.sh: #SBATCH -p gpu has no meaning here: there are no accounts" in said
    assert (
        "--mem=32G has no meaning here: memory and processors of the host are not counted" in said
    )
    found = specs(base)
    assert [spec.name for spec in found] == ["train.3", "train.4", "train.5"]
    first = found[0]
    assert first.timeout_s == 7200.0  # what is typed counts
    scheduling = first.scheduling
    assert (scheduling.gpus, scheduling.require, scheduling.group_limit) == (2, "a100", 2)
    assert scheduling.priority == 0  # behind the first command, Slurm reads nothing either
    assert first.env == {"SLURM_ARRAY_TASK_ID": "3"}
    assert first.command == f"set -- 'a b'\n{SLURM}"


def test_a_script_of_grid_engine_is_queued_as_it_asks(base: Base, tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text(
        "#!/bin/sh\n#$ -N fit -cwd -V\n#$ -l h_rt=600,gpu=1,mem=4G -v X=1\n#$ -pe smp 4 -p -3\n"
        "true\n"
    )
    done = call(base, "submit", str(script))
    assert "-pe smp 4" in done.stderr
    assert "-l mem=4G has no meaning here" in done.stderr
    (spec,) = specs(base)
    assert (spec.name, spec.timeout_s, spec.env) == ("fit", 600.0, {"X": "1"})
    assert (spec.shell, spec.scheduling.priority, spec.scheduling.gpus) == ("sh", -3, 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-t10", ["--time-limit", "600s"]),
        ("--dependency=afterok:1:2,afterany:3",
         ["--after", "1", "--after", "2", "--after-any", "3"]),
        ("--gres=gpu", ["--gpus", "1"]),
        ("--gres=gpu:h100", ["--gpus", "1", "--require", "h100"]),
        ("-G 4 -C 'a100|h100'", ["--gpus", "4", "--require", "a100|h100"]),
        ("--begin=now+2hours", ["--begin", "now+2h"]),
        ("--export=ALL,A=1", ["--env", "A=1"]),
        ("--hold -D /data", ["--hold", "--cwd", "/data"]),
        ("-a 7", ["--array", "7-7"]),
        ("--nice=5", ["--priority", "-5"]),
    ],
)  # fmt: skip
def test_lines_of_slurm_become_options(line: str, words: list[str]) -> None:
    found = read_lines_of(f"#!/bin/sh\n#SBATCH {line}\n")
    assert (found.words, found.left_out) == (words, [])


def test_times_of_slurm() -> None:
    known = {"90": 5400, "90:30": 5430, "1:00:00": 3600, "2-12": 216_000, "1-1:30": 91_800}
    assert {text: seconds_of(text) for text in known} == {
        text: f"{seconds}s" for text, seconds in known.items()
    }


def test_what_is_unknown_is_named_and_what_cannot_be_read_is_an_error() -> None:
    found = read_lines_of("#SBATCH --licenses=matlab --gres=fpga:1 --dependency=singleton\n")
    assert [line.split(" has ")[0] for line in found.left_out] == [
        "--licenses=matlab",
        "--gres=fpga:1",
        "--dependency=singleton",
    ]
    with pytest.raises(PostroomError, match="#SBATCH --time=soon: 'soon' cannot be read"):
        read_lines_of("#SBATCH --time=soon\n")


def test_a_file_without_such_lines_is_a_command_as_before(base: Base, tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text("# a comment\n#$HOME is no option\ntrue\n#SBATCH -t 1\n")
    assert read_script(str(script)) == ""
    assert read_script(str(tmp_path)) == ""
    call(base, "submit", str(script))
    (spec,) = specs(base)
    assert spec.command == str(script)


def test_a_script_of_this_folder_is_found_as_sbatch_finds_it(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text("true\n")
    call(base, "submit", "x.sh", "--lr", "1")
    (tmp_path / "x.sh").chmod(0o755)
    call(base, "submit", "x.sh")
    assert [spec.command for spec in specs(base)] == ["bash x.sh --lr 1", "./x.sh"]
