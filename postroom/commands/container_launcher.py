"""Runs a command in a container, on the granted GPUs and with nothing else of the host.

    minder, or gpu run --> this launcher --> podman run (the client) --> conmon --> the container
                                |                                                       ^
                                '-- the lease's lock, inherited: --preserve-fds --------'

Who holds the lease, and who ends the container:

    engine     holder of the lease             after kill -9 of the client  after kill -9 of all
    podman     the processes of the container  the launcher waits for it    the container holds it
    docker     launcher, and a guard           the launcher waits for it    the guard holds it
    apptainer  the processes of the container  (they are below the client, and below the minder)

* podman hands descriptors to the container, so the lock of the lease ends with the container and
  not before, whichever process is killed. docker cannot: its daemon starts containers. A guard,
  which hears no signal but SIGKILL, has the lock until the container has ended.
* A job is killed by its minder. Below it are the client, conmon and the container (podman), which
  get SIGTERM and after the grace SIGKILL. Then the minder has the container removed by its name,
  which also ends what docker's daemon runs. If the minder is killed, the mark in the environment
  finds the processes of the container (`process_tree.sweep`).
* The exit code of the launcher is the container's. If the client was killed, the launcher asks the
  engine for it; so the launcher removes the container, and not the engine (`--rm`), which would
  forget the code. What is left if the launcher of `gpu run` is killed, too, is the engine's entry
  of a container that has ended; `podman container prune` removes it.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ..errors import PostroomError
from ..system import processes
from ..system.own_python import own_python
from ..system.process_tree import adopt_orphans

ENGINES = ("podman", "docker", "apptainer", "singularity")
ENGINE = "POSTROOM_CONTAINER_ENGINE"  # which engine, with options of its own: "podman --root /x"
OPTIONS = "POSTROOM_CONTAINER_OPTIONS"  # of `run`: "--shm-size 8g --network=host"
NAME = "POSTROOM_CONTAINER"  # the container's name
FAILED = 125  # the engine's own code for "the container did not run"
REMOVE_S = 60.0
CLEANING_S = 10.0
_PASSED = ("POSTROOM_", "CUDA_", "HIP_", "ROCR_", "NVIDIA_", "NCCL_", "OMP_", "SGE_", "PYTORCH_")

# The first process of a container ignores SIGTERM unless it handles it: this one hands it on, also
# one that comes while it starts the command.
_FIRST = (
    'exec 9<&0; told=; trap told=1 TERM; test -z "$told" || exit 143; '
    "\"$@\" <&9 9<&- & trap 'kill -TERM $! 2>/dev/null' TERM; "
    'exec 9<&-; test -z "$told" || kill -TERM $!; wait $!; code=$?; '
    "while kill -0 $! 2>/dev/null; do wait $!; code=$?; done; exit $code"
)


class ContainerRequest(NamedTuple):
    """A command, and the image that it runs in."""

    image: str
    words: Sequence[str]
    cwd: str
    name: str
    terminal: bool = False  # it is used by hand


def launcher_words(image: str, words: Sequence[str]) -> list[str]:
    """The command that runs words in a container of an image, in the folder where it is called."""
    return [*own_python("postroom.commands.container_launcher"), image, *words]


def remove(name: str, environment: Mapping[str, str]) -> None:
    """End and remove a container, if there is one of that name."""
    words = own_python("postroom.commands.container_launcher", "--remove", name)
    try:
        subprocess.run(
            words, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=REMOVE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return  # the engine does not answer: only its administrator can help


def find_engine(environment: Mapping[str, str]) -> list[str]:
    """The words that call the engine: the one that is named, or the first that is installed."""
    named = shlex.split(environment.get(ENGINE, ""))
    if named:
        return named
    for engine in ENGINES:
        if shutil.which(engine, path=environment.get("PATH")):
            return [engine]
    raise PostroomError(
        "no container engine is installed: install podman, docker or apptainer, or name one with "
        f"{ENGINE}"
    )


def run_words(
    engine: Sequence[str],
    request: ContainerRequest,
    environment: Mapping[str, str],
    *,
    n_fds: int = 0,
    uid: int = 0,
    gid: int = 0,
    keeps_id: bool = True,
) -> list[str]:
    """The command line that runs a container; pure, so that every engine's can be tested."""
    kind = os.path.basename(engine[0])
    passed = passed_environment(environment, renumbered=kind in ("podman", "docker"))
    extra = shlex.split(environment.get(OPTIONS, ""))
    folders = [request.cwd]
    own = environment.get("POSTROOM_FOLDER", "")  # with its checkpoint
    if own and not f"{own}/".startswith(f"{request.cwd}/"):
        folders.append(own)
    command = ["/bin/sh", "-c", _FIRST, "sh", *request.words]
    if kind not in ("podman", "docker"):
        return [
            *engine, "exec", *_apptainer_gpus(environment), "--pwd", request.cwd,
            *(word for folder in folders for word in ("--bind", folder)),
            *(word for pair in passed.items() for word in ("--env", "=".join(pair))),
            *extra, request.image, *request.words,
        ]  # fmt: skip
    user = ["--user", f"{uid}:{gid}"]
    if kind == "podman":
        # Rootless podman maps our own id to root of the container, unless it keeps it. It can do
        # that only for users who have more ids: for others we are root there, and ourselves here.
        if uid:
            user = ["--userns=keep-id"] if keeps_id else []
        user += [f"--preserve-fds={n_fds}"] if n_fds else []
    return [
        *engine, "run", "-it" if request.terminal else "-i",
        "--name", request.name, "--label", "postroom", *user,
        *(_podman_gpus(environment) if kind == "podman" else _docker_gpus(environment)),
        *(word for folder in folders for word in ("-v", f"{folder}:{folder}")),
        "-w", request.cwd,
        *(word for pair in passed.items() for word in ("-e", "=".join(pair))),
        "--entrypoint", command[0], *extra, request.image, *command[1:],
    ]  # fmt: skip


def passed_environment(environment: Mapping[str, str], *, renumbered: bool) -> dict[str, str]:
    """The variables that a command in a container gets; in it, the granted GPUs count from 0."""
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(_PASSED) and name not in (ENGINE, OPTIONS)
    }
    granted = _real(environment)
    if renumbered and granted and "CUDA_VISIBLE_DEVICES" in found:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(n) for n in range(len(granted)))
    return found


def _real(environment: Mapping[str, str]) -> list[str]:
    """The uuids of the granted GPUs; simulated ones are in no container."""
    uuids = environment.get("POSTROOM_GPU", "").split(",")
    return [uuid for uuid in uuids if uuid and uuid != "cpu" and not uuid.startswith("FAKE-")]


def has_more_ids(uid: int, subuid: str = "/etc/subuid", nss: str = "/etc/nsswitch.conf") -> bool:
    """Whether a user may use ids in containers beside their own; a directory may know of them."""
    with suppress(OSError), open(nss, encoding="utf-8") as file:
        if any(line.startswith("subid:") for line in file):
            return True
    names = {str(uid)}
    with suppress(KeyError):
        names.add(pwd.getpwuid(uid).pw_name)
    with suppress(OSError), open(subuid, encoding="utf-8") as file:
        return any(line.partition(":")[0] in names for line in file)
    return False


def _podman_gpus(environment: Mapping[str, str]) -> list[str]:
    if "HIP_VISIBLE_DEVICES" in environment:
        return _amd(environment)
    return [word for uuid in _real(environment) for word in ("--device", f"nvidia.com/gpu={uuid}")]


def _docker_gpus(environment: Mapping[str, str]) -> list[str]:
    if "HIP_VISIBLE_DEVICES" in environment:
        return _amd(environment)
    uuids = _real(environment)
    return ["--gpus", f'"device={",".join(uuids)}"'] if uuids else []


def _amd(environment: Mapping[str, str]) -> list[str]:
    """ROCm has one device for all GPUs: HIP_VISIBLE_DEVICES says which are used."""
    return ["--device=/dev/kfd", "--device=/dev/dri"] if _real(environment) else []


def _apptainer_gpus(environment: Mapping[str, str]) -> list[str]:
    if not _real(environment):
        return []
    return ["--rocm" if "HIP_VISIBLE_DEVICES" in environment else "--nv"]


class Launcher:
    """Runs one container, and is its client's parent."""

    def __init__(self, request: ContainerRequest, environment: Mapping[str, str]) -> None:
        self._request = request
        self._engine = find_engine(environment)
        self._kind = os.path.basename(self._engine[0])
        self._environment = environment
        self._client: subprocess.Popen[bytes] | None = None
        self._told = 0  # the last signal that came
        self._early = 0  # ... before there was a client that it could be handed on to

    def run(self) -> int:
        """Run the container to its end; return its exit code."""
        adopt_orphans()  # conmon leaves the client, and must not outlive us
        fds = _line_up(_inherited())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._hand_on)
        words = run_words(
            self._engine,
            self._request,
            self._environment,
            n_fds=len(fds),
            uid=os.geteuid(),
            gid=os.getegid(),
            keeps_id=has_more_ids(os.geteuid()),
        )
        try:
            self._client = subprocess.Popen(words, pass_fds=fds)
        except OSError as error:
            raise PostroomError(f"{words[0]} cannot be started: {error.strerror}") from None
        if self._early:
            self._client.send_signal(self._early)
        if self._kind == "docker":
            self._start_guard(fds)
        code = self._client.wait()
        if code >= 0:
            self._await_cleaning()
            if code == 0 and self._told and self._kind in ("podman", "docker"):
                # Rootless podman answers 0 to SIGTERM, whatever becomes of its container.
                self._ask("wait", self._request.name)
                code = self._code_of_container(-self._told)
        elif not self._told and self._kind in ("podman", "docker"):
            code = self._wait_without_client(code)
        self.end()
        return code if code >= 0 else 128 - code

    def _await_cleaning(self) -> None:
        """Wait for what the engine does after a container; our own end would end it."""
        give_up_at = time.monotonic() + CLEANING_S
        with suppress(ChildProcessError):
            while time.monotonic() < give_up_at:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.02)

    def _hand_on(self, number: int, frame: object) -> None:
        self._told = number
        if self._client is None:
            self._early = number
        else:
            self._client.send_signal(number)  # which hands it on to the container

    def _wait_without_client(self, code: int) -> int:
        """The client was killed, the container was not: wait for it, and learn its exit code."""
        print(
            "postroom: the client of the container was killed; the container goes on, and its "
            "output from here on is lost",
            file=sys.stderr,
            flush=True,
        )
        self._ask("wait", self._request.name)
        self._await_cleaning()
        return self._code_of_container(code)

    def _code_of_container(self, code: int) -> int:
        """The exit code of the container; `code` if it has not run."""
        asked = "{{.State.Status}} {{.State.ExitCode}}"
        said = self._ask("inspect", "--format", asked, self._request.name).stdout.split()
        # A client that was killed while it started the container has not noted that it runs: the
        # engine then says "created", and a code of 0 that means nothing.
        ran = said[:1] in (["exited"], ["stopped"]) and said[1].isdecimal()
        return int(said[1]) if ran else code

    def _start_guard(self, fds: Sequence[int]) -> None:
        """Leave a process that has the lease until docker's daemon says that it has ended."""
        launcher = processes.myself()
        if os.fork():
            return
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        # The daemon may not have made it yet; if it never does, the client ends.
        while self._ask("wait", self._request.name).returncode and processes.alive(launcher):
            time.sleep(0.1)
        os._exit(0)

    def end(self) -> None:
        """End and remove the container, if it is still there."""
        if self._kind in ("podman", "docker"):
            self._ask("rm", "-f", self._request.name)

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._engine, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )


def _inherited() -> list[int]:
    """The locks that we inherited: they say that somebody of a session, or a lease, is alive."""
    found = []
    for name in os.listdir("/proc/self/fdinfo"):
        with suppress(OSError), open(f"/proc/self/fdinfo/{name}") as file:
            if int(name) > 2 and os.get_inheritable(int(name)) and "FLOCK" in file.read():
                found.append(int(name))
    return sorted(found)


def _line_up(fds: Sequence[int]) -> tuple[int, ...]:
    """Give descriptors the numbers from 3 on: podman hands on only those."""
    high = [os.dup(fd) for fd in fds]
    while any(fd < 3 + len(fds) for fd in high):
        high = [os.dup(fd) for fd in high]
    for fd in fds:
        os.close(fd)
    for n, fd in enumerate(high):
        os.dup2(fd, 3 + n, inheritable=True)
        os.close(fd)
    return tuple(range(3, 3 + len(fds)))


def main() -> int:
    """Run `IMAGE WORD...` in a container, or remove one."""
    image, *words = sys.argv[1:]
    environment = dict(os.environ)
    name = environment.get(NAME) or f"postroom-{os.urandom(6).hex()}"
    try:
        if image == "--remove":
            Launcher(ContainerRequest("", [], "/", words[0]), environment).end()
            return 0
        by_hand = sys.stdin.isatty() and sys.stdout.isatty()
        request = ContainerRequest(image, words, os.getcwd(), name, by_hand)
        return Launcher(request, environment).run()
    except PostroomError as error:
        print(f"postroom: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
