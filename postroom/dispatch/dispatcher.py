"""The acting Master's round: list, carry out requests, collect results, send letters.

A Dispatcher exists only while `master.lock` is held, so nobody else can write a letter. It reads
the folders in the direction in which jobs move (job_pool, mailboxes, result_pool): a job that moves
meanwhile is seen twice, never missed. `step(now)` is one round; its cost depends on what changed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection
from dataclasses import replace

from ..errors import BadFileError, OtherVersionError
from ..store.agents import (
    MAILBOX,
    PROTOCOL,
    REST,
    agents_in,
    list_agents,
    read_agent_info,
    read_master_info,
)
from ..store.append_log import Record
from ..store.base import Base
from ..store.files import Clock, Files, Lock
from ..store.journal import Journal
from ..store.mailbox import Letter
from ..store.project_shares import half_life_s, levels, read_use, write_use
from ..store.requests import Orders, no_orders, read_orders
from ..store.runs import Note, read_note, take_back_letter
from .agent import Agent
from .agent_starter import AgentStarter, SessionStarter
from .collector import Collector, OnOutcomes
from .pilot_demand import PilotCaller
from .project_queue import ProjectQueue
from .registry import ActiveRun, Registry
from .request_executor import RequestExecutor
from .resting import RestingAgents
from .run_queue import LAST_S, MOST_LOST, Capacity, JobRange
from .send_order import NO_RUN, turn_key

# Events may be missed: list all folders again this often, whatever the events say.
LIST_S = 1.0
# How often to check whether a working agent is alive, and whether it has published results.
PROBE_S = 0.2
LOOK_S = 0.05
# At most this many of the shortest jobs wait for more, to be sent in one letter.
FEW_JOBS = 32
# A notice about a run is not longer than this.
NOTICE_LIMIT = 1 << 20
# After an error of the disk, wait this long before sending again.
BLOCKED_S = 0.5
# How often to write what projects have used.
USE_S = 10.0


class Dispatcher:
    """Sends the jobs of a base to its agents; the only writer of letters."""

    def __init__(
        self,
        files: Files,
        base: Base,
        *,
        clock: Clock,
        journal: Journal,
        deliver: OnOutcomes,
        sweep: Callable[[str], int] = lambda agent_id: 0,
        sessions: SessionStarter | None = None,
        at_rest: set[str] | None = None,
    ) -> None:
        self._files = files
        self._base = base
        self._clock = clock
        self._journal = journal
        self._sweep = sweep  # ends what a dead agent has left running
        self._serial = 0
        self._list_at = clock.monotonic() + LIST_S
        self._hinted = True
        self._blocked_until = 0.0
        self._appended = 0  # jobs that were appended here since the last step
        self._now = clock.monotonic()  # of this round
        self._ended: list[Agent] = []  # as they were when their mailbox was found empty
        self._use = read_use(files, base)
        if sessions is not None:  # it is the scheduler of a standing queue
            self._use.half_life_s = half_life_s()
        self._level: dict[str, int] = {}  # of each project: see `levels`
        self._use_at = 0.0  # when to write it; 0: nothing is new
        self._last_run = NO_RUN  # the one that sent last; among equals, the next has its turn
        self.agents: dict[str, Agent] = {}
        self._orders = Orders()
        self._undecided = ""  # why the orders cannot be read: then nothing is begun
        self._read_orders()
        self._registry = Registry(files, base, journal, self._orders, at_rest)
        self._collector = Collector(
            files,
            base,
            self._registry,
            clock=clock,
            journal=journal,
            deliver=deliver,
        )
        self._starter = None if sessions is None else AgentStarter(files, base, journal, sessions)
        self._resting = RestingAgents(files, base, journal)
        self._pilots = PilotCaller(files, base, clock)
        self._executor = RequestExecutor(
            files,
            base,
            self._registry,
            self._collector,
            journal,
            orders=self._orders,
            agents=self.agents,
            agent_starter=self._starter,
        )
        self._recover()
        self.epoch = self._next_epoch()

    def hint(self, names: set[str] | None = None) -> None:
        """Something may have changed in these runs, or (None) anywhere: look at the next step."""
        self._hinted = True
        self._registry.hint(names)

    def extended(self, run: str, record: Record) -> None:
        """This process has appended a record to a run: no need to read the log for it."""
        if self._registry.appended(run, record):
            self._appended += record.jobs
            queue = self.runs[run].queue
            if queue.is_long:
                queue.forget_parcels(self._letters_of(run))
        else:
            self.hint({run})

    def expect_more(self, run: str, more: bool) -> None:
        """Say whether more jobs of a run are about to come: letters are shorter near its end."""
        active = self.runs.get(run)
        if active is not None:
            active.queue.grows = more

    def is_ahead(self, run: str) -> bool:
        """Whether so many large jobs of a run wait that more would only take memory."""
        active = self.runs.get(run)
        return active is not None and active.queue.is_ahead(max(len(self.agents), 1))

    def is_awaited(self, run: str) -> bool:
        """Whether a job waits for one of a run's jobs, or a message about it is due.

        Read from disk: who submits such a job holds the lock of the run meanwhile.
        """
        self._registry.refresh(self._out)
        if self._registry.awaited(run):
            return True
        notices = (n for n in self._files.names(self._base.control) if n.startswith("notice."))
        paths = (f"{self._base.control}/{name}" for name in notices if name.endswith(".json"))
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                if run.encode() in self._files.read(path, NOTICE_LIMIT):
                    return True
        return False

    def is_due(self, run: str) -> bool:
        """Whether what this process appended is worth a round: a mailbox is empty.

        The shortest jobs wait for more while an agent is working: a letter and its result cost as
        much as some tens of them.
        """
        active = self.runs.get(run)
        if (
            active is not None
            and self._appended < FEW_JOBS
            and active.queue.is_short(self._appended)
            and self.at_work
        ):
            return False
        return any(not agent.box.size() for agent in self.agents.values())

    def cancel(self, run: str, jobs: Collection[int], reason: str) -> None:
        """Publish that jobs are cancelled; those that do not wait in the queue are left alone."""
        self._collector.cancel(run, jobs, reason)

    def step(self, now: float, *, send: bool = True) -> bool:
        """One round; True when something moved. Without `send`, no job is begun."""
        moved = False
        self._now = now
        self._appended = 0
        whole = now >= self._list_at
        if whole or self._hinted:
            self._hinted = False
            if whole:
                self._list_at = now + LIST_S
            moved |= self._list_agents(now, whole=whole)
            moved |= self._registry.refresh(self._out, whole=whole)
            if self._undecided:
                self._read_orders()
            if not self._undecided:
                moved |= self._executor.carry_out_requests()
        for agent in list(self.agents.values()):
            if agent.letter is not None or now >= agent.probe_at:
                moved |= self._look(agent, now)
        if send and now >= self._blocked_until:
            moved |= self._send_letters(now)
        while self._ended:
            if self._ended[0].letter is not None:
                self._end_letter(self._ended[0])
            del self._ended[0]
        if self._resting.agents:
            self._call_resting(now, send=send)
        if self._starter is not None:
            if self._starter.is_due(now):
                self._share_gpus(now, send=send)
            self._starter.step(now)
        self._pilots.step(now, self._fitting if send else lambda capacity: 0)
        if self._use_at and now >= self._use_at:
            self._write_use()
        return moved

    @property
    def runs(self) -> dict[str, ActiveRun]:
        """The runs that are being served."""
        return self._registry.runs

    @property
    def at_work(self) -> bool:
        """Whether an agent has a letter, so that rounds should follow closely."""
        return any(agent.letter is not None for agent in self.agents.values())

    def is_answered(self) -> bool:
        """Whether a mailbox has been emptied, or a result has come, since the last step."""
        for agent in self.agents.values():
            if agent.letter is not None:
                if not agent.box.size():
                    return True
                if agent.answer and self._files.exists(agent.answer):
                    # Only once: a file that can be neither read nor put aside must not cause a
                    # busy loop.
                    agent.look_at, agent.answer = 0.0, ""
                    return True
        return False

    # Recovery and listing

    def _recover(self) -> None:
        for agent_id in list_agents(self._files, self._base):
            self._add_agent(agent_id)
        self._registry.recover(self._out)

    def _read_orders(self) -> None:
        """Take in the orders. If they cannot be read, nothing is begun until somebody decides.

        They say which jobs are held, paused or killed. Until they can be read, nobody knows which.
        What runs goes on; requests wait, since carrying them out would replace the file. Until the
        orders are read for the first time, no run has had them applied: see `take_new`.
        """
        try:
            found = read_orders(self._files, self._base)
        except BadFileError as error:
            if not self._undecided:
                self._journal.log("error", no_orders(error))
            self._undecided = str(error)
            return
        self._undecided = ""
        vars(self._orders).update(vars(found))

    def _out(self, run: str) -> list[tuple[int, int]]:
        """The ranges of a run that agents have, without the results that were seen."""
        out = [(agent.letter, agent.reached) for agent in self.agents.values()]
        return [(reached, letter.stop) for letter, reached in out if letter and letter.run == run]

    def _letters_of(self, run: str) -> list[tuple[int, int]]:
        letters = [agent.letter for agent in self.agents.values()]
        return [(letter.first, letter.stop) for letter in letters if letter and letter.run == run]

    def _next_epoch(self) -> int:
        epochs = [agent.letter.epoch for agent in self.agents.values() if agent.letter]
        info = read_master_info(self._files, self._base)
        if info is not None:
            epochs.append(info.epoch)
        return max(epochs, default=0) + 1

    def _list_agents(self, now: float, *, whole: bool = True) -> bool:
        """Find new mailboxes, and forget those that were removed; True when there are new ones."""
        moved = False
        known = set(self.agents)
        names = self._files.names(self._base.agent_pool)
        serving = agents_in(names, MAILBOX)
        self._resting.see(agents_in(names, REST), serving, now)
        for agent_id in serving:
            if agent_id not in known and self._add_agent(agent_id, new=True) is not None:
                self._journal.event("agent up", agent=agent_id)
                moved = True
        for agent in list(self.agents.values()):
            if agent.idle:
                self._check_idle(agent)
            # Of a busy agent that the base keeps, somebody may have reserved the GPU.
            kept = agent.capacity.only_shares or agent.capacity.leaves_shares
            if whole and (agent.idle or kept):
                self._read_info(agent)
        return moved

    # Agents

    def _add_agent(self, agent_id: str, *, new: bool = False) -> Agent | None:
        """Open a mailbox; take over a letter that an earlier Master left in it."""
        try:
            box = self._files.open_box(self._base.mailbox(agent_id))
        except BadFileError as error:
            self._registry.reject(error)
            return None
        if box is None:
            return None
        agent = self.agents[agent_id] = Agent(agent_id, box)
        self._read_info(agent)
        data = box.read()
        if data:
            letter = None if new else Letter.decode(data)
            if letter is None:
                self._clean_box(agent, data)
            else:
                agent.letter = letter
                agent.size = len(data)
                agent.reached = letter.first
                agent.sent_at = self._now  # or earlier: nobody knows
        return agent

    def _read_info(self, agent: Agent) -> None:
        info = read_agent_info(self._files, self._base, agent.agent_id)
        if info is not None:
            where = info.where or "local"
            agent.capacity = Capacity(
                info.gpus,
                info.memory_mib,
                where,
                info.gpu_name,
                only_shares=info.kept and info.shares,
                leaves_shares=info.kept and info.gpus > 0 and not info.shares,
            )
            agent.waits = bool(info.waits_for)
            agent.until = info.until
            agent.ends_at = info.ends_at
            agent.stands_in = bool(info.where)
            agent.outdated = info.protocol != PROTOCOL
        if agent.outdated:
            self._journal.log(
                "error", f"agent {agent.agent_id} runs another version of Postroom: restart it"
            )

    def _check_idle(self, agent: Agent) -> None:
        if agent.box.gone():
            self._forget(agent)
        elif agent.box.size():
            self._clean_box(agent, agent.box.read())

    def _clean_box(self, agent: Agent, data: bytes) -> None:
        # Half a letter of a dead Master, or somebody's garbage: no session acts on it.
        agent.box.clear()
        self._journal.log(
            "warning", f"mailbox {agent.agent_id} held no letter: cleared", data=repr(data[:200])
        )

    def _look(self, agent: Agent, now: float) -> bool:
        """See what has become of an agent and of its letter."""
        letter = agent.letter
        if agent.doubtful:
            if Letter.decode(agent.box.read()) is None:
                agent.box.clear()  # half a letter is no letter: nobody has it
            agent.doubtful = False
        size = agent.box.size() if letter is not None else 0
        if letter is not None and not size:
            if self._has_more(letter.run, agent):
                self._ended.append(copy.copy(agent))
                agent.letter = None
            else:
                self._end_letter(agent)
            return True
        moved = False
        if letter is not None and size > agent.size:
            moved = self._take_rest(agent, letter)
            letter = agent.letter or letter
        if letter is not None and now >= agent.look_at:
            agent.look_at = now + LOOK_S
            moved |= self._collector.collect(agent, letter)
            if agent.box.gone():
                self._collector.collect(agent, letter, last=True)
                self._forget(agent)
                self._count_use(agent, letter)
                self._requeue(letter, agent.reached)
                return True
        if now >= agent.probe_at:
            agent.probe_at = now + (PROBE_S if letter is not None else LIST_S)
            moved |= self._probe(agent)
        return moved

    def _has_more(self, run: str, agent: Agent) -> bool:
        """Whether an agent is sent its next letter before the results of the last one are read.

        So it need not wait for that. What is to be done next must not depend on these results, as
        it may in the standing queue, nor how long the letter is to be.
        """
        active = self.runs.get(run)
        return (
            active is not None
            and not isinstance(active.queue, ProjectQueue)
            and active.queue.mean_s is not None
            and active.queue.urgency(agent.capacity) is not None
        )

    def _is_brief(self, letter: Letter, agent: Agent) -> bool:
        """Whether a letter is done in a moment, and another follows."""
        if not self._has_more(letter.run, agent):
            return False
        mean_s = self.runs[letter.run].queue.mean_s or 0.0
        return mean_s * (letter.stop - letter.first) <= LAST_S

    def _end_letter(self, agent: Agent) -> None:
        """An agent has emptied its mailbox: collect what is left, and requeue what has no result.

        Until that is done, a Master that dies leaves the same as one that dies before it looks.
        """
        letter = agent.letter
        assert letter is not None
        self._collector.collect(agent, letter, last=True)
        agent.letter = None
        self._count_use(agent, letter)
        self._requeue(letter, agent.reached)

    def _take_rest(self, agent: Agent, letter: Letter) -> bool:
        """Requeue the jobs that an agent has given back by shortening its letter."""
        data = agent.box.read()
        shorter = Letter.decode(data)
        if shorter is None or shorter.letter_id != letter.letter_id or shorter.stop >= letter.stop:
            return False
        agent.letter = shorter
        agent.size = len(data)
        active = self.runs.get(letter.run)
        if active is not None:
            active.queue.put_back(shorter.stop, letter.stop)
            self._executor.jobs_returned(letter, shorter.stop)
        self._journal.event("returned", run=letter.run, first=shorter.stop, stop=letter.stop)
        return True

    def _probe(self, agent: Agent) -> bool:
        """Check whether an agent is dead: if its locks are free, clear it away; True if it was.

        In another container there may be processes of its job that cannot be seen from here. What
        cannot be seen is not dead: while one has the second lock, nothing is requeued.
        """
        lock = self._files.try_lock(self._base.agent_lock(agent.agent_id))
        if lock is None:
            return False
        tree: Lock | None = None
        try:
            strays = self._sweep(agent.agent_id)
            if strays:
                self._journal.log("warning", f"{strays} processes of a dead agent were ended")
            tree = self._files.try_lock(self._base.agent_tree(agent.agent_id))
            if tree is None:
                if not agent.orphaned:
                    self._journal.log(
                        "warning",
                        f"agent {agent.agent_id} died, but processes of its job go on where they "
                        "cannot be ended from here: its jobs are requeued when those have ended",
                    )
                agent.orphaned = True
                agent.probe_at += LIST_S  # a sweep looks at all processes of the machine
                return False
            if not agent.box.gone():
                take_back_letter(
                    self._files,
                    self._base,
                    agent.agent_id,
                    reason="its agent died",
                    at=self._clock.wall(),
                    # No job runs in a stand-in, so its job did not kill it.
                    blame=not agent.stands_in,
                )
                self._files.remove(self._base.agent_info(agent.agent_id))
            if agent.letter is not None:
                self._collector.collect(agent, agent.letter, last=True)
        except OSError as error:
            # Its jobs must not be requeued without the note: the next probe tries again.
            self._journal.log("error", f"cannot clear away a dead agent: {error.strerror}")
            return False
        finally:
            if tree is not None:
                tree.release()
            lock.release()
        self._journal.log("warning", f"agent {agent.agent_id} died; its jobs are requeued")
        self._forget(agent)
        if agent.letter is not None:
            self._count_use(agent, agent.letter)
            self._requeue(agent.letter, agent.reached)
        return True

    def _forget(self, agent: Agent) -> None:
        agent.box.close()
        self.agents.pop(agent.agent_id, None)
        self._journal.event("agent down", agent=agent.agent_id)

    # What projects use

    def _count_use(self, agent: Agent, letter: Letter) -> None:
        """An agent is done with a letter: its time counts for the project."""
        active = self.runs.get(letter.run)
        if active is not None and active.project:
            used_s = (self._now - agent.sent_at) * max(agent.capacity.gpus, 1)
            self._use.add(active.project, used_s, self._clock.wall())
            self._use_at = self._use_at or self._now + USE_S

    def _write_use(self) -> None:
        self._use_at = 0.0
        self._use.forget_faded(self._clock.wall())
        try:
            write_use(self._files, self._base, self._use)
        except OSError as error:
            self._journal.log("error", f"cannot write what projects have used: {error.strerror}")

    def _levels(self, serving: list[ActiveRun], now: float) -> dict[str, int]:
        """How much each project has used, as far as it matters whose turn it is."""
        projects = {active.project for active in serving}
        if len(projects) < 2:
            return dict.fromkeys(projects, 0)
        used_s = self._use.used_s(self._clock.wall())
        for agent in self.agents.values():
            active = self.runs.get(agent.letter.run) if agent.letter is not None else None
            if active is not None and active.project:
                running_s = (now - agent.sent_at) * max(agent.capacity.gpus, 1)
                used_s[active.project] = used_s.get(active.project, 0.0) + running_s
        return levels(used_s, projects)

    def _requeue(self, letter: Letter, reached: int) -> None:
        """An agent has stopped working on a letter: requeue the jobs that have no result."""
        active = self.runs.get(letter.run)
        if reached >= letter.stop or active is None:
            return
        self._journal.event("returned", run=letter.run, first=reached, stop=letter.stop)
        try:
            notes = self._notes_of(letter, reached)
        except OtherVersionError as error:
            self._registry.leave(letter.run, error)
            return
        for note in notes:
            active.queue.note(note)
            self._journal.event(
                "attempt ended", run=note.run, job=note.job, attempt=note.attempt, why=note.reason
            )
        left = [(reached, letter.stop)]
        if letter.epoch < self.epoch:  # inherited: there may have been a power loss
            left = self._collector.collect_behind_gap(letter, reached)
        for first, stop in left:
            active.queue.put_back(first, stop)
        self._executor.jobs_returned(letter, reached)

    def _notes_of(self, letter: Letter, reached: int) -> list[Note]:
        """The notes about attempts of a letter: at most one, unless somebody changed files."""
        jobs = range(reached, letter.stop)
        found = (
            read_note(self._files, self._base, letter.run, job, letter.attempt) for job in jobs
        )
        return [note for note in found if note is not None]

    # Letters

    def _send_letters(self, now: float) -> bool:
        """Give every idle agent a letter, as far as there are jobs for it."""
        serving = self._serving()
        moved = False
        if not serving:
            return False
        wall = self._clock.wall()
        for active in serving:
            if isinstance(active.queue, ProjectQueue):
                active.queue.begin_due(wall)
        ready = [
            agent
            for agent in self.agents.values()
            if agent.idle and not agent.outdated and agent.agent_id not in self._orders.drained
        ]
        if ready:
            self._level = self._levels(serving, now)
        for agent in ready:
            moved |= self._send_next(agent, serving, now)
            if now < self._blocked_until:
                break
        return moved

    def _serving(self) -> list[ActiveRun]:
        """The runs whose jobs may be begun now."""
        if self._undecided:
            return []
        return [
            active
            for run, active in self.runs.items()
            if not active.queue.finished
            and active.wanted
            and not self._orders.is_paused(run, active.project)
        ]

    def _fitting(self, capacity: Capacity) -> int:
        """How many jobs wait that an agent with this capacity could run."""
        return sum(active.queue.fitting(capacity) for active in self._serving())

    def _share_gpus(self, now: float, *, send: bool) -> None:
        """Have as many agents that share GPUs as there are jobs for them."""
        assert self._starter is not None
        serving = self._serving() if send else []
        known = [agent.capacity for agent in self.agents.values()]
        known += [agent.capacity for agent in self._resting.agents.values()]
        here = [one for one in known if one.leaves_shares]
        capacity = Capacity(
            memory_mib=max((one.memory_mib for one in here), default=0),
            gpu_name=", ".join(one.gpu_name for one in here),
            only_shares=True,
        )
        ready = sum(
            active.queue.fitting_at_most(capacity)
            for active in serving
            if isinstance(active.queue, ProjectQueue)
        )
        sharing = {one.agent_id: one for one in self.agents.values() if one.capacity.only_shares}
        self._starter.share(
            now,
            drained=self._orders.drained,
            ready=ready,
            serving={agent_id: agent.idle for agent_id, agent in sharing.items()},
            waiting={agent_id for agent_id, agent in sharing.items() if agent.waits},
        )

    def _call_resting(self, now: float, *, send: bool) -> None:
        """Call agents that rest, if jobs wait that nobody else has taken; bury dead ones."""
        serving = self._serving() if send else []

        def can_use(agent_id: str, capacity: Capacity) -> bool:
            return agent_id not in self._orders.drained and any(
                active.queue.urgency(capacity) is not None
                for active in serving
                if self._within_limit(active.project)
            )

        self._resting.call(now, sum(active.queue.waiting() for active in serving), can_use)
        for agent_id, agent in list(self._resting.agents.items()):
            if now >= agent.probe_at:
                agent.probe_at = now + LIST_S
                self._probe_resting(agent_id)

    def _probe_resting(self, agent_id: str) -> None:
        """Remove the rest file of a dead agent, which nobody reads."""
        lock = self._files.try_lock(self._base.agent_lock(agent_id))
        if lock is None:
            return
        try:
            self._files.remove(self._base.rest(agent_id))
            self._files.remove(self._base.agent_info(agent_id))
        except OSError as error:
            self._journal.log("error", f"cannot clear away a dead agent: {error.strerror}")
            return
        finally:
            lock.release()
        self._resting.forget(agent_id)
        self._journal.log("warning", f"agent {agent_id} died while it had no GPU")

    def _send_next(self, agent: Agent, serving: list[ActiveRun], now: float) -> bool:
        """Send an idle agent the most urgent jobs that it can run; False: there are none."""
        capacity = agent.capacity
        if agent.until:
            capacity = replace(capacity, left_s=agent.until - self._clock.wall())
        if agent.ends_at:
            capacity = replace(capacity, lives_s=agent.ends_at - self._clock.wall())
        active = self._most_urgent(serving, capacity)
        if active is None:
            return False
        job_range = active.queue.take(agents=len(self.agents), capacity=capacity)
        assert job_range is not None
        try:
            if job_range.lost >= MOST_LOST:
                self._collector.give_up(active, job_range.first)
            else:
                self._send(agent, self._letter(active.info.run, job_range), now)
        except OSError as error:
            if agent.idle:
                active.queue.put_back(job_range.first, job_range.stop)
            self._blocked_until = now + BLOCKED_S
            self._journal.log("error", f"cannot send jobs, will try again: {error.strerror}")
            return False
        return True

    def _most_urgent(self, serving: list[ActiveRun], capacity: Capacity) -> ActiveRun | None:
        """The run of the highest priority; among equals, the one whose turn it is."""
        best = None
        for active in serving:
            if self._orders.limits and not self._within_limit(active.project):
                continue
            urgency = active.queue.urgency(capacity)
            if urgency is not None:
                level = self._level[active.project]
                key = turn_key(urgency, active.age, self._last_run, level)
                best = min(best, (key, active)) if best is not None else (key, active)
        if best is None:
            return None
        self._last_run = best[1].age
        return best[1]

    def _within_limit(self, project: str) -> bool:
        """Whether one more job of a project may run."""
        most = self._orders.limits.get(project)
        if not project or most is None:
            return True
        out = [agent.letter.run for agent in self.agents.values() if agent.letter is not None]
        return sum(run in self.runs and self.runs[run].project == project for run in out) < most

    def _letter(self, run: str, job_range: JobRange) -> Letter:
        self._serial += 1
        return Letter(
            self.epoch,
            self._serial,
            run,
            job_range.parcel,
            job_range.first,
            job_range.stop,
            job_range.attempt,
            job_range.failed,
            job_range.offset,
        )

    def _send(self, agent: Agent, letter: Letter, now: float) -> None:
        if agent.box.size():
            self._clean_box(agent, agent.box.read())
        # It counts as sent from its first byte on, even if the write fails: the agent may have it,
        # or may have removed its mailbox with it. Its results tell what came of it.
        agent.letter = letter
        agent.reached = letter.first
        agent.sent_at = now
        self._collector.expect(agent, letter)
        if letter.stop - letter.first > 1 and self._is_brief(letter, agent):
            agent.answer = ""  # the next letter comes first, and for it the mailbox has to be empty
        agent.look_at = now + LOOK_S
        agent.probe_at = now + PROBE_S
        data = letter.encode()
        agent.size = len(data)
        try:
            agent.box.write(data)
        except OSError:
            agent.doubtful = True
            raise
        self._journal.event(
            "sent",
            run=letter.run,
            first=letter.first,
            count=letter.stop - letter.first,
            agent=agent.agent_id,
            attempt=letter.attempt,
        )
