from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.errors import KernelError
from postroom.store.task_source import (
    check_kernel,
    find_source,
    import_folder,
    source_version,
)


@pytest.mark.parametrize(
    "source",
    [
        "def kernel(): pass",
        "async def kernel(): pass",
        "class kernel: pass",
        "kernel = print",
        "kernel: object = print",
        "from os.path import join as kernel",
        "from os.path import *",
        "if True:\n    def kernel(): pass",
    ],
)
def test_a_kernel_is_found_however_it_is_defined(tmp_path: Path, source: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    assert len(source_version(str(tmp_path), "mine:kernel")) == 12


@pytest.mark.parametrize(
    "source",
    [
        "def other():\n    def kernel(): pass",
        "def other():\n    kernel = 1",
        "class A:\n    def kernel(self): pass",
        "if __name__ == '__main__':\n    def kernel(): pass",
    ],
)
def test_what_is_not_there_after_an_import_is_no_kernel(tmp_path: Path, source: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(KernelError, match=r"does not define 'kernel'.*top level"):
        source_version(str(tmp_path), "mine:kernel")


@pytest.mark.parametrize(
    "source",
    [
        "globals()['kernel'] = print",
        "def __getattr__(name): return print",
        "def make():\n    global kernel\n    kernel = print\nmake()",
    ],
)
def test_what_may_be_there_after_an_import_is_not_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    assert source_version(str(tmp_path), "mine:kernel")


def test_what_this_process_has_imported_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_kernels.py").write_text("import sys\nsetattr(sys.modules[__name__], 'f', 1)")
    with pytest.raises(KernelError, match="does not define"):
        source_version(str(tmp_path), "odd_kernels:f")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("odd_kernels")
    assert source_version(str(tmp_path), "odd_kernels:f")
    with pytest.raises(KernelError, match="does not define"):
        source_version(str(tmp_path), "odd_kernels:g")


PROGRAM = """
from postroom import Job, Master

def test_it():
    with Master("base") as master:
        pool = master.submit_all([Job("{}:f", x=1), Job("json:dumps", obj=1)], keep=True)
    print("folder:", pool.info.import_folder)

if __name__ in ("__main__", "program"):
    test_it()
"""
PYTHON = sys.executable


@pytest.mark.parametrize(
    "command",
    [
        [PYTHON, "program.py"],
        [PYTHON, "-m", "program"],
        [PYTHON, "-c", "import program"],
        [PYTHON, "-m", "pdb", "-c", "continue", "program.py"],
        [PYTHON, "-m", "cProfile", "program.py"],
        [PYTHON, "-m", "pytest", "-s", "-p", "no:cacheprovider", "program.py"],
        [f"{os.path.dirname(PYTHON)}/pytest", "-s", "-p", "no:cacheprovider", "program.py"],
        [PYTHON, "-m", "package.start"],
        [PYTHON, "elsewhere/start.py"],
    ],
    ids=lambda command: " ".join(command[1:4]),
)
def test_kernels_are_imported_from_where_this_program_finds_them(
    tmp_path: Path, command: list[str]
) -> None:
    folder = tmp_path / "kernels_lie_here" if "elsewhere/start.py" in command else tmp_path
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    (folder / "package" / "kernels.py").write_text("def f(x): ...\n")
    if command[-1] == "package.start":
        (folder / "package" / "__init__.py").write_text("")
        (folder / "package" / "start.py").write_text(PROGRAM.format("package.kernels"))
    (tmp_path / "program.py").write_text(PROGRAM.format("package.kernels"))
    (tmp_path / "elsewhere").mkdir()
    path = f"import sys; sys.path.append({str(folder)!r})\n"
    (tmp_path / "elsewhere" / "start.py").write_text(path + PROGRAM.format("package.kernels"))
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"folder: {folder}\n" in done.stdout, done.stdout + done.stderr


def test_a_module_that_only_this_process_finds_is_refused_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"kernels_{name}.py").write_text("def f(): ...\n")
        monkeypatch.syspath_prepend(str(tmp_path / name))
    tasks = ["kernels_one:f", "kernels_two:f"]
    assert import_folder(tasks, str(tmp_path / "two")) == str(tmp_path / "two")
    assert import_folder(["kernels_one:f"], "/") == str(tmp_path / "one")
    assert import_folder(["json:dumps", "nowhere:f"], "/") == "/"
    with pytest.raises(
        KernelError, match=f"it is in {tmp_path}/one.*import_folder='{tmp_path}/one"
    ):
        source_version(str(tmp_path / "two"), "kernels_one:f")


def test_a_module_that_every_python_finds_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "on_the_path.py").write_text("def f(): ...\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_version("/", "on_the_path:f")


def test_a_version_is_the_content(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def kernel(): return 1")
    one = source_version(str(tmp_path), "mine:kernel")
    path.write_text("def kernel(): return 2")
    assert source_version(str(tmp_path), "mine:kernel") != one


def test_packages_and_installed_modules_are_found(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("def kernel(): pass")
    (tmp_path / "pack" / "inner.py").write_text("def kernel(): pass")
    assert find_source(str(tmp_path), "pack.inner") == str(tmp_path / "pack" / "inner.py")
    assert source_version(str(tmp_path), "pack:kernel")
    assert source_version(str(tmp_path), "json:dumps")
    assert find_source(str(tmp_path), "no.such.thing") is None


def test_the_project_comes_before_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def mine(): pass")
    assert source_version(str(tmp_path), "json:mine")
    with pytest.raises(KernelError, match="does not define 'dumps'"):
        source_version(str(tmp_path), "json:dumps")


def test_checking_imports_the_kernel_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\nos._exit(7)\ndef kernel(): pass")
    with pytest.raises(KernelError, match="ended the interpreter"):
        check_kernel(str(tmp_path), "mine:kernel")
    (tmp_path / "mine.py").write_text("def kernel(): pass")
    check_kernel(str(tmp_path), "mine:kernel")
