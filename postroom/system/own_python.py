"""Starting a module of this package in a Python process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping

# Python looks for the module of `-m` in the current folder first. So a process that starts in this
# folder finds this very package, installed or not.
PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def own_python(module: str, *words: str) -> list[str]:
    """The command that runs a module of this package with some arguments."""
    return [sys.executable, "-m", module, *words]


def start_detached(
    module: str,
    *words: str,
    log: int,
    cwd: str = PACKAGE_PARENT,
    env: Mapping[str, str] | None = None,
    pass_fds: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a module that survives this process and its terminal; its output goes to `log`."""
    return subprocess.Popen(
        own_python(module, *words),
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )
