"""What a base looks like now: the one query behind every listing, table and page."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import BadFileError, OtherVersionError
from ..system.processes import alive
from ..text.safe_text import printable
from ..text.table import html_table
from .agents import PROTOCOL, AgentInfo, MasterInfo, read_agent_info, read_master_info
from .append_log import logged_until
from .base import Base
from .files import Files, LocalFiles, is_locked
from .mailbox import InHand, Letter, is_plain_name, read_in_hand, read_letter
from .runs import (
    count_covered,
    count_jobs,
    list_firsts,
    list_runs,
    read_run_info,
)
from .taken import read_taken
from .wanted_agents import read_wanted

LAST_WORDS = 4096  # bytes of a session's output that are looked at
# In these states an agent takes no more jobs, ever.
DEAD = ("dead", "orphaned", "missing")


@dataclass(frozen=True)
class AgentStatus:
    """One session, as others see it."""

    agent: str
    # "starting", "idle", "running", "blocked", "finishing" (a command), "dead", "orphaned" (dead,
    # but processes of its job go on), "out of memory" (it pauses, see `card_health`), "resting"
    # (without its GPU), "waiting for its GPU" (it is needed), "missing" (it is wanted, and is to be
    # started), or "outdated": it runs another version than the Master, which sends it nothing
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
    host: str = ""
    pid_namespace: str = ""  # in which its pid means something
    note: str = ""  # what a session waits for that has no GPU; the last words of a missing one
    kept: bool = False  # it lives as long as the base wants it
    shares: bool = False  # it holds no GPU: its jobs book parts of them
    where: str = "local"  # or the engine that carries it elsewhere, such as "slurm"
    until: float = 0.0  # when somebody's reservation of its GPU begins; 0: nobody has reserved it


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
    master: MasterInfo | None  # the acting one; None: there is none

    @property
    def master_pid(self) -> int | None:
        """The pid of the acting Master."""
        return None if self.master is None else self.master.pid


def snapshot(base: Base, *, files: Files | None = None, runs: bool = True) -> BaseSnapshot:
    """Look at a base without changing it; `runs=False` skips the runs' folders."""
    files = files or LocalFiles()
    wanted, ids = _wanted(files, base), _agent_ids(files, base)
    there = [_agent(files, base, agent_id) for agent_id in ids]
    missing = [_missing(files, base, a, gpus) for a, gpus in wanted.items() if a not in ids]
    return BaseSnapshot(
        base=base.root,
        agents=[*there, *missing],
        runs=[_run(files, base, run) for run in list_runs(files, base)] if runs else [],
        master=acting_master(files, base),
    )


def _wanted(files: Files, base: Base) -> dict[str, str]:
    with contextlib.suppress(BadFileError):
        wanted = read_wanted(files, base)
        return wanted.living if wanted is not None else {}
    return {}


def living_agent(files: Files, base: Base, agent_id: str) -> AgentInfo | None:
    """What a session says about itself if it is alive; else None."""
    info = read_agent_info(files, base, agent_id)
    return info if _who_lives(files, base, agent_id, info) is Living.SESSION else None


def living_agents(files: Files, base: Base) -> list[AgentInfo]:
    """Every session that is alive, also one whose worker is being started again."""
    infos = (living_agent(files, base, agent) for agent in _agent_ids(files, base))
    return [info for info in infos if info is not None]


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
    living = _who_lives(files, base, agent_id, info)
    begun = letter is not None and hand is not None and hand.letter_id == letter.letter_id
    state = _state(living, has_mailbox, letter, hand)
    if state == "idle" and info is not None and info.protocol != PROTOCOL:
        state = "outdated"
    if state == "starting" and info is not None and info.out_of_memory:
        state = "out of memory"
    elif state == "starting" and files.exists(base.rest(agent_id)):
        state = "waiting for its GPU" if info is not None and info.waits_for else "resting"
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
        host=info.host if info else "",
        pid_namespace=info.pid_namespace if info else "",
        note=info.waits_for if info else "",
        kept=info.kept if info else False,
        shares=info.shares if info else False,
        where=(info.where if info else "") or "local",
        until=info.until if info else 0.0,
    )


def _missing(files: Files, base: Base, agent_id: str, gpus: str) -> AgentStatus:
    note = last_words(files, base, agent_id)
    return AgentStatus(
        agent_id, "missing", "", f"GPU {gpus}", 0, 0.0, None, None, 0, note=note, kept=True
    )


def last_words(files: Files, base: Base, agent_id: str) -> str:
    """The last line that a session printed; "": it printed nothing."""
    with contextlib.suppress(OSError, BadFileError):
        said = files.tail(base.session_log(agent_id), LAST_WORDS).decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return printable(lines[-1]) if lines else ""
    return ""


class Living(enum.Enum):
    """What is alive of a session."""

    SESSION = "its guardian, as far as can be seen from here"
    COMMAND = "not its guardian, but a process of ours that runs its command"
    STRAYS = "only what its jobs have started"
    NOTHING = "nothing"


def _who_lives(files: Files, base: Base, agent_id: str, info: AgentInfo | None) -> Living:
    """Ask the locks, which work across containers; a pid only says more where it can be seen."""
    if not files.exists(base.agent_lock(agent_id)):
        return Living.NOTHING
    lock = files.try_lock(base.agent_lock(agent_id), shared=True)
    if lock is None:
        lives = info is not None and alive(info.process) is not False
        return Living.SESSION if lives else Living.COMMAND
    try:
        if not files.exists(base.agent_tree(agent_id)):
            return Living.NOTHING
        # Strays are ended under the agent's lock: all processes that have this file open.
        tree = files.try_lock(base.agent_tree(agent_id), shared=True)
        if tree is None:
            return Living.STRAYS
        tree.release()
        return Living.NOTHING
    finally:
        lock.release()


def _state(living: Living, has_mailbox: bool, letter: Letter | None, hand: InHand | None) -> str:
    if living is Living.STRAYS:
        return "orphaned"
    if living is Living.COMMAND and letter is not None:
        return "finishing"  # its guardian was killed: the running command goes on
    if living is not Living.SESSION:
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
    """How many jobs of a run are covered by results, or had some that were taken."""
    spans = []
    for first in list_firsts(files, base.result_folder(run)):
        with contextlib.suppress(BadFileError):
            spans.append((first, first + count_jobs(files, base.result(run, first))))
    return count_covered([*spans, *read_taken(files, base, run).ranges])[0]


def acting_master(files: Files, base: Base) -> MasterInfo | None:
    """What the acting Master says about itself; None when there is none."""
    if not is_locked(files, base.master_lock):
        return None
    with contextlib.suppress(OtherVersionError):
        return read_master_info(files, base)
    return None


class AgentList(list[str]):
    """The ids of some agents, which a notebook shows as a table."""

    def __init__(self, base: Base, agents: Iterable[str]) -> None:
        super().__init__(agents)
        self._base = base

    def _repr_html_(self) -> str:
        """Each agent as it is now: its GPU, its state, its process, how many jobs it has done."""
        rows = [["agent", "GPU", "state", "pid", "jobs done"]]
        for agent in snapshot(self._base, runs=False).agents:
            if agent.agent in self:
                done, pid = str(agent.done), str(agent.pid)
                rows.append([agent.agent, agent.gpu_name, agent.state, pid, done])
        return html_table(rows)
