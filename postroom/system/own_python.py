"""Starting a module of this package in a Python process of its own.

`python -m` would import from the current folder first: in a folder of somebody else, a file named
`dataclasses.py` would run as us. So Python is told not to look there (`-P`), and where this very
package is, installed or not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping

from ..errors import PostroomError

PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
# A process that cannot start (a broken environment, a wrong option) has ended by then.
ALIVE_S = 0.5


def own_python(module: str, *words: str) -> list[str]:
    """The command that runs a module of this package with some arguments."""
    return [sys.executable, "-P", "-c", _START, PACKAGE_PARENT, module, *words]


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


def check_alive(process: subprocess.Popen[bytes], log: str, *, fine: Collection[int] = ()) -> None:
    """Raise an error with the end of its log if a detached process has failed at once."""
    give_up_at = time.monotonic() + ALIVE_S
    while time.monotonic() < give_up_at:
        code = process.poll()
        if code is not None and code not in fine:
            with open(log, encoding="utf-8", errors="replace") as file:
                last = file.read()[-2000:].strip()
            raise PostroomError(f"the background process ended at once (exit code {code}): {last}")
        time.sleep(0.02)
