"""Compute mode EXCLUSIVE_PROCESS: set by `--exclusive`, and reset afterwards.

The mode belongs to the card, not to us: it outlives a session that is killed. So a session notes
the mode that it found, in its user's folder of the ledger, before it sets the new one, and keeps
the note locked while it lives. The next session on the card that finds the note unlocked puts the
mode back, whether it was started with `--exclusive` or not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator

Say = Callable[[str], None]

COMMANDS = (
    "--exclusive: only one process can use the GPU, and that is this session's worker{when}: "
    "commands of this session cannot use it; give them a session without --exclusive on another GPU"
)


@contextlib.contextmanager
def exclusive_mode(
    gpu: str, *, wanted: bool, warm: bool, lazy: bool = False, say: Say
) -> Iterator[None]:
    """Keep every other process off the GPUs while the block runs, where the driver allows it.

    The driver usually allows it only to root. If it refuses, this is reported, and the session goes
    on: the ledger keeps other sessions off the GPU anyway. `warm`: a worker of the session has the
    only context.
    """
    cards = [uuid for uuid in gpu.split(",") if uuid.startswith("GPU-")]
    if wanted and not cards:
        say(f"--exclusive does nothing on {gpu}: only whole NVIDIA cards have compute modes")
    with contextlib.ExitStack() as stack:
        for uuid in cards:
            _mend(uuid, say)
        modes = [stack.enter_context(_set(uuid, say)) for uuid in cards if wanted]
        if warm and any(modes):
            say(COMMANDS.format(when=", from its first Python job on" if lazy else ""))
        yield


def _mend(uuid: str, say: Say) -> None:
    """Put back the mode that a killed session has left set."""
    path = _note(uuid)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    with open(fd, "rb") as file:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # the session lives
        with contextlib.suppress(ValueError, KeyError, TypeError):
            before = int(json.loads(file.read())["before"])
            error = _change(uuid, before)
            if error:
                say(f"compute mode EXCLUSIVE_PROCESS was left set, and stays: {error}")
                return
            say("compute mode EXCLUSIVE_PROCESS was left set by a session that was killed: reset")
        os.unlink(path)


@contextlib.contextmanager
def _set(uuid: str, say: Say) -> Iterator[bool]:
    """Set the mode of one card while the block runs; yields whether it is set."""
    import pynvml

    path = _note(uuid)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        say("--exclusive: another session on this GPU has set the compute mode already")
        yield True
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            pynvml.nvmlInit()
            before = pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid))
            # First the note: a session that is killed between the two leaves nothing set.
            os.write(fd, json.dumps({"before": before}).encode())
            error = _change(uuid, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        except pynvml.NVMLError as failure:
            before, error = None, str(failure)
        if error:
            say(f"compute mode EXCLUSIVE_PROCESS could not be set ({error}); going on without it")
        try:
            yield not error
        finally:
            if before is not None and not error:
                error = _change(uuid, before)
            with contextlib.suppress(OSError):
                os.unlink(path)
    finally:
        os.close(fd)


def _change(uuid: str, mode: int) -> str:
    """Set the compute mode of a card; return why it could not be set."""
    import pynvml

    try:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceSetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid), mode)
    except pynvml.NVMLError as error:
        return str(error)
    return ""


def _note(uuid: str) -> str:
    from ..gpus.ledger.protocol import open_ledger

    return os.path.join(open_ledger().own_folder(), f"mode-{uuid.replace('/', '_')}")
