"""Finds the source file of a task's function and its version, without importing it.

A Master never imports torch, so it never imports a kernel. It reads the source: that is enough to
report a wrong name before anything starts, and to record which version a run was submitted with.

A session imports from one folder, and what is installed. Which folder that is, this process knows:
it is where it would import the module from itself, however it was started.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder

from ..errors import KernelError
from ..system.own_python import PACKAGE_PARENT, own_python

_LIBRARY = sysconfig.get_path("stdlib")
_SCRIPTS = sysconfig.get_path("scripts")
_FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def program_folder() -> str:
    """The folder of the running program: what it imports is looked for there first.

    The current one, if an installed program runs: pytest, a notebook, a debugger, `python -c`.
    """
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None:
        return os.getcwd()
    file = os.path.abspath(file)
    folder = folder_above(file, spec.name) if spec is not None else None
    folder = folder or os.path.dirname(file)
    return os.getcwd() if folder == _SCRIPTS or _is_installed(folder) else folder


def folder_above(file: str, module: str) -> str | None:
    """Return the folder from which a module is imported; None if its name is not its path."""
    stem = os.path.splitext(file.removesuffix(f"{os.sep}__init__.py"))[0]
    tail = os.sep + module.replace(".", os.sep)
    return stem[: -len(tail)] if stem.endswith(tail) else None


def import_folder(tasks: Iterable[str], program: str) -> str:
    """The folder from which this process would import some tasks; the program's, if any will do."""
    modules = dict.fromkeys(task.partition(":")[0] for task in tasks)
    folders = {folder for module in modules if (folder := _project_of(module)) is not None}
    return program if not folders or program in folders else min(folders)


def _project_of(module: str) -> str | None:
    """The folder that this process finds a module in; None if it is installed, or not there."""
    spec = _find(module.partition(".")[0])
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    origin = places[0] if places else spec.origin if spec.has_location else None
    if origin is None:
        return None  # a part of Python
    folder = os.path.dirname(os.path.abspath(origin))
    return None if folder == PACKAGE_PARENT or _is_installed(folder) else folder


def _is_installed(folder: str) -> bool:
    """Whether every session finds what is in a folder: it belongs to Python."""
    parts = folder.split(os.sep)
    packages = "site-packages" in parts or "dist-packages" in parts
    return packages or folder == _LIBRARY or folder.startswith(_LIBRARY + os.sep)


def _find(module: str) -> ModuleSpec | None:
    """Find a module as this process would import it; nothing is imported, not even its package."""
    spec: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            if "." not in name:
                spec = importlib.util.find_spec(name)
            else:
                places = spec.submodule_search_locations if spec is not None else None
                spec = PathFinder.find_spec(name, list(places or ()))
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
    return spec


def source_version(project: str, task: str) -> str:
    """Check that sessions can import a task; return the version of the file that defines it."""
    module, _, function = task.partition(":")
    path = find_source(project, module)
    if path is None:
        elsewhere = _project_of(module)
        if elsewhere is None:
            raise KernelError(
                f"cannot find {module!r} of task {task!r} in {project}, nor installed: check the "
                "name, or give the folder that has it: Master(base, import_folder=...)"
            )
        raise KernelError(
            f"sessions cannot find {module!r} of task {task!r}: it is in {elsewhere}, and they "
            f"import from {project}, since a run imports from one folder. Use "
            f"Master(base, import_folder={elsewhere!r}), and a run of its own for each folder"
        )
    if not path.endswith(".py"):
        return "binary"
    with open(path, "rb") as file:
        source = file.read()
    try:
        defined = _defines(source, path, function.partition(".")[0])
    except SyntaxError as error:
        raise KernelError(f"{path}, line {error.lineno}: {error.msg}") from None
    if not defined and not _has(module, path, function):
        raise KernelError(
            f"{path} does not define {function!r} of task {task!r} when it is imported: check the "
            "name, and that it is at the top level, not below `if __name__ == '__main__':`"
        )
    return version_of(source)


def _parse(source: bytes, path: str) -> ast.Module:
    """Parse a file, also while other threads do so.

    Python 3.11 counts the depth of all threads in one place, and sees a mismatch (gh-106905).
    """
    for _ in range(100):
        with contextlib.suppress(SystemError):
            return ast.parse(source, path)
    return ast.parse(source, path)


def _has(module: str, path: str, function: str) -> bool:
    """Whether this process has imported that file, and it has the function."""
    value: object = sys.modules.get(module)
    file = getattr(value, "__file__", None)
    if file is None or not os.path.exists(file) or not os.path.samefile(file, path):
        return False
    for part in function.split("."):
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def check_kernel(project: str, task: str) -> None:
    """Import a task's function for real, in a process of its own; KernelError says what is wrong.

    It takes seconds, and is worth it before agents are started: a missing package would fail every
    job.
    """
    source_version(project, task)
    done = subprocess.run(
        own_python("postroom.session.import_check", project, task),
        cwd=PACKAGE_PARENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise KernelError(lines[-1] if lines else f"importing {task!r} ended the interpreter")


def version_of(source: bytes) -> str:
    """Name a version of a source file by its content."""
    return hashlib.sha256(source).hexdigest()[:12]


def find_source(project: str, module: str) -> str | None:
    """The file of a module that sessions import: in the project's folder first, else installed."""
    stem = os.path.join(project, *module.split("."))
    for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
        if os.path.isfile(candidate):
            return candidate
    importlib.invalidate_caches()
    spec = _find(module)
    if spec is None:
        return None
    at = _project_of(module)
    # Python itself says whether it finds what is not in its own folders (PYTHONPATH, .pth files).
    if at not in (None, project) and not _python_finds(module.partition(".")[0]):
        return None
    return spec.origin


@lru_cache(maxsize=256)
def _python_finds(module: str) -> bool:
    """Whether a new Python, which is not this program, finds a module."""
    command = [sys.executable, "-P", "-c", _FIND, module]
    return not subprocess.run(command, cwd="/", stderr=subprocess.DEVNULL, check=False).returncode


class _Names(ast.NodeVisitor):
    """The names that a module has when it is imported."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.unknown = False  # it may have any name: import *, globals(), __getattr__

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.found.add(node.name)
        self.unknown |= node.name == "__getattr__"
        for inner in ast.walk(node):
            if isinstance(inner, ast.Global):
                self.found.update(inner.names)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name is ast's

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.found.add(node.name)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("__name__ == '__main__'", "'__main__' == __name__"):
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self.found.add(node.asname or node.name.partition(".")[0])
        self.unknown |= node.name == "*"

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.found.add(node.id)
        self.unknown |= node.id in ("globals", "vars", "exec")


@lru_cache(maxsize=32)
def _defines(source: bytes, path: str, name: str) -> bool:
    """Whether a module may have a name when it is imported; every run asks."""
    names = _Names()
    names.visit(_parse(source, path))
    return names.unknown or name in names.found
