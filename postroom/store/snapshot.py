"""What a base looks like now: the one query behind every listing, table and page."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from ..errors import BadFileError, OtherVersionError
from ..system.processes import Process, alive, pid_namespace
from .agents import PROTOCOL, AgentInfo, read_agent_info, read_master_info
from .append_log import logged_until
from .base import Base
from .files import Files, LocalFiles
from .mailbox import InHand, Letter, is_plain_name, read_in_hand, read_letter
from .runs import (
    count_covered,
    count_jobs,
    list_firsts,
    list_runs,
    read_run_info,
)


@dataclass(frozen=True)
class AgentStatus:
    """One session, as others see it."""

    agent: str
    # "starting", "idle", "running", "blocked", "finishing" (a command), "dead", "out of memory" (it
    # pauses, see `card_health`), or "outdated": it runs another version than the Master, which
    # sends it nothing
    state: str
    gpu: str
    gpu_name: str
    pid: int
    since: float
    run: str | None  # of the letter it works on
    job: int | None  # that it runs
    done: int  # jobs since its worker started
    first: int | None = None  # of the letter
    attempt: int = 0  # of the jobs of the letter
    job_since: float | None = None  # when that job was begun
    memory_mib: int = 0  # of the smallest of its GPUs; 0: unknown


@dataclass(frozen=True)
class RunStatus:
    """One run, counted from the names in its folders."""

    run: str
    project: str
    created_at: float
    asked: int
    done: int


@dataclass(frozen=True)
class BaseSnapshot:
    """A base at one moment, or nearly: the folders are read one after another."""

    base: str
    agents: list[AgentStatus]
    runs: list[RunStatus]
    master_pid: int | None  # of the acting Master; None: there is none


def snapshot(base: Base, *, files: Files | None = None, runs: bool = True) -> BaseSnapshot:
    """Look at a base without changing it; `runs=False` skips the runs' folders."""
    files = files or LocalFiles()
    return BaseSnapshot(
        base=base.root,
        agents=[_agent(files, base, agent_id) for agent_id in _agent_ids(files, base)],
        runs=[_run(files, base, run) for run in list_runs(files, base)] if runs else [],
        master_pid=acting_master(files, base),
    )


def living_agents(files: Files, base: Base, agent_id: str) -> AgentInfo | None:
    """What a session says about itself if it is alive; else None."""
    info = read_agent_info(files, base, agent_id)
    if info is None:
        return None
    process = Process(info.pid, info.started, info.boot_id, pid_namespace())
    return info if alive(process) else None


def _agent_ids(files: Files, base: Base) -> list[str]:
    names = {
        stem
        for name in files.names(base.agent_pool)
        for stem, dot, kind in [name.rpartition(".")]
        if dot and kind in ("POOL", "json") and is_plain_name(stem)
    }
    return sorted(names, key=lambda name: (len(name), name))


def _agent(files: Files, base: Base, agent_id: str) -> AgentStatus:
    info = read_agent_info(files, base, agent_id)
    has_mailbox = files.exists(base.mailbox(agent_id))
    letter = read_letter(files, base, agent_id)
    hand = read_in_hand(files, base, agent_id)
    lives = living_agents(files, base, agent_id) is not None
    begun = letter is not None and hand is not None and hand.letter_id == letter.letter_id
    state = _state(lives, has_mailbox, letter, hand)
    if state == "dead" and letter is not None and _is_locked(files, base, agent_id):
        state = "finishing"  # its guardian was killed: the running command goes on
    if state == "idle" and info is not None and info.protocol != PROTOCOL:
        state = "outdated"
    if state == "starting" and info is not None and info.out_of_memory:
        state = "out of memory"
    return AgentStatus(
        agent=agent_id,
        state=state,
        gpu=info.gpu if info else "",
        gpu_name=info.gpu_name if info else "",
        pid=info.pid if info else 0,
        since=info.since if info else 0.0,
        run=letter.run if letter else None,
        job=hand.job if hand and begun else None,
        done=hand.done if hand else 0,
        first=letter.first if letter else None,
        attempt=letter.attempt if letter else 0,
        job_since=hand.since if hand and begun else None,
        memory_mib=info.memory_mib if info else 0,
    )


def _is_locked(files: Files, base: Base, agent_id: str) -> bool:
    """Whether a process of a session is alive; asked only when its guardian is not."""
    lock = files.try_lock(base.agent_lock(agent_id), shared=True)
    if lock is not None:
        lock.release()
    return lock is None


def _state(lives: bool, has_mailbox: bool, letter: Letter | None, hand: InHand | None) -> str:
    if not lives:
        return "dead"
    if not has_mailbox:
        return "starting"
    if letter is None:
        return "idle"
    return "blocked" if hand is not None and hand.state == "blocked" else "running"


def _run(files: Files, base: Base, run: str) -> RunStatus:
    project, created_at, asked, done = "", 0.0, 0, 0
    with contextlib.suppress(FileNotFoundError, BadFileError):
        info = read_run_info(files, base, run)
        project, created_at = info.project, info.created_at
        asked = logged_until(files, base.append_log(run))
        done = count_done(files, base, run)
    return RunStatus(run, project, created_at, asked, done)


def count_done(files: Files, base: Base, run: str) -> int:
    """How many jobs of a run are covered by results."""
    spans = []
    for first in list_firsts(files, base.result_folder(run)):
        with contextlib.suppress(BadFileError):
            spans.append((first, first + count_jobs(files, base.result(run, first))))
    return count_covered(spans)[0]


def acting_master(files: Files, base: Base) -> int | None:
    """The pid of the acting Master; None when there is none."""
    if not files.exists(base.master_lock):
        return None
    lock = files.try_lock(base.master_lock, shared=True)
    if lock is not None:
        lock.release()
        return None
    with contextlib.suppress(OtherVersionError):
        info = read_master_info(files, base)
        return info.pid if info is not None else None
    return None
