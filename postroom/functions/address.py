"""Where a session finds a function: the folder to import from, and `module:function`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import PostroomError


def address_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the project and the task of a function; raises PostroomError where there is none."""
    name = function.__qualname__
    if "<" in name:
        raise PostroomError(
            f"{name} has no name that a session could import it by: define it at the top of a "
            "module, or call it here"
        )
    module = function.__module__
    path = getattr(inspect.unwrap(function), "__code__", None)
    file = path.co_filename if path is not None else ""
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None:  # python -m package.module
            module = spec.name
        elif not os.path.isfile(file):
            raise PostroomError(
                f"{name} is defined in a notebook or at a prompt, which a session cannot import: "
                "write it into a module (in a notebook: %%writefile train.py) and import it from "
                "there; calling it here works as it is"
            )
        else:
            module = os.path.splitext(os.path.basename(file))[0]
    project = _root(os.path.realpath(file), module) if os.path.isfile(file) else None
    if project is None:
        # Imported by its path, as pytest may do: its own folder and its file's name will do.
        project = os.path.dirname(os.path.realpath(file))
        module = os.path.splitext(os.path.basename(file))[0]
    if not all(part.isidentifier() for part in module.split(".")):
        raise PostroomError(f"{file} cannot be imported by a session: give it a name like train.py")
    return project, f"{module}:{name}"


def _root(file: str, module: str) -> str | None:
    """Return the folder from which a module is imported, if its name fits its file."""
    stem = file.removesuffix("/__init__.py") if module.count(".") or module else file
    stem = os.path.splitext(stem)[0]
    tail = module.replace(".", os.sep)
    if stem == tail or not stem.endswith(os.sep + tail):
        return None
    return stem[: -len(tail) - 1]


def keywords(
    signature: inspect.Signature, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by their names, as they travel to a session."""
    bound = signature.bind(*arguments, **named)
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise PostroomError(
                f"argument {name!r} has no name to travel by: .submit passes arguments by name"
            )
        else:
            found[name] = value
    return found
