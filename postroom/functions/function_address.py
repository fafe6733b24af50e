"""How a session finds a function: the folder to import from, and `module:function`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import PostroomError
from ..store.task_source import folder_above


def address_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return import folder and `module:function`; PostroomError if it cannot be imported."""
    name = function.__qualname__
    if "<" in name:
        raise PostroomError(
            f"{name} cannot be imported by a session: define it at the top level of a module, or "
            "call it directly instead of with .submit"
        )
    module = function.__module__
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = os.path.realpath(code.co_filename) if code is not None else ""
    if not os.path.isfile(file):
        raise PostroomError(
            f"{name} is defined in a notebook or at a prompt, which a session cannot import: "
            "write it into a module (in a notebook: %%writefile train.py) and import it from "
            "there, or call it directly instead of with .submit"
        )
    stem = os.path.splitext(os.path.basename(file))[0]
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name if spec is not None else stem  # python -m package.module, or a script
    folder = folder_above(file, module)
    if folder is None:
        # Imported by its path, as pytest may do: then its folder and its file name serve.
        folder, module = os.path.dirname(file), stem
    if not all(part.isidentifier() for part in module.split(".")):
        raise PostroomError(f"a session cannot import {file}: rename it to something like train.py")
    return folder, f"{module}:{name}"


def keywords(
    signature: inspect.Signature, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, as they are sent to a session."""
    bound = signature.bind(*arguments, **named)
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise PostroomError(
                f".submit passes arguments by name, and {name!r} is positional only"
            )
        else:
            found[name] = value
    return found
