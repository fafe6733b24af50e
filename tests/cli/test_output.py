"""How the verbs print: safely, and as JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from postroom.commands.job_folder import JobFolder
from postroom.commands.spec import CommandSpec
from postroom.parcel.sheets import Failure, Outcome
from postroom.queue.queue_view import QueueView
from postroom.queue.submission import submit
from postroom.store.base import Base
from postroom.store.job_ids import JobId
from postroom.store.requests import pending
from tests.queue.kit import FAILURE, FILES, end, queue

from .kit import call, on_terminal


def test_text_of_a_job_cannot_steer_the_terminal(base: Base) -> None:
    queue(base, "echo \x1b[2J\x07")
    for words in (["status"], ["jobs"], ["submit", "--dry-run", "a\x1b[2J"]):
        assert "\x1b" not in call(base, *words).stdout
    assert "\x1b" not in call(base, "show", queue(base, "\x1b[2J")[0].short).stdout


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b]52;c;cm0=\x07\x9b2J\x08\x1b[31mred\x1b[0m"
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


def test_no_verb_passes_on_what_a_terminal_obeys(base: Base, tmp_path: Path) -> None:
    """Only colours: of our own, and in a log."""
    cwd = tmp_path / HOSTILE
    cwd.mkdir()
    spec = CommandSpec(f"echo '{HOSTILE}'", name=HOSTILE, cwd=str(cwd), env={"X": HOSTILE})
    (job, waits) = submit(FILES, base, [spec, spec])
    folder = Path(base.job_folder(job.run, job.number))
    folder.mkdir(parents=True)
    for end_ in ("OUT", "ERR"):
        (folder / f"{job.number}.{end_}").write_text(f"{HOSTILE}\n")
    end(base, job, Failure(Outcome.FAILED, "failed", HOSTILE, f"Traceback:\n\t{HOSTILE}"))
    batch = JobFolder(str(tmp_path / "batch" / "job_1"))
    batch.begin()
    arguments = json.dumps({"a": HOSTILE})
    batch.tell({"name": HOSTILE, "command": HOSTILE, "arguments": arguments})
    Path(batch.out).write_text(f"loss: {HOSTILE}\n")
    env = {**os.environ, "POSTROOM_BASE": base.root, "TERM": "xterm"}
    for words in (
        ["show", job.short],
        ["show", job.short, "--json"],
        ["jobs"],
        ["jobs", "-s", HOSTILE],
        ["status"],
        ["logs", job.short],
        ["logs", job.short, "-e", "-n", "5"],
        ["logs", job.short, "-f"],
        ["logs", waits.short],
        ["rerun", job.short],
        ["pause", "--project", HOSTILE],
        ["submit", "--dry-run", HOSTILE],
        ["doctor"],
        ["agents", "drain", HOSTILE],
        ["table", str(tmp_path / "batch"), "--pattern", "loss: (.*)"],
        ["table", str(tmp_path / "batch"), "--csv"],
        ["table", str(tmp_path / "batch"), "--plot", HOSTILE, "b"],
        ["attach", f"{tmp_path}/{HOSTILE}"],
        ["run", f"{HOSTILE}.txt"],
        ["gpu", "show", HOSTILE],
        [HOSTILE],
    ):
        printed = on_terminal(*words, env=env)
        assert printed, words
        bare = COLOURS.sub(b"", printed.replace(b"\r\n", b"\n")).decode()
        assert [c for c in bare if not c.isprintable() and c not in "\n\t"] == [], (words, bare)
    assert on_terminal("logs", "--raw", job.short, env=env) == f"{HOSTILE}\r\n".encode()
    command = [sys.executable, "-m", "postroom", "logs", job.short]
    piped = subprocess.run(command, env=env, capture_output=True, check=True)
    assert piped.stdout == f"{HOSTILE}\n".encode()


def test_every_verb_speaks_json_too(base: Base, view: QueueView) -> None:
    (job,) = json.loads(call(base, "submit", "--json", "true").stdout)
    short = JobId.parse(job).short
    (shown,) = json.loads(call(base, "submit", "--json", "--dry-run", "x y").stdout)
    assert shown["command"] == "x y"
    for words in (
        ["kill", short],
        ["hold", short],
        ["release", short],
        ["priority", short, "1"],
        ["move", short, "last"],
        ["pause"],
        ["resume"],
        ["drain"],
        ["drain", "--undo"],
    ):
        answer = json.loads(call(base, *words, "--json").stdout)
        assert (answer["settled"], answer["request"] in pending(FILES, base)) == (False, True)
    end(base, JobId.parse(job), FAILURE)
    said = json.loads(call(base, "wait", "--json", short, code=1).stdout)
    assert said == {"job": job, "state": "failed"}
    again = json.loads(call(base, "rerun", "--failed", "--json").stdout)
    assert again["jobs"] == [view.jobs(state="queued").jobs[0].id]
    assert json.loads(call(base, "clean", "--json", "--dry-run").stdout)["runs"] == []
