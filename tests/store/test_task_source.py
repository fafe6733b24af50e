from __future__ import annotations

from pathlib import Path

import pytest

from postroom.errors import KernelError
from postroom.store.task_source import check_kernel, find_source, source_version


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
