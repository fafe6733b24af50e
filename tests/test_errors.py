"""Errors: one root, and messages that stay short."""

from __future__ import annotations

import inspect

from postroom import errors
from postroom.errors import BadFileError, PostroomError, RemoteTraceback, brief


def test_every_error_has_one_root() -> None:
    classes = [one for _, one in inspect.getmembers(errors, inspect.isclass)]
    others = [one for one in classes if not issubclass(one, PostroomError)]
    assert others == [RemoteTraceback], "which is only ever the cause of another"


def test_a_bad_file_says_its_path_and_the_reason() -> None:
    error = BadFileError("/base/x", "is not JSON")
    assert str(error) == "/base/x: is not JSON"
    assert (error.path, error.reason) == ("/base/x", "is not JSON")


def test_a_key_is_shown_in_one_short_line() -> None:
    assert brief("a\nb") == r"'a\nb'"
    assert len(brief("x" * 1000)) <= 80
    assert len(brief(10**10_000)) <= 80
