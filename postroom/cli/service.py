"""Has a queue come back after a reboot: a systemd user unit, or a line for cron."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

from ..errors import PostroomError
from ..store.base import own_queue
from ..system.own_python import own_python
from .output import talk

# Variables of the shell that installs it which the queue needs, too.
KEPT = ("PATH", "POSTROOM_LEDGER", "POSTROOM_PROFILES", "POSTROOM_PRELOAD", "POSTROOM_REST",
        "POSTROOM_YIELD", "POSTROOM_BESIDE_STRANGERS", "POSTROOM_HALF_LIFE",
        "POSTROOM_FAKE_GPUS", "POSTROOM_FAKE_GPUS_FOLDER")  # fmt: skip
_UNIT = """\
[Unit]
Description=Postroom: the queue in {base}

[Service]
Type=exec
ExecStart={command}
{environment}Restart=on-failure
RestartSec=5
# SIGTERM: running jobs get theirs, save their state, and are queued again. If only this process is
# killed, jobs go on.
KillMode=process
TimeoutStopSec=120

[Install]
WantedBy=default.target
"""


def install(
    base: str, *, gpus: str | None, page: bool, port: int | None, yields: bool | None = None
) -> None:
    """Have the queue started after each reboot; where systemd cannot, say how cron does it."""
    words = ["up", base, *(["--gpus", gpus] if gpus else []), *([] if page else ["--no-page"])]
    words += ["--port", str(port)] if port is not None else []
    words += [] if yields is None else ["--yield" if yields else "--no-yield"]
    if not _has_user_manager():
        talk("no systemd serves this user: add this line with `crontab -e`")
        print(cron_line([*_postroom(), *words]))
        return
    path = unit_path(base)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(unit_text(base, [*_postroom(), *words, "--wait"]))
    _systemctl("daemon-reload")
    _systemctl("enable", os.path.basename(path))
    talk(f"{path} is written and enabled: the queue is back when you log in after a reboot")
    talk("to start it at boot, and to keep it when you log out: loginctl enable-linger")


def uninstall(base: str) -> None:
    """Have the queue started no more; what runs goes on."""
    path = unit_path(os.path.abspath(base))
    if not os.path.exists(path):
        raise PostroomError(f"there is no {path}; a line of cron is removed with `crontab -e`")
    if _has_user_manager():
        _systemctl("disable", os.path.basename(path))
    os.unlink(path)
    talk(f"{path} is removed; what runs now continues; to stop it: postroom down")


def unit_path(base: str) -> str:
    """The unit of a base: one for each."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    name = "postroom"
    if base != os.path.abspath(own_queue()):
        name += "-" + "".join(c if c.isalnum() else "-" for c in base).strip("-")
    return f"{config}/systemd/user/{name}.service"


def unit_text(base: str, command: list[str]) -> str:
    """The unit that runs a command for as long as the user's systemd lives."""
    environment = "".join(f"Environment={_quoted(pair)}\n" for pair in _kept())
    words = " ".join(_quoted(word).replace("$", "$$") for word in command)
    return _UNIT.format(base=base.replace("%", "%%"), command=words, environment=environment)


def cron_line(command: list[str]) -> str:
    """The line of a crontab that runs a command after a reboot; cron's own PATH is short."""
    line = shlex.join(["env", *_kept(), *command])
    return "@reboot " + line.replace("%", "\\%")  # a percent sign would begin a new line


def _kept() -> list[str]:
    return [f"{name}={os.environ[name]}" for name in KEPT if os.environ.get(name)]


def _quoted(word: str) -> str:
    """A word as systemd reads it: quotes, backslashes and percent signs mean something there."""
    for char, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("\n", "\\n")):
        word = word.replace(char, escaped)
    return f'"{word}"'


def _postroom() -> list[str]:
    """How to call this very Postroom."""
    script = os.path.join(os.path.dirname(sys.executable), "postroom")
    return [script] if os.access(script, os.X_OK) else own_python("postroom")


def _has_user_manager() -> bool:
    if shutil.which("systemctl") is None:
        return False
    asked = subprocess.run(
        ["systemctl", "--user", "show-environment"], capture_output=True, check=False
    )
    return asked.returncode == 0


def _systemctl(*words: str) -> None:
    done = subprocess.run(
        ["systemctl", "--user", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PostroomError(f"systemctl --user {' '.join(words)}: {done.stderr.strip()}")
