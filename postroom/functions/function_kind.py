"""Which kind of job a call is: function, version of its code, arguments that may set sizes."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

WORD_LIMIT = 100  # a longer text is data, not a choice


def type_of(function: Callable[..., Any]) -> str:
    """Return the permanent name of a function: `file::function`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    path = code.co_filename if code is not None else getattr(function, "__module__", "?")
    if os.path.exists(path):
        path = os.path.realpath(path)
    elif path.startswith("<") or "ipython" in path or "ipykernel" in path:
        path = "notebook"  # the file name of a cell changes with every run
    return f"{path}::{function.__qualname__}"


def code_of(function: Callable[..., Any]) -> str:
    """Return the version of a function: a hash of its source, else of its bytecode.

    Decorators, comments and line breaks do not count, so that a function of a notebook is the same
    job in a session, which has another copy of its source.
    """
    plain = inspect.unwrap(function)
    try:
        text = strip(inspect.getsource(plain)).encode()
    except (OSError, TypeError):
        code = getattr(plain, "__code__", None)
        text = code.co_code + repr(code.co_consts).encode() if code is not None else b""
    return hashlib.sha256(text).hexdigest()[:12]


def call_of(arguments: Mapping[str, Any], matters: Collection[str] | None = None) -> dict[str, Any]:
    """Return the arguments that may set sizes: shapes, integers, short texts and booleans.

    With `matters` only those arguments count, floats among them.
    """
    found = {}
    for name, value in arguments.items():
        if matters is None or name in matters:
            feature = _feature(value, floats=matters is not None)
            if feature is not None:
                found[name] = feature
    return found


def _feature(value: Any, *, floats: bool) -> Any:
    shape = getattr(value, "shape", None)
    if shape is not None:
        # The type counts: the same shape in half precision is half as much.
        return [*(int(size) for size in shape), str(getattr(value, "dtype", ""))]
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if floats else None  # a learning rate sets no sizes
    if isinstance(value, str):
        return value if len(value) <= WORD_LIMIT else None
    if isinstance(value, (list, tuple, dict)):
        return [len(value), type(value).__name__]
    return None


def strip(source: str) -> str:
    """Return the source of a function without decorators and comments."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return source
    for node in _definitions(tree):
        node.decorator_list = []
    return ast.unparse(tree)


def _definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
