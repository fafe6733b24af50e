"""What `pip install` gives: the package and the template, nothing of the repository's root."""

from __future__ import annotations

import subprocess
import sys
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


def test_the_installed_wheel_works_beside_a_users_own_modules(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    # The dependencies are this environment's own; the package is the wheel's.
    (own,) = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text(own + "\n")
    project = tmp_path / "project"
    python = tmp_path / "venv" / "bin" / "python"

    def run(*arguments: str, cwd: Path = tmp_path) -> str:
        done = subprocess.run(
            [python, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(site) in run("-c", "import postroom; print(postroom.__file__)")
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
