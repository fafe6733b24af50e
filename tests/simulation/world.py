"""One seed is one story: who lives, what they want, what goes wrong, and that all ends well."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from collections.abc import Collection, Iterator
from typing import TypeAlias
from unittest import mock

from postroom.store.base import FOLDERS
from postroom.store.wanted_agents import WantedAgents
from postroom.system.processes import Process as Identity

from .checker import Plan, Submission, Violation
from .cleaner import Cleaner
from .disk import Folder, Node
from .neighbour import Neighbour
from .pilots import Pilot, SimulatedEngine
from .processes import Process
from .roles import ROOT, Client, Machine, Session
from .user import User
from .versions import Rot

ERRNOS = [
    errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE, errno.EMFILE, errno.EINTR, errno.EDQUOT,
    errno.EROFS, errno.ENOMEM,
]  # fmt: skip
Role: TypeAlias = Client | Session | User | Cleaner | Rot | Neighbour | Pilot
# How many turns the world has, once the faults have stopped, to finish everything.
PATIENCE = 100_000


class World(Machine):
    """Masters and sessions on one machine."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.scheduler.on_exit = self._reap
        self._roles: dict[Process, Role] = {}
        self._due: list[tuple[float, Role]] = []  # who is to be started, and when
        self._doomed: dict[Process, int] = {}  # orphans, and after how many operations they die
        self._suspects: list[Process] = []
        self.power_losses = 0
        self.engine = SimulatedEngine(self)
        self.pilot_lot = random.Random(0)  # apart, so that stories without pilots are as they were
        root = Folder()
        self.disk.change((self.disk.root, ROOT[1:], root))
        for name in FOLDERS:
            self.disk.change((root, name, Folder()))
        self.disk.sync_everything()

    def start(self, role: Role) -> Process:
        """Start a role as a new process."""
        process = self.scheduler.spawn(role.name, role)
        self._roles[process] = role
        return process

    # What the acting Master has a world for: it starts the sessions that the base wants

    def start_kept(self, agent_id: str, gpus: str, *, among: int, share: bool = False) -> None:
        """Start a session that lives as long as the base wants it."""
        self.start(self.kept[agent_id])

    def is_starting(self, agent_id: str) -> bool:
        """Whether a session of that agent runs."""
        return self.kept[agent_id] in self._roles.values()

    def last_words(self, agent_id: str) -> str:
        """Nobody reads them here."""
        return ""

    def remove(self, agents: Collection[str], *, now: bool) -> None:
        """Nobody starts sessions by hand in such a world."""

    def keep_pilots(self) -> None:
        """No base has pilots in such a world."""

    def living(self) -> list[Process]:
        """Every process that could be given a turn sooner or later."""
        return [p for p in self.scheduler.processes if p.alive and not p.stopped]

    def turn(self, process: Process, operations: int, fault: int | None = None) -> None:
        """Give a process a turn; what it did wrong is raised here."""
        doom = self._doomed.get(process)
        if doom is not None:
            # Its parent is dead, and the signal of Linux is on its way.
            operations, fault = min(operations, doom), None
            self._doomed[process] = doom - operations
        self.scheduler.now = max(self.scheduler.now, process.wake_at)
        self.scheduler.turn(process, operations, fault=fault)
        if doom is not None and self._doomed.get(process, 1) <= 0:
            self.scheduler.kill(process)

    def doom(self, process: Process) -> None:
        """Have a process killed when it would be given its next turn, also if it was stopped."""
        process.stopped = False
        process.wake_at = min(process.wake_at, self.scheduler.now)
        self._doomed[process] = 0

    def lose_power(self) -> None:
        """Everything ends at once, and the disk has what it has."""
        self.power_losses += 1
        for pilot in self.engine.living():
            self.engine.take(pilot)
        for process in list(self.scheduler.processes):
            self.scheduler.kill(process)
        self.disk.lose_power()
        self.checker.power_lost()

    def start_due(self) -> None:
        """Start every process that is due."""
        due = [(at, role) for at, role in self._due if at <= self.scheduler.now]
        self._due = [entry for entry in self._due if entry not in due]
        for _, role in due:
            self.start(role)

    def next_wake(self) -> float:
        """When something can happen next."""
        times = [process.wake_at for process in self.living()]
        return min([*times, *(at for at, _ in self._due)], default=self.scheduler.now)

    def suspect(self, process: Process) -> None:
        """Free the lock of a living session: it may go on as if nothing had happened."""
        role = self._roles.get(process)
        if isinstance(role, Pilot) and role.lose_locks():
            self._suspects.append(process)
            self.checker.lies = True
        if isinstance(role, Session) and role.lock is not None:
            role.lock.lose()
            self.trees[role.agent_id].lose()
            self._suspects.append(process)
            self.checker.lies = True

    def sessions(self) -> list[Process]:
        """The guardians that live, and the stand-ins."""
        return [
            process for process, role in self._roles.items() if isinstance(role, (Session, Pilot))
        ]

    def finish(self) -> None:
        """The faults stop: now everything must come to its end, and be true."""
        self._calm_down()
        for _ in range(PATIENCE):
            if self._finished():
                break
            for process in self.ready():
                self.turn(process, 1000)
        else:
            missing = [(s.run, job) for s, job in self.checker.missing()]
            waiting = [s for s in self.checker.submissions if s.run is None or s.more]
            clients = [r.name for r in self._roles.values() if isinstance(r, Client) and r.waits]
            raise Violation(
                f"stuck: {missing} without a result, {waiting} not accepted, {clients} wait"
            )
        self.checker.check_disk(self.disk)

    def ready(self) -> list[Process]:
        """Who can run now; if nobody can, time passes until somebody can."""
        self.start_due()
        ready = [process for process in self.scheduler.processes if process.ready]
        if not ready:
            self.scheduler.now = max(self.scheduler.now, self.next_wake())
            self.start_due()
            ready = [process for process in self.scheduler.processes if process.ready]
        return ready

    def _calm_down(self) -> None:
        self.calm = True
        # In the end one finds out about those whose lock was lost, and ends them.
        for process in self._suspects:
            for member in [process, *self.scheduler.children(process)]:
                if member.alive:
                    self._doomed[member] = self.rng.randrange(100)
        self.disk.full = self.disk.starved = False
        self.disk.listing_lag = 0.0
        for process in self.scheduler.processes:
            process.stopped = process.starved = False

    def _finished(self) -> bool:
        accepted = all(s.run is not None and not s.more for s in self.checker.submissions)
        waits = any(isinstance(role, Client) and role.waits for role in self._roles.values())
        return accepted and not waits and not self.checker.missing()

    def _reap(self, process: Process) -> None:
        error = process.error
        self._doomed.pop(process, None)
        self.checker.may_cost_attempts += self.engine.is_blamed_for(process)
        for child in self.scheduler.children(process):
            child.stopped = False
            if child.survives:
                continue
            self._doomed[child] = self.rng.randrange(4)
        role = self._roles.pop(process, None)
        if role is not None and not (isinstance(role, Session) and role.kept):
            self._due.append((self.scheduler.now + self.rng.random() * 0.5, role))
        if error is not None and (not isinstance(error, OSError) or isinstance(role, Client)):
            raise error


class Story(World):
    """A world whose every choice comes from one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(seed))
        rng = self.rng
        self.seed = seed
        tokens = itertools.count(1)
        containers = random.Random(f"containers {seed}")
        self._apart = containers.choice((0.0, 0.0, 0.5, 1.0))  # how many are where they see nobody
        by_lot = random.Random(f"roll {seed}")  # of its own, so that the rest is as it was
        n_clients, n_sessions = rng.choice((1, 1, 2, 2, 3, 4)), rng.choice((1, 2, 2, 3, 4, 8))
        n_jobs, n_runs = rng.choice((1, 2, 5, 10, 20, 30)), rng.choice((1, 1, 2, 3))
        poisonous, durable = rng.random() < 0.3, rng.random()
        self._commands = rng.choice((0.0, 0.5, 1.0))
        self._by_lot = random.Random(f"forks {seed}")
        self._forks = self._by_lot.choice((0.0, 0.0, 0.3))
        streams = random.Random(f"streams {seed}")
        queues = random.Random(f"queues {seed}")
        pilots = self.pilot_lot = random.Random(f"pilots {seed}")
        n_pilots = pilots.choice((0, 0, 0, 0, 0, 1, 2))
        far_only = bool(n_pilots) and pilots.random() < 0.5
        self._long = (0.3, 2.0) if n_pilots else ()  # so that pilots end while jobs run
        own: list[list[Submission]] = [[] for _ in range(n_clients)]
        joined: list[list[Submission]] = [[] for _ in range(n_clients)]
        for share in range(n_runs):
            count = n_jobs // n_runs + (share < n_jobs % n_runs)
            if count:
                plans = [self._plan(next(tokens), poisonous) for _ in range(count)]
                cut = rng.choice((count, count, rng.randint(0, count)))
                logged = by_lot.random() < 0.5
                cut = 0 if logged else cut
                submission = Submission(
                    plans[:cut],
                    plans[cut:],
                    rng.random() < durable,
                    rng.choice((1, 3, 100)),
                    logged,
                    streamed=logged and streams.random() < 0.5,
                )
                if submission.logged and not submission.streamed and queues.random() < 0.4:
                    submission.queued = submission.keep = True
                self.checker.plan(submission)
                rng.choice(own).append(submission)
                if submission.keep:
                    rng.choice(joined).append(submission)
        for number in range(n_clients):
            apart = containers.random() < self._apart
            self.start(Client(self, f"master {number}", own[number], joined[number], apart=apart))
        shared = random.Random(f"resting {seed}")
        rests, kept = shared.choice((0.0, 0.0, 0.5, 1.0)), shared.random() < 0.3
        lazy = queues.choice((0.0, 0.5, 1.0))
        for number in range(0 if far_only else n_sessions):
            apart = containers.random() < self._apart
            forked, resting = rng.random() < 0.5, shared.random() < rests
            session = Session(
                self,
                str(number),
                forked=forked,
                lazy=queues.random() < lazy and not forked,
                apart=apart,
                rests=resting,
                kept=kept,
            )
            if kept:
                self.kept[str(number)] = session
            else:
                self.start(session)
        if kept and not far_only:
            self.keeper = self
            self._want(list(self.kept))
        if rests and shared.random() < 0.7:
            self.start(Neighbour(self, [str(number) for number in range(n_sessions)]))
        if rng.random() < 0.5:
            self.start(User(self))
        cleaners = random.Random(f"cleaners {seed}").choice((0, 0, 1, 2))
        self.removes = random.Random(f"removes {seed}").random() < 0.3
        for number in range(0 if self.removes else cleaners):
            self.start(Cleaner(self, number))
        versions = random.Random(f"versions {seed}")
        if versions.random() < 0.3:
            self.version_lot = versions
            self.start(Rot(self))
        for number in range(n_pilots):
            self.start(Pilot(self, f"p{number}"))
        self._strike = pilots.choice((0.0, 0.02, 0.1))
        # How bad it gets, and with what.
        self._turns = rng.choice((50, 150, 400))
        self._kill = rng.choice((0.0, 0.01, 0.05))
        self._fault = rng.choice((0.0, 0.0, 0.02, 0.1))
        self._power = rng.choice((0.0, 0.0, 0.0, 0.005))
        self._stop = rng.choice((0.0, 0.01, 0.05))
        self._suspect = rng.choice((0.0, 0.0, 0.01, 0.03))
        self._fill = rng.choice((0.0, 0.0, 0.01))
        self._longest = rng.choice((1, 4, 20))
        self.disk.listing_lag = rng.choice((0.0, 0.3))
        self._descriptors = random.Random(f"descriptors {seed}")
        self._starve = self._descriptors.choice((0.0, 0.0, 0.02, 0.1))
        if n_pilots:  # it takes time to get to work elsewhere
            self._turns, self._longest = 5 * self._turns, 5 * self._longest
            for rate in ("_kill", "_fault", "_stop", "_suspect", "_starve"):
                setattr(self, rate, getattr(self, rate) / 20)

    def _want(self, agents: list[str]) -> None:
        wanted = WantedAgents(dict.fromkeys(agents, "cpu"))
        control = self.disk.folder(self.base.control)
        node = Node(wanted.encode())
        node.stable = node.data
        self.disk.change((control, "agents.json", node))
        self.disk.sync_everything()

    def _plan(self, token: int, poisonous: bool) -> Plan:
        rng = self.rng
        kinds = ("ok", "ok", "ok", "fails", "flaky", "poison" if poisonous else "ok")
        kind = rng.choice(kinds)
        return Plan(
            token,
            kind,
            retries=rng.choice((0, 1, 2)) if kind in ("fails", "flaky") else 0,
            fails=rng.choice((1, 2)) if kind == "flaky" else 0,
            seconds=self._seconds(rng.choice((0.0, 0.0, 0.01, 0.2))),
            command=rng.random() < self._commands,
            forks=self._by_lot.random() < self._forks,
        )

    def _seconds(self, seconds: float) -> float:
        return self.pilot_lot.choice((seconds, *self._long)) if self._long else seconds

    def run(self) -> None:
        """Live through the faults; then everything must come to its end, and be true."""
        try:
            for _ in range(self._turns):
                self._trouble()
                self._pass_turn()
            self.finish()
        finally:
            self.scheduler.shut_down()

    def _pass_turn(self) -> None:
        rng = self.rng
        ready = self.ready()
        if not ready:
            return  # all are stopped: nothing happens
        process = rng.choice(ready)
        fault = rng.choice(ERRNOS) if rng.random() < self._fault else None
        self.turn(process, rng.randint(1, self._longest), fault)
        if process.alive and rng.random() < self._kill:
            self.scheduler.kill(process)

    def _trouble(self) -> None:
        rng = self.rng
        if rng.random() < self._power:
            self.lose_power()
        if rng.random() < self._fill:
            self.disk.full = not self.disk.full
        if self._descriptors.random() < self._starve:
            self._starve_or_feed()
        pilots = [role for role in self._roles.values() if isinstance(role, Pilot)]
        if pilots and self.pilot_lot.random() < self._strike:
            self.pilot_lot.choice(pilots).strike()
        if rng.random() < self._stop:
            self._stop_or_continue()
        if rng.random() < self._suspect and self.sessions():
            process = rng.choice(self.sessions())
            for member in [process, *self.scheduler.children(process)]:
                member.stopped = rng.random() < 0.5
            self.suspect(process)

    def _starve_or_feed(self) -> None:
        """Take all free descriptors from a process, or from the machine, or give them back."""
        if self._descriptors.random() < 0.2:
            self.disk.starved = not self.disk.starved
        elif self.scheduler.processes:
            process = self._descriptors.choice(self.scheduler.processes)
            process.starved = not process.starved

    def _stop_or_continue(self) -> None:
        rng = self.rng
        process = rng.choice(self.scheduler.processes) if self.scheduler.processes else None
        choice = rng.randrange(4)
        if choice == 0:
            self.clock.offset += rng.choice((-1e6, -3600.0, -1.0, 1.0, 3600.0, 1e6))
        elif choice == 1 and process in self.sessions():
            self._roles[process].stopping = True  # type: ignore[index, union-attr]
        elif process is not None and len(self.living()) > 1:
            process.stopped = not process.stopped
            self.scheduler.now += rng.choice((0.0, 0.3, 2.0))


@contextlib.contextmanager
def seeded(rng: random.Random) -> Iterator[None]:
    """Let every name that the package makes up come from the seed."""
    numbers = itertools.count()
    with (
        mock.patch("postroom.store.base.new_token", lambda n=6: f"{rng.getrandbits(4 * n):0{n}x}"),
        mock.patch("postroom.master.new_run_id", lambda: f"run-{next(numbers):04d}"),
        mock.patch("postroom.store.requests._new_name", lambda _: f"{next(numbers):020d}-a.json"),
        mock.patch("postroom.master.source_version", lambda project, task: "1"),
        # A story lasts seconds.
        mock.patch("postroom.pilots.stand_in.SILENT_S", 3.0),
        mock.patch("postroom.pilots.far_end.SILENT_S", 3.0),
        mock.patch("postroom.pilots.stand_in.PING_S", 0.5),
        mock.patch("postroom.pilots.far_end.PING_S", 0.5),
        mock.patch("postroom.pilots.stand_in.ASK_S", 2.0),
        # What a stand-in says of this process: the same in each story.
        mock.patch("postroom.pilots.stand_in.myself", lambda: Identity(1, 1, "", "")),
        mock.patch("socket.gethostname", lambda: "host"),
    ):
        yield


def tell(seed: int) -> Story:
    """Run the story of one seed; whatever it raises says how to hear it again."""
    story = Story(seed)
    with seeded(random.Random(seed)):
        try:
            story.run()
        except BaseException as error:
            error.add_note(f"replay: python -m tests.simulation {seed}")
            raise
    return story
