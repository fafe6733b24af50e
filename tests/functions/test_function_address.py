"""How a session finds a function."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.functions.function_address import address_of, keywords


def test_a_function_is_imported_from_the_folder_above_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package_of_test").mkdir()
    (tmp_path / "package_of_test" / "__init__.py").write_text("def top(): ...\n")
    (tmp_path / "package_of_test" / "train.py").write_text("def fit(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    package = importlib.import_module("package_of_test")
    module = importlib.import_module("package_of_test.train")
    assert address_of(module.fit) == (str(tmp_path), "package_of_test.train:fit")
    assert address_of(package.top) == (str(tmp_path), "package_of_test:top")


def test_a_function_without_an_importable_name_is_refused() -> None:
    with pytest.raises(PostroomError, match="top level of a module"):
        address_of(lambda: None)


def test_arguments_are_sent_by_name() -> None:
    def fit(a: int, b: int = 2, **rest: int) -> None: ...

    def bad(a: int, /, *more: int) -> None: ...

    assert keywords(inspect.signature(fit), (1,), {"c": 3}) == {"a": 1, "c": 3}
    for arguments in ((1,), (1, 2)):
        with pytest.raises(PostroomError, match="'a' is positional only"):
            keywords(inspect.signature(bad), arguments, {})
