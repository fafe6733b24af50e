"""Options in a script: the lines `#SBATCH` and `#$` that `postroom submit script.sh` reads.

They become words of `submit` itself, so each means what it means there, and what is typed counts
before what is in the script. What has no meaning here is named, not dropped in silence.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import PostroomError

SBATCH, GRID_ENGINE = "#SBATCH", "#$"
# A script is a text of some lines; what is larger is a program.
MOST_BYTES = 1 << 20

_SHELLS = ("sh", "bash", "zsh", "ksh", "dash")
_LOGS = "read the output with: postroom logs JOB"
_ONE_HOST = "this queue has one machine"
_HOST_MEMORY = "memory and processors of the host are not counted"
_NO_ACCOUNTS = "there are no accounts and partitions"
_QUEUED_AGAIN = "a job that was stopped is always queued again"


@dataclass
class ScriptLines:
    """What the lines of a script ask for."""

    words: list[str] = field(default_factory=list)  # options of `submit`
    left_out: list[str] = field(default_factory=list)  # what has no meaning here, and why
    kind: str = ""  # which lines it has
    verdict: str = "has no meaning here"

    def read(self, words: Sequence[str]) -> None:
        """Read the words of one line."""
        left = list(words)
        while left:
            option, equals, value = left.pop(0).partition("=")
            if self.kind == SBATCH and re.fullmatch(r"-[A-Za-z].+", option):  # -t10 is -t 10
                option, value, equals = option[:2], option[2:] + equals + value, "="
            if not equals and option not in _SWITCHES and left and _is_value(left[0]):
                value = " ".join(_values(option, left))
            joint = "=" if equals and option.startswith("--") else " "
            self.take(option, value, line=f"{option}{joint}{value}" if value else option)

    def read_typed(self, words: Sequence[str]) -> list[str]:
        """Read what somebody typed; return the words from the first that is no option."""
        left = list(words)
        while left and left[0].startswith("-") and left[0] != "-":
            option = left.pop(0)
            values = []
            if option in self.table and option not in _SWITCHES:
                values = _values(option, left)
                if not values:
                    raise PostroomError(f"{option} needs a value")
            self.take(option, " ".join(values), line=" ".join([option, *values]))
        return left

    @property
    def table(self) -> _Table:
        """What its options become."""
        return _OF_SLURM if self.kind == SBATCH else _OF_GRID_ENGINE

    def take(self, option: str, value: str = "", *, line: str) -> None:
        """Take in one option of one line."""
        if option == "-l" and "," in value:
            for part in value.split(","):
                self.take(option, part, line=f"-l {part}")
            return
        known = self.table.get(option)
        if known is None or isinstance(known, str):
            self.leave_out(line, known or "")
            return
        try:
            made = known(value)
        except (ValueError, PostroomError):
            raise PostroomError(f"{self.kind} {line}: {value!r} cannot be read") from None
        if made is None:
            self.leave_out(line)
        else:
            self.words += made

    def leave_out(self, line: str, why: str = "") -> None:
        """Note what has no meaning here."""
        self.left_out.append(f"{line} {self.verdict}{f': {why}' if why else ''}")


def read_script(path: str) -> str:
    """The text of a script with such lines; "": it is something else, or has none."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
            return ""
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        return ""
    return text if any(map(_kind_of, _head(text))) else ""


def _head(text: str) -> list[str]:
    """The lines before the first command: Slurm reads no further, and neither does this."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        found.append(line)
    return found


def _kind_of(line: str) -> str:
    if re.match(r"#SBATCH\s", line):
        return SBATCH
    return GRID_ENGINE if re.match(r"#\$\s*-", line) else ""


def read_lines_of(text: str) -> ScriptLines:
    """What the lines of a script ask for; a value that cannot be read is a PostroomError."""
    lines = [(kind, line) for line in _head(text) if (kind := _kind_of(line))]
    found = ScriptLines(kind=lines[0][0] if lines else "")
    for kind, line in lines:
        if kind != found.kind:
            found.leave_out(line, f"the script has {found.kind} lines")
            continue
        said = line.removeprefix(kind).strip()
        try:
            words = shlex.split(said, comments=True)
        except ValueError as error:
            raise PostroomError(f"{line!r} cannot be read: {error}") from None
        found.read(words)
    return found


def _is_value(word: str) -> bool:
    return not word.startswith("-") or word[1:].isdigit()


def _values(option: str, left: list[str]) -> list[str]:
    """Take the values of an option from the words behind it: -pe has two."""
    count = 2 if option == "-pe" else 1
    taken = left[:count]
    del left[:count]
    return taken


def as_command(text: str, path: str, arguments: Sequence[str]) -> str:
    """The command for a script: its text, as it is now; for another interpreter, a call of it."""
    first = text.partition("\n")[0]
    if first.startswith("#!") and not any(re.search(rf"\b{name}\b", first) for name in _SHELLS):
        return shlex.join([os.path.abspath(path), *arguments])
    return f"set -- {shlex.join(arguments)}\n{text}" if arguments else text


def shell_of(text: str) -> str:
    """The shell that the first line of a script names."""
    first = text.partition("\n")[0]
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    known = [os.path.basename(word) for word in words]
    return next((word for word in known if word in _SHELLS), "bash")


# What each option becomes: words of `submit`; None: nothing, and it is named; a text says why.
_Made = list[str] | None
_Table = dict[str, Callable[[str], _Made] | str]


def _gpus(value: str) -> _Made:
    """2, or a100:2."""
    kind, colon, count = value.rpartition(":")
    number = str(int(count or "1"))
    return ["--gpus", number, *(["--require", kind] if colon and kind else [])]


def _gres(value: str) -> _Made:
    """gpu:2, gpu:a100:2 or gpu; what is no GPU is named."""
    made: list[str] = []
    for part in value.split(","):
        name, _, rest = part.partition(":")
        if name != "gpu":
            return None
        counted = rest.rpartition(":")[2].isdigit()
        made += _gpus(rest if counted else f"{rest}:1" if rest else "1") or []
    return made


def seconds_of(value: str) -> str:
    """A time limit as Slurm writes it: minutes, min:sec, h:min:sec, days-hours[:min[:sec]]."""
    days, dash, rest = value.rpartition("-")
    numbers = [int(one) for one in rest.split(":")]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return f"{((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds}s"


def _time(value: str) -> _Made:
    return ["--time-limit", seconds_of(value)]


def _dependency(value: str) -> _Made:
    made: list[str] = []
    for part in value.split(","):
        kind, _, jobs = part.partition(":")
        option = {"afterok": "--after", "afterany": "--after-any"}.get(kind)
        if option is None or not jobs:
            return None
        made += [word for job in jobs.split(":") for word in (option, job)]
    return made


def _resource(value: str) -> _Made:
    """gpu=2 or h_rt=1:00:00; others are named."""
    name, _, rest = value.partition("=")
    if name in ("gpu", "gpus", "ngpus"):
        return ["--gpus", str(int(rest))]
    if name in ("h_rt", "s_rt"):
        return ["--time-limit", seconds_of(rest) if ":" in rest else f"{int(rest)}s"]
    return None


def _variables(value: str) -> _Made:
    found = []
    for part in value.split(","):
        name, equals, text = part.partition("=")
        if name not in ("ALL", "NONE"):
            found += ["--env", f"{name}={text if equals else os.environ.get(name, '')}"]
    return found if "NONE" not in value.split(",") else None


def _slurm_array(value: str) -> _Made:
    first, percent, most = value.partition("%")
    span = first if "-" in first else f"{first}-{first}"
    return ["--array", span + percent + most]


def _begin(value: str) -> _Made:
    said = re.sub(r"^now\+(\d+)$", r"now+\1s", value)
    for word, unit in (("second", "s"), ("minute", "m"), ("hour", "h"), ("day", "d")):
        said = re.sub(rf"^now\+(\d+){word}s?$", rf"now+\1{unit}", said)
    return ["--begin", said]


_SWITCHES = (
    "-cwd", "-V", "-h", "-terse", "-notify", "-H", "--hold", "-W", "--wait", "--requeue",
    "--no-requeue", "--exclusive", "--overcommit", "--parsable", "-Q", "--quiet",
)  # fmt: skip
_OF_SLURM: _Table = {
    **dict.fromkeys(("-J", "--job-name"), lambda value: ["--name", value]),
    **dict.fromkeys(("-t", "--time"), _time),
    **dict.fromkeys(("-D", "--chdir"), lambda value: ["--cwd", value]),
    **dict.fromkeys(("-a", "--array"), _slurm_array),
    **dict.fromkeys(("-G", "--gpus", "--gpus-per-node", "--gpus-per-task"), _gpus),
    **dict.fromkeys(("-C", "--constraint"), lambda value: ["--require", value.replace("&", " ")]),
    **dict.fromkeys(("-d", "--dependency"), _dependency),
    **dict.fromkeys(("-b", "--begin"), _begin),
    **dict.fromkeys(("-H", "--hold"), lambda value: ["--hold"]),
    **dict.fromkeys(("-W", "--wait"), lambda value: ["--wait"]),
    **dict.fromkeys(("-N", "--nodes", "-n", "--ntasks", "--ntasks-per-node"), _ONE_HOST),
    **dict.fromkeys(("-w", "--nodelist", "-x", "--exclude", "--exclusive"), _ONE_HOST),
    **dict.fromkeys(("-c", "--cpus-per-task", "--mem", "--mem-per-cpu", "--mem-per-gpu"),
                    _HOST_MEMORY),
    **dict.fromkeys(("-p", "--partition", "-A", "--account", "-q", "--qos"), _NO_ACCOUNTS),
    **dict.fromkeys(("-o", "--output", "-e", "--error", "--open-mode"), _LOGS),
    **dict.fromkeys(("--mail-type", "--mail-user"), "use submit --notify"),
    **dict.fromkeys(("--requeue", "--no-requeue"), _QUEUED_AGAIN),
    "--gres": _gres,
    "--nice": lambda value: ["--priority", str(-int(value or "100"))],
    "--priority": lambda value: ["--priority", str(int(value))],
    "--export": _variables,
    "--signal": "SIGTERM comes at the time limit, then --grace",
    "--comment": lambda value: [],
    "--parsable": lambda value: [],
}  # fmt: skip
_OF_GRID_ENGINE: _Table = {
    "-N": lambda value: ["--name", value],
    "-wd": lambda value: ["--cwd", value],
    "-cwd": lambda value: [],  # as usual
    "-V": lambda value: [],  # every job gets the whole environment
    "-terse": lambda value: [],
    "-t": _slurm_array,
    "-tc": lambda value: ["--limit", str(int(value))],
    "-hold_jid": lambda value: [w for job in value.split(",") for w in ("--after-any", job)],
    "-p": lambda value: ["--priority", str(int(value))],
    "-P": lambda value: ["--project", value],
    "-v": _variables,
    "-h": lambda value: ["--hold"],
    "-l": _resource,
    "-S": lambda value: ["--shell", os.path.basename(value)],
    "-sync": lambda value: ["--wait"] if value.startswith("y") else [],
    "-j": lambda value: [] if value.startswith("y") else ["--split-output"],
    "-o": _LOGS,
    "-e": _LOGS,
    "-q": _NO_ACCOUNTS,
    "-A": _NO_ACCOUNTS,
    "-pe": _HOST_MEMORY,
    "-m": "use submit --notify",
    "-M": "use submit --notify",
    "-a": "use submit --begin",
    "-r": _QUEUED_AGAIN,
    **dict.fromkeys(("-b", "-w", "-R", "-ckpt"), ""),
}
