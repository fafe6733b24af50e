"""Finds the source file of a task's function and its version, without importing it.

A Master never imports torch, so it never imports a kernel. It reads the source: that is enough to
report a wrong name before anything starts, and to record which version a run was submitted with.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import subprocess

from ..errors import KernelError
from ..system.own_python import PACKAGE_PARENT, own_python


def source_version(project: str, task: str) -> str:
    """Check that a task's function exists; return the version of the file that defines it."""
    module, _, function = task.partition(":")
    path = find_source(project, module)
    if path is None:
        raise KernelError(
            f"cannot find {module!r} of task {task!r} in {project}, nor installed: "
            "check the name, or run from the folder that has it"
        )
    if not path.endswith(".py"):
        return "binary"
    with open(path, "rb") as file:
        source = file.read()
    try:
        tree = ast.parse(source, path)
    except SyntaxError as error:
        raise KernelError(f"{path}, line {error.lineno}: {error.msg}") from None
    if not _defines(tree, function.partition(".")[0]):
        raise KernelError(f"{path} does not define {function!r} of task {task!r}: check the name")
    return version_of(source)


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
    """The file of a module: in the project's folder first, else where it is installed."""
    stem = os.path.join(project, *module.split("."))
    for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
        if os.path.isfile(candidate):
            return candidate
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None else None


def _defines(tree: ast.Module, name: str) -> bool:
    """Whether a module's top level may define a name; an `import *` may define anything."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == name:
                return True
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any((alias.asname or alias.name) in (name, "*") for alias in node.names):
                return True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            return True
    return False
