"""Starting, stopping and waiting for sessions of a base, from outside."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import PostroomError
from ..store.base import Base
from ..store.files import Files, LocalFiles
from ..store.snapshot import living_agents
from .guardian import PACKAGE_PARENT
from .slots import choose_gpus

# Importing torch on a busy machine takes a while; a session that is still silent then is broken.
READY_S = 180.0
POLL_S = 0.05


@dataclass(frozen=True)
class Started:
    """A session that was just started, or was found alive."""

    agent_id: str
    pid: int
    new: bool
    process: subprocess.Popen[bytes] | None = None


def start_sessions(
    base: Base,
    slots: Sequence[tuple[str, str]],
    *,
    say: Callable[[str], None],
    while_pid: int | None = None,
) -> list[Started]:
    """Start a detached session for each (agent id, GPU) that has none, and wait until all serve.

    With `while_pid` the new ones end when that process does, however it ends.
    """
    files = LocalFiles()
    started = []
    for agent_id, gpu in slots:
        card = living_agents(files, base, agent_id)
        if card is not None:
            started.append(Started(agent_id, card.pid, new=False))
        else:
            threads = _share_of_cores(len(slots))
            started.append(_spawn(base, agent_id, gpu, threads=threads, while_pid=while_pid))
    new = [session.agent_id for session in started if session.new]
    if new:
        say(f"starting agents {', '.join(new)} (importing torch may take a moment)")
    try:
        for session in started:
            _wait_until_ready(files, base, session)
            if session.new:
                say(
                    f"agent {session.agent_id} started (pid {session.pid}); log: {base.log}; "
                    f"stop: python agent.py stop {shlex.quote(base.root)} {session.agent_id}"
                )
            else:
                say(f"agent {session.agent_id} lives already (pid {session.pid})")
    except BaseException:
        for session in started:
            if session.process is not None and session.process.poll() is None:
                session.process.terminate()
                session.process.wait()
        raise
    return started


@contextlib.contextmanager
def hired(base: Base, n_gpu: int, *, say: Callable[[str], None]) -> Iterator[list[str]]:
    """Have agents while the block runs: living ones are used, new ones stopped afterwards."""
    slots = [(gpu, gpu) for gpu in choose_gpus(n_gpu, say=say)]
    started = start_sessions(base, slots, say=say, while_pid=os.getpid())
    try:
        yield [session.agent_id for session in started]
    finally:
        stop_sessions(base, [session.agent_id for session in started if session.new], say=say)


def stop_sessions(
    base: Base,
    agent_ids: Sequence[str],
    *,
    now: bool = False,
    say: Callable[[str], None],
) -> list[str]:
    """Stop sessions, by default after the job in hand; return those that were stopped."""
    files = LocalFiles()
    stopped = []
    waiting = []
    for agent_id in agent_ids:
        card = living_agents(files, base, agent_id)
        if card is None:
            say(f"agent {agent_id} does not live")
            continue
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(card.pid)
            try:
                # Asked again behind the descriptor: now the pid cannot change hands any more.
                if living_agents(files, base, agent_id) == card:
                    for _ in range(2 if now else 1):
                        signal.pidfd_send_signal(fd, signal.SIGTERM)
                        if now:
                            time.sleep(POLL_S)
            finally:
                os.close(fd)
        waiting.append((agent_id, card))
    for agent_id, card in waiting:
        while living_agents(files, base, agent_id) == card:
            time.sleep(POLL_S)
        say(f"agent {agent_id} stopped")
        stopped.append(agent_id)
    return stopped


def session_log(base: Base, agent_id: str) -> str:
    """Where a detached session's own words go, for the day it cannot start."""
    return f"{os.path.dirname(base.log)}/session-{agent_id}.txt"


@contextlib.contextmanager
def new_session_log(base: Base, agent_id: str) -> Iterator[int]:
    """An empty file for a session's words, open for whoever starts the session."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    log = os.open(session_log(base, agent_id), flags, 0o600)
    try:
        yield log
    finally:
        os.close(log)


def spawn_session(words: Sequence[str], log: int) -> subprocess.Popen[bytes]:
    """Start `gpu_session.py WORDS`, detached from the terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "postroom.session", *words],
        cwd=PACKAGE_PARENT,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _spawn(base: Base, agent_id: str, gpu: str, *, threads: int, while_pid: int | None) -> Started:
    words = [gpu, base.root, "--agent", agent_id, "--threads", str(threads)]
    if while_pid is not None:
        words += ["--while-pid", str(while_pid)]
    with new_session_log(base, agent_id) as log:
        process = spawn_session(words, log)
    return Started(agent_id, process.pid, new=True, process=process)


def _wait_until_ready(files: Files, base: Base, session: Started) -> None:
    give_up_at = time.monotonic() + READY_S
    while not files.exists(base.mailbox(session.agent_id)):
        if session.process is None and living_agents(files, base, session.agent_id) is None:
            raise PostroomError(f"agent {session.agent_id} died while it was waited for")
        if session.process is not None and session.process.poll() is not None:
            raise PostroomError(
                f"agent {session.agent_id} could not start: {_last_words(base, session.agent_id)}"
            )
        if time.monotonic() > give_up_at:
            raise PostroomError(
                f"agent {session.agent_id} (pid {session.pid}) was not ready within {READY_S:g} s; "
                f"see {base.log}"
            )
        time.sleep(POLL_S)


def _last_words(base: Base, agent_id: str) -> str:
    path = session_log(base, agent_id)
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file.read().splitlines() if line.strip()]
    return lines[-1] if lines else f"it said nothing; see {path}"


def _share_of_cores(sessions: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // max(sessions, 1))
