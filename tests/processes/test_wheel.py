"""What `pip install` gives: the package and the template, nothing of the repository's root."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEMPLATE = {
    "main.py",
    "master.py",
    "agent.py",
    "jobs.py",
    "gpu_session.py",
    "expensive_task.py",
    "start_agent.sh",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_only_the_package_and_the_template(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    (info,) = [top for top in tops if top.endswith(".dist-info")]
    assert tops == {"postroom", "hydra_plugins", info}
    # Hydra finds its plugins there, and the package belongs to the plugins of everybody.
    assert [name for name in names if name.startswith("hydra_plugins/")] == [
        "hydra_plugins/postroom_launcher.py"
    ]
    template = {
        name.rsplit("/", 1)[1] for name in names if name.startswith("postroom/project/template/")
    }
    assert template == TEMPLATE
    assert "postroom/py.typed" in names
    # The page works offline: its scripts, style sheets and templates come along.
    web = Path("postroom/web")
    for path in [*(ROOT / web / "static").iterdir(), *(ROOT / web / "templates").iterdir()]:
        assert path.relative_to(ROOT).as_posix() in names


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel as a user does, in an environment of its own; return its Python."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-q", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
    # The dependencies are this environment's own; the package is the wheel's.
    (own,) = [path for path in sys.path if path.endswith("site-packages")]
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(own + "\n")
    return python


def test_two_commands_lead_from_nothing_to_a_finished_job_and_a_page(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    postroom = python.parent / "postroom"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("POSTROOM_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x8G")
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def call(*words: str) -> str:
        command = [postroom, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    page = call("up", "--port", "0")
    try:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(page) as answer:
            assert b"Postroom" in answer.read()
        job = call("submit", "echo done on GPU $CUDA_VISIBLE_DEVICES")
        assert call("wait", job) == f"{job} ok"
        assert call("logs", job) == "done on GPU 0"
    finally:
        call("down")


def test_the_installed_wheel_works_beside_a_users_own_modules(python: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"

    def run(*arguments: str, cwd: Path = tmp_path) -> str:
        done = subprocess.run(
            [python, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert f"{python.parent.parent}/lib" in run("-c", "import postroom; print(postroom.__file__)")
    assert "Start here:" in run("-m", "postroom", "--help")
    run("-m", "postroom", "new", str(project))
    assert {path.name for path in project.iterdir()} == TEMPLATE
    (project / "expensive_task.py").write_text(
        "def expensive_task(a, b, shared):\n    return float((a @ b).sum())\n"
    )
    (project / "files.py").write_text("raise RuntimeError('the wrong module')\n")
    assert "5 of 5 ok" in run("main.py", "--n-tasks", "5", "--size", "4", cwd=project)


def test_new_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("precious")
    done = subprocess.run(
        [sys.executable, "-m", "postroom", "new", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "nothing was written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
