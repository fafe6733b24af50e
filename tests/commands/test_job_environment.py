"""What a job takes along from the process that submits it, and how that is stored."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from postroom.commands.job_environment import JobEnvironment, read_environment
from postroom.errors import BadFileError, PostroomError
from postroom.queue.submission import rerun
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.system.processes import current_umask
from tests.queue.kit import FILES, queue


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return create_base(tmp_path / "base")


def names(base: Base, run: str) -> list[str]:
    return [name for name in os.listdir(base.run_folder(run)) if name.endswith(".env")]


def stored(base: Base, run: str) -> JobEnvironment:
    (name,) = names(base, run)
    return read_environment(FILES, base, run, name.removesuffix(".env"))


def test_all_variables_travel_but_those_of_agent_login_and_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("WANDB_API_KEY", "POSTROOM_BASE", "BASH_FUNC_x%%"):
        monkeypatch.setenv(name, "1")
    for name in ("POSTROOM_JOB", "CUDA_VISIBLE_DEVICES", "DISPLAY", "SSH_AUTH_SOCK", "PWD", "_"):
        monkeypatch.setenv(name, "not for jobs")
    made = JobEnvironment.of_this_process()
    assert {"PATH", "WANDB_API_KEY", "POSTROOM_BASE", "BASH_FUNC_x%%"} <= set(made.variables)
    assert "not for jobs" not in made.variables.values()
    agents = {
        "POSTROOM_LEDGER": "agent",
        "CUDA_VISIBLE_DEVICES": "agent",
        "HOME": "agent",
        "PWD": "agent",
    }
    got = made.over({**agents, "POSTROOM_BASE": "agent", "ONLY_OF_THE_AGENT": "agent"})
    assert sorted(name for name, value in got.items() if value == "agent") == [
        "CUDA_VISIBLE_DEVICES",
        "POSTROOM_LEDGER",
    ]


def test_one_environment_is_stored_once_for_all_jobs_of_a_run_for_its_owner_only(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = queue(base, *map(str, range(100)))
    queue(base, "one more")
    (name,) = names(base, jobs[0].run)
    mode = os.stat(f"{base.run_folder(jobs[0].run)}/{name}").st_mode
    assert stat.S_IMODE(mode) == 0o400
    monkeypatch.setenv("ONE_MORE", "1")
    queue(base, "another")
    assert len(names(base, jobs[0].run)) == 2


def test_the_name_of_an_environment_is_on_disk_before_a_job_refers_to_it(base: Base) -> None:
    synced: list[str] = []

    class Watched(LocalFiles):
        def sync_folder(self, path: str) -> None:
            synced.append(path)
            super().sync_folder(path)

    (job,) = queue(base, "a")
    (name,) = names(base, job.run)
    made = stored(base, job.run)
    made.put(Watched(), base, job.run)
    assert synced == []
    os.chmod(f"{base.run_folder(job.run)}/{name}", 0o600)  # its writer was killed before that
    made.put(Watched(), base, job.run)
    assert synced == [base.run_folder(job.run)]


def test_bytes_that_are_no_text_come_back(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"NO_TEXT", b"\xff\n'")
    (job,) = queue(base, "a")
    assert os.fsencode(stored(base, job.run).variables["NO_TEXT"]) == b"\xff\n'"
    assert stored(base, job.run).umask == current_umask()


def test_a_job_that_is_queued_again_keeps_the_environment_of_its_submission(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    from postroom.commands.spec import CommandSpec
    from postroom.queue.queue_view import QueueView

    monkeypatch.setenv("OF", "the shell")
    (job,) = queue(base, "a", project="p")
    spec = CommandSpec("a", cwd="/", environment=stored(base, job.run).name)
    monkeypatch.setenv("OF", "the page")
    (again, other) = rerun(FILES, base, [(job, spec, "q"), (job.__class__(job.run, 7), spec, "r")])
    assert again.run != other.run != job.run
    with QueueView(base) as view:
        assert view.environment(again)["OF"] == "the shell"
        assert view.environment(other)["OF"] == "the shell"


def test_one_that_was_changed_or_is_missing_is_an_error(base: Base) -> None:
    (job,) = queue(base, "a")
    (name,) = names(base, job.run)
    path = Path(base.run_folder(job.run), name)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"PATH", b"HTAP"))
    with pytest.raises(BadFileError, match="was changed"):
        stored(base, job.run)
    queue(base, "submitted again")
    assert stored(base, job.run).variables["PATH"]
    path.unlink()
    with pytest.raises(PostroomError, match=r"is missing .* submit it again"):
        read_environment(FILES, base, job.run, name.removesuffix(".env"))
