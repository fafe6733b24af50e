"""`postroom submit` without click does what `submit` does."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from postroom.cli.quick_submit import read_options
from postroom.commands.spec import CommandSpec
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.job_ids import find_job
from tests.queue.kit import FILES


def submit(base: Base, folder: Path, *words: str) -> tuple[CommandSpec, str, str]:
    """Submit as a shell does; return the job, its project, and what Python imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "postroom", "submit", *words],
        env={**os.environ, "POSTROOM_BASE": base.root},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    job = find_job(FILES, base, done.stdout.strip())
    with QueueView(base) as view:
        reader = view.read_state().readers[job.run]
        sheet = reader.read_jobs(job.number)
        return CommandSpec.of_job(sheet, job.number), reader.project, done.stderr


def test_the_quick_way_and_the_usual_one_queue_the_same_job(base: Base, tmp_path: Path) -> None:
    words = ["-n", "a b", "--project=vae", "-p", "-3", "echo", "-n", "it's"]
    quick, project, imported = submit(base, tmp_path, *words)
    usual, usual_project, imported_then = submit(base, tmp_path, "--retries", "0", *words)
    assert (quick, project) == (usual, usual_project)
    assert quick == replace(quick, name="a b", command="echo -n 'it'\"'\"'s'", cwd=str(tmp_path))
    assert "click" in imported_then
    assert not {"click", "urllib.request", "socket", "ctypes"} & set(imported.split())


def test_what_it_does_not_know_is_left_to_submit() -> None:
    assert read_options(["-p", "1", "true", "-t"]) == ({"priority": "1"}, ["true", "-t"])
    for words in ([], ["-n"], ["-t", "1h", "true"], ["-nx", "true"], ["--", "true"], ["-h"]):
        assert read_options(words) is None
