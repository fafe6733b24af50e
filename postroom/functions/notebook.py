"""Functions of a notebook or a prompt, written into a module that a session can import.

The module holds the source of the function, the source of other functions of the notebook that it
uses, and constants; it imports the modules that they use. Its name is a hash of its content, so an
edited cell becomes another module, and jobs that were submitted before keep theirs.
"""

from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import PostroomError
from ..store.base import create_base

if TYPE_CHECKING:
    from .decorator import Function

VALUE_LIMIT = 1 << 16  # characters of a constant: more is data, which should be an argument
HEAD = '''"""Written by postroom: {name}, as it was in a notebook or at a prompt."""

from __future__ import annotations

import os
import sys

from postroom import job as _job

os.chdir({folder!r})
sys.path += [path for path in {paths!r} if path not in sys.path]
'''


def is_interactive(function: Callable[..., Any]) -> bool:
    """Return whether a function comes from a notebook or a prompt, not from a file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and not os.path.isfile(code.co_filename)


def write_module(job: Function[..., Any], base: str) -> tuple[str, str]:
    """Write the module of a function into a base; return import folder and task."""
    module = _Module()
    module.add_job(job)
    name = job.function.__name__
    head = HEAD.format(name=name, folder=os.getcwd(), paths=[path for path in sys.path if path])
    text = "\n".join([head, *module.lines, ""])
    module_name = f"cell_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    opened = create_base(base)
    os.makedirs(opened.notebook_functions, mode=0o700, exist_ok=True)
    path = f"{opened.notebook_functions}/{module_name}.py"
    if not os.path.exists(path):
        temporary = opened.temporary()
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    return opened.notebook_functions, f"{module_name}:{name}"


class _Module:
    """The lines of a module, as they are collected."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, Any] = {}  # already in the module

    def add_job(self, job: Function[..., Any]) -> None:
        """Add a decorated function, with its options and its stand-in."""
        name = job.function.__name__
        if not self._is_new(name, job, name):
            return
        self._add_source(job.function, name)
        self.lines.append(f"{name} = _job({job.arguments_of_decorator()})({name})")
        stand_in = job.stand_in
        if stand_in is not None:
            self._is_new(stand_in.__name__, stand_in, name)
            self._add_source(stand_in, name)
            self.lines.append(f"{name}.profile({stand_in.__name__})")

    def _is_new(self, name: str, value: Any, user: str) -> bool:
        if name not in self._names:
            self._names[name] = value
            return True
        if self._names[name] is not value:
            raise PostroomError(
                f"{user} and the functions that it uses mean two different things by {name!r}: "
                "rename one of them"
            )
        return False

    def _add_source(self, function: Callable[..., Any], user: str) -> None:
        """Add the source of a function, after everything that it uses."""
        plain = inspect.unwrap(function)
        if plain.__code__.co_freevars:
            raise PostroomError(
                f"{user} uses {plain.__code__.co_freevars[0]!r} of the function around it, which "
                "cannot be sent to a session: pass it as an argument"
            )
        try:
            source = textwrap.dedent(inspect.getsource(plain))
            tree = ast.parse(source)
        except (OSError, TypeError, SyntaxError):
            raise PostroomError(
                f"Python does not know the source of {plain.__name__}, as at a plain prompt: write "
                "it into a module and import it, or call it directly instead of with .submit"
            ) from None
        definition = tree.body[0]
        if isinstance(definition, (ast.FunctionDef, ast.ClassDef)):
            definition.decorator_list = [
                node for node in definition.decorator_list if not _is_ours(node, plain.__globals__)
            ]
        text = ast.unparse(tree)
        for name in _globals_of(text):
            if name != plain.__name__:
                self._add(name, plain.__globals__, plain.__name__)
        self.lines.append(text)

    def _add(self, name: str, known: dict[str, Any], user: str) -> None:
        """Add something that a function uses under a name."""
        from .decorator import Function  # late: it imports this module

        if name not in known:
            if hasattr(builtins, name) or name in ("__name__", "__file__"):
                return
            raise PostroomError(f"{user} uses {name!r}, which is not defined")
        value = known[name]
        if isinstance(value, Function) and is_interactive(value.function):
            self.add_job(value)
        elif self._is_new(name, value, user):
            self._add_value(name, value, user)

    def _add_value(self, name: str, value: Any, user: str) -> None:
        if isinstance(value, types.ModuleType) and value.__name__ != "__main__":
            self.lines.append(f"import {value.__name__} as {name}")
        elif _is_importable(value):
            self.lines.append(f"from {value.__module__} import {value.__qualname__} as {name}")
        elif isinstance(value, types.FunctionType):
            self._add_source(value, user)
            if name != value.__name__:
                self.lines.append(f"{name} = {value.__name__}")
        elif _is_plain(value):
            self.lines.append(f"{name} = {value!r}")
        else:
            raise PostroomError(
                f"{user} uses {name!r}, a {type(value).__name__} that cannot be sent to a session: "
                "pass it as an argument, or create it in the function or in a module"
            )


def _globals_of(text: str) -> list[str]:
    """Return the global names that some source uses, each once."""
    found: dict[str, None] = {}
    stack = [compile(f"from __future__ import annotations\n{text}", "<cell>", "exec")]
    while stack:
        code = stack.pop()
        stack += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found[str(instruction.argval)] = None
    return list(found)


def _is_ours(decorator: ast.expr, known: dict[str, Any]) -> bool:
    """Return whether a decorator is `@postroom.job` or `@function.profile`."""
    from . import decorator as own

    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    value: Any = known
    for part in ast.unparse(named).split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    bound_to = getattr(value, "__self__", None)
    return value is own.job or isinstance(bound_to, own.Function)


def _is_importable(value: Any) -> bool:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or module == "__main__" or not isinstance(name, str):
        return False
    return name.isidentifier() and getattr(sys.modules.get(module), name, None) is value


def _is_plain(value: Any) -> bool:
    """Return whether the `repr` of a value is its source."""
    text = repr(value)
    try:
        return len(text) <= VALUE_LIMIT and bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


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
