"""The scripts qsub, qstat and qdel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroom.cli import grid_engine
from postroom.cli.verbs import postroom
from postroom.errors import PostroomError
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.requests import pending, read_request
from tests.queue.kit import FILES, queue

SCRIPT = """#!/bin/bash
#$ -N train -cwd
#$ -t 2-6:2
#$ -l gpu=2,h_rt=1:00:00   # two cards
#$ -p 3 -v A=1,B=2
echo $SGE_TASK_ID $1
"""


@pytest.fixture(autouse=True)
def _at_base(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_BASE", base.root)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(SCRIPT)


def test_qsub_reads_the_lines_of_a_script(
    view: QueueView, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grid_engine.qsub(["job.sh", "two words"]) == 0
    rows = view.jobs().jobs
    assert [row.name for row in rows] == ["train.2", "train.4", "train.6"]
    assert f'Your job-array {rows[0].short}-2 ("train")' in capsys.readouterr().out
    (tmp_path / "job.sh").write_text("changed")
    detail = view.job(view.read_state().readers[rows[0].run].job_id(0))
    assert detail.job.command == f"set -- 'two words'\n{SCRIPT}"
    assert (detail.cwd, detail.timeout_s) == (str(tmp_path), 3600)
    assert detail.scheduling == {"priority": 3, "gpus": 2, "lasts_s": 3610.0}
    env = view.environment(JobId(detail.job.run, detail.job.number))
    assert (env["A"], env["B"], env["JOB_NAME"]) == ("1", "2", "train")


def test_what_is_typed_counts_more_than_what_the_script_says(view: QueueView) -> None:
    grid_engine.qsub(["-N", "other", "-t", "9", "-p", "0", "-h", "job.sh"])
    (row,) = view.jobs().jobs
    assert (row.name, row.priority, row.state) == ("other", 0, "held")


def test_jobs_wait_for_others_by_id_and_by_name(
    view: QueueView, capsys: pytest.CaptureFixture[str]
) -> None:
    grid_engine.qsub(["-terse", "job.sh"])
    ids = capsys.readouterr().out.strip()
    for word in (ids, "train"):
        grid_engine.qsub(["-N", "then", "-hold_jid", word, "-b", "y", "echo", "a b"])
        row = view.jobs(text="then").jobs[-1]
        assert (row.state, row.command) == ("waiting", "echo 'a b'")
        detail = view.job(view.read_state().readers[row.run].job_id(row.number))
        assert [(one.name, one.any_end) for one in detail.after] == [
            ("train.2", True),
            ("train.4", True),
            ("train.6", True),
        ]


def test_output_goes_where_a_script_wants_it(
    view: QueueView, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid_engine.qsub(["-o", "a $TASK_ID.txt", "-j", "y", "-e", str(tmp_path), "-b", "y", "echo"])
    command = view.jobs().jobs[0].command
    assert "is ignored; read the output with: postroom logs" in capsys.readouterr().err
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "SGE_TASK_ID": "7"},
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "a 7.txt").read_bytes() == b"\n" and not done.stdout


def test_what_is_left_out_is_said(view: QueueView, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "-q all.q -pe smp 4 -l mem=4G,gpu=2 -notify -unknown -b y true"
    grid_engine.qsub(asked.split())
    said = capsys.readouterr().err
    for word in ("-q all.q", "-pe smp 4", "-l mem=4G", "-notify", "-unknown"):
        assert f"{word} is ignored" in said
    (row,) = view.jobs().jobs
    assert row.command == "true"
    assert view.job(JobId(row.run, row.number)).scheduling == {"gpus": 2}
    with pytest.raises(PostroomError, match="-N needs a value"):
        grid_engine.qsub(["-N"])


def test_a_script_of_another_language_is_called(view: QueueView, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("#!/usr/bin/env python3\nprint(1)\n")
    grid_engine.qsub(["job.py", "x"])
    assert view.jobs().jobs[0].command == f"{tmp_path}/job.py x"


def test_qstat_lists_and_qdel_ends(base: Base, capsys: pytest.CaptureFixture[str]) -> None:
    (job,) = queue(base, "name")
    queue(base, "held", held=True)
    grid_engine.qstat([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["job-ID", "prior", "name"]
    assert lines[1].split()[0] == job.short and " qw " in lines[1] and " hqw " in lines[2]
    grid_engine.qdel(["name"])
    assert read_request(FILES, base, pending(FILES, base)[0]).jobs == (job,)
    with pytest.raises(PostroomError, match="no job is called nothing"):
        grid_engine.qdel(["nothing"])


def test_the_scripts_are_written_where_asked_and_replace_nobody_elses(
    base: Base, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    for _ in range(2):
        done = CliRunner().invoke(postroom, ["grid-engine", str(folder)])
        assert done.exit_code == 0
    queue(base, "name")
    shown = subprocess.run([folder / "qstat"], capture_output=True, text=True, check=True)
    assert "job-ID" in shown.stdout
    wrong = subprocess.run([folder / "qsub"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    (folder / "qdel").write_text("#!/bin/sh\nthe real one\n")
    done = CliRunner().invoke(postroom, ["grid-engine", str(folder)])
    assert "is not one of ours" in str(done.exception)
