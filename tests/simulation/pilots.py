"""Pilots in the simulated world: the real stand-in, the real far end, and a node with its own disk.

    Master ── base ── stand-in ══ two lines of frames ══ far end ── base of the node ── Session

The lines have latency, stall, are cut and lose what was on its way; the engine takes pilots away,
tells them to stop, and does not always answer. Whatever is killed is killed as everywhere here.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from postroom.parcel.container import Buffer
from postroom.pilots.engine import EngineError, Fate, Sighting
from postroom.pilots.far_end import GONE, VERSION, FarEnd, serve_letters
from postroom.pilots.stand_in import StandIn, TakenForDead
from postroom.pilots.wire import Frame
from postroom.store.agents import AgentInfo
from postroom.store.base import FOLDERS, Base
from postroom.store.journal import NullJournal
from postroom.store.pilot_records import PilotGroup, PilotRecord, PilotState

from .checker import Checker, Plan, Violation
from .commands import Command
from .disk import Disk, Folder, SimulatedFiles, SimulatedLock
from .processes import Process
from .roles import Machine, Session

if TYPE_CHECKING:
    from .world import World

NODE = "/node"


class Line:
    """One direction of a wire: what was sent arrives in order, later, or not at all."""

    def __init__(self, world: World, latency_s: float) -> None:
        self._world = world
        self._latency_s = latency_s
        self._frames: deque[tuple[float, Frame | None]] = deque()
        self.stalled_until = 0.0
        self.broken = False
        self.writer: Process | None = None
        self.reader: Process | None = None

    def put(self, frame: Frame | None) -> None:
        """Send a frame; None: there will be no more."""
        if not self.broken and self.writer is not None and self.writer.alive:
            self._frames.append((self._world.scheduler.now + self._latency_s, frame))

    def take(self) -> Iterator[Frame | None]:
        """What has arrived."""
        now = self._world.scheduler.now
        if self.writer is not None and not self.writer.alive:
            self.cut()  # srun, or what else carries it, ends with it
        while self._frames and max(self._frames[0][0], self.stalled_until) <= now:
            yield self._frames.popleft()[1]

    def cut(self) -> None:
        """It breaks: of what is on its way, the last may be lost."""
        if self.broken:
            return
        self.broken = True
        for _ in range(self._world.pilot_lot.randint(0, len(self._frames))):
            self._frames.pop()
        self._frames.append((self._world.scheduler.now, None))


class SimulatedWire:
    """One end of a wire, as the package knows it."""

    def __init__(self, world: World, out: Line, into: Line, process: Process) -> None:
        self._world = world
        self._out = out
        self.into = into
        out.writer = into.reader = process
        self.heard_at = world.scheduler.now

    @property
    def closed(self) -> bool:
        """Whether the other end takes nothing any more."""
        reader = self._out.reader
        return self._out.broken or (reader is not None and not reader.alive)

    def send(self, kind: str, load: Buffer = b"", **words: Any) -> None:
        """Send a frame; its words travel as JSON."""
        self._out.put(Frame(kind, json.loads(json.dumps(words)), bytes(load)))

    def close(self, *, wait_s: float = 0.0) -> None:
        """Send nothing more."""
        self._out.put(None)
        self._out.broken = True

    def take(self) -> Iterator[Frame | None]:
        """What has arrived."""
        for frame in self.into.take():
            if frame is not None:
                self.heard_at = self._world.scheduler.now
            yield frame


class SimulatedEngine:
    """Knows what became of each pilot, when it answers; and takes some away."""

    carries = True

    def __init__(self, world: World) -> None:
        self._world = world
        self._far: dict[str, Process] = {}
        self._taken: set[str] = set()
        self.wires: dict[str, tuple[Line, Line]] = {}
        self.far_ends: dict[str, SimulatedFarEnd] = {}
        self.answers = True

    def command(self, group: PilotGroup, job_name: str) -> list[str]:
        raise NotImplementedError

    def start(self, pilot: str, near: Process, lives_s: float | None) -> SimulatedWire:
        """Start a far end; return the near end of its wire."""
        latency_s = self._world.pilot_lot.choice((0.0, 0.0, 0.05))
        there, back = Line(self._world, latency_s), Line(self._world, latency_s)
        node = FarNode(self._world, pilot, lives_s)
        far = self._world.scheduler.spawn(f"far {pilot}", node)
        node.wire = SimulatedWire(self._world, back, there, far)
        self._far[pilot] = far
        self.wires[pilot] = there, back
        return SimulatedWire(self._world, there, back, near)

    def living(self) -> list[str]:
        """The pilots that run."""
        return [pilot for pilot, far in self._far.items() if far.alive]

    def at_work(self) -> list[str]:
        """Those of them whose session has begun a job."""
        far = {pilot: self.far_ends[pilot] for pilot in self.living() if pilot in self.far_ends}
        return [pilot for pilot in far if far[pilot].busy and far[pilot]._hand[0] >= 0]

    def take(self, pilot: str) -> None:
        """Take a pilot away: preempted, or its time is over."""
        if self._far[pilot].alive:
            self._taken.add(pilot)
            self._world.doom(self._far[pilot])

    def is_blamed_for(self, process: Process) -> bool:
        """Whether the end of a process on a node may cost a job an attempt: only if it ended by
        itself, or its job did that, for all that anybody can know."""
        role, _, pilot = process.name.partition(" ")
        if pilot not in self._far or pilot in self._taken:
            return False
        if role == "far":
            return not (pilot in self.far_ends and self.far_ends[pilot].left)
        dies = role in ("worker", "minder") and not process.finished
        return dies and self._far[pilot].alive

    def look(self, job_names: set[str]) -> dict[str, Sighting]:
        self._ask()
        found = {}
        for name in job_names & set(self._far):
            if name in self._taken:
                found[name] = Sighting("7", Fate.TAKEN, "PREEMPTED")
            elif self._far[name].alive:
                found[name] = Sighting("7", Fate.RUNNING)
            elif name in self.far_ends and self.far_ends[name].left:
                found[name] = Sighting("7", Fate.TAKEN, "COMPLETED")
            else:
                found[name] = Sighting("7", Fate.ENDED, "FAILED")
        return found

    def cancel(self, job_name: str, engine_id: str) -> None:
        self._ask()
        if job_name in self._far:
            self.take(job_name)

    def _ask(self) -> None:
        if not (self.answers or self._world.calm):
            raise EngineError("Unable to contact slurm controller")


class Pilot:
    """One stand-in after the other; and their keeper, which has the engine end the dead one's."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._group = name
        self._number = 0
        self.name = f"pilot {name}"
        self.stand_in: CheckedStandIn | None = None

    def __call__(self, process: Process) -> None:
        world, base, lot = self._world, self._world.base, self._world.pilot_lot
        while True:  # until the engine has said yes, the last one counts as living
            try:
                world.engine.cancel(f"{self._group}-{self._number}", "")
                break
            except EngineError:
                process.sleep(0.5)
        self._number += 1
        pilot = f"{self._group}-{self._number}"
        record = PilotRecord(
            pilot, self._group, "slurm", PilotState.SUBMITTED, pilot, world.clock.wall()
        )
        lives_s = lot.choice((None, None, None, 3.0, 10.0))
        stand_in = self.stand_in = CheckedStandIn(
            base,
            record,
            PilotGroup("slurm", time_s=lives_s),
            world.engine,
            idle_s=lot.choice((None, 1.0)),
            files=world.files(process),
            clock=world.clock,
            journal=NullJournal(),
            sleep=process.sleep,
        )
        wire = world.engine.start(pilot, process, lives_s)
        stand_in.attach(wire)  # type: ignore[arg-type]
        try:
            while not stand_in.ended:
                for frame in wire.take():
                    stand_in.hear(self._spool(process, frame))
                stand_in.step(world.clock.monotonic())
                if stand_in.violation is not None:
                    raise stand_in.violation
                process.sleep(lot.choice((0.001, 0.02, 0.2)))
        except TakenForDead:
            pass
        if process.alive:
            stand_in.close()

    @property
    def stopping(self) -> bool:
        """Whether somebody has told it to stop."""
        return self.stand_in is not None and self.stand_in._stops > 0

    @stopping.setter
    def stopping(self, told: bool) -> None:
        if self.stand_in is not None:
            self.stand_in.stop()

    def lose_locks(self) -> bool:
        """Free its locks while it lives; False: it has none."""
        stand_in = self.stand_in
        if stand_in is None or stand_in.ended:
            return False
        for lock in (stand_in._lock, stand_in._tree):
            assert isinstance(lock, SimulatedLock)
            lock.lose()
        return True

    def _spool(self, process: Process, frame: Frame | None) -> Frame | None:
        """Put a large result into a file of the outbox, as a wire does; None: that failed."""
        stand_in = self.stand_in
        assert stand_in is not None
        if frame is not None and frame.kind == "result" and self._world.pilot_lot.random() < 0.5:
            frame.path = self._world.base.temporary(stand_in._outbox)
            try:
                stand_in._files.write_new(frame.path, [frame.data])
            except OSError:
                return None
            frame.data = b""
        return frame

    def strike(self) -> None:
        """Something goes wrong between here and there."""
        lot, engine = self._world.pilot_lot, self._world.engine
        living = engine.at_work() or (engine.living() if lot.random() < 0.03 else [])
        if not living:
            return  # there is more to go wrong while they are at work
        what = lot.choice(("cut", "stall", "take", "take", "tell", "engine", "stop"))
        if what == "engine":
            engine.answers = not engine.answers
        elif what == "stop" and self.stand_in is not None:
            self.stand_in.stop()
            return
        pilot = lot.choice(living)
        if what == "take":
            engine.take(pilot)
        elif what == "tell" and pilot in engine.far_ends:
            engine.far_ends[pilot].told_to_stop()
        elif what in ("cut", "stall"):
            for line in engine.wires[pilot]:
                if what == "cut":
                    line.cut()
                else:
                    line.stalled_until = self._world.scheduler.now + lot.choice((0.1, 1.0, 10.0))


class CheckedStandIn(StandIn):
    """A stand-in may meet trouble of its disk, and nothing else that it does not understand."""

    violation: Violation | None = None

    def _step(self, now: float) -> None:
        try:
            super()._step(now)
        except (OSError, TakenForDead):
            raise
        except Exception as error:
            self.violation = Violation(f"stand-in {self._agent_id} cannot go on: {error!r}")
            raise


class SimulatedFarEnd(FarEnd):
    """A far end whose files are simulated, too; kernels are where they are needed."""

    left = False

    def __init__(
        self, wire: SimulatedWire, node: FarNode, files: SimulatedFiles, **how: Any
    ) -> None:
        super().__init__(wire, node.base, node.pilot, files=files, **how)  # type: ignore[arg-type]
        self._disk = files

    def told_to_stop(self) -> None:
        """SIGTERM, by the engine."""
        self._wire.send("draining", why="its engine told it to stop")
        self.drains = True

    def _ask_for_source(self, run: str) -> None:
        """Nothing is missing."""

    def _write_record(self, path: str, at: int, record: bytes) -> None:
        self._disk.operation(path, grows=True, opens=True)
        node = self._disk.disk.file(path)
        node.data = node.data[:at].ljust(at, b"\0") + record + node.data[at + len(record) :]

    def _put(self, frame: Frame, path: str) -> None:
        half = self._base.temporary()
        self._disk.write_new(half, [frame.data])
        self._disk.move(half, path)


class FarChecker(Checker):
    """What is executed on a node: there a job that nobody believes in any more may go on."""

    def __init__(self, near: Checker) -> None:
        vars(self).update(vars(near))
        self._near = near
        self.running: list[Command] = []

    def record(self, run: str, job: int, plan: Plan, attempt: int) -> int:
        self._near.far_results += 1
        return super().record(run, job, plan, attempt)

    def begins(self, command: Command, now: float) -> None:
        self.running = [other for other in self.running if not other.over(now)]
        for other in self.running:
            if other.agent == command.agent:
                raise Violation(f"{command} shares its card with {other}")
        self.running.append(command)


class FarNode(Machine):
    """A node for one pilot: a disk, a base, and a session that serves it."""

    wire: SimulatedWire

    def __init__(self, world: World, pilot: str, lives_s: float | None) -> None:
        self._world = world
        self.pilot = pilot
        self._ends_at = world.scheduler.now + lives_s if lives_s is not None else float("inf")
        self.rng = world.rng
        self.scheduler = world.scheduler
        self.clock = world.clock
        self.disk = Disk(world.pilot_lot)
        self.base = Base(NODE)
        self.checker = FarChecker(world.checker)
        self.trees: dict[str, SimulatedLock] = {}
        self.cards = {}
        self.version_lot = None

    @property
    def calm(self) -> bool:  # type: ignore[override]
        """Whether the faults have stopped."""
        return self._world.calm

    def look_at_clock(self) -> None:
        """The engine ends a pilot whose time is over."""
        if self.scheduler.now >= self._ends_at:
            self._world.engine.take(self.pilot)

    def __call__(self, process: Process) -> None:
        root = Folder()
        self.disk.change((self.disk.root, NODE[1:], root))
        for name in FOLDERS:
            self.disk.change((root, name, Folder()))
        files = self.files(process)
        info = AgentInfo(self.pilot, "cpu", "CPU", "node", "", 1, 1, self.clock.wall(), gpus=0)
        files.write_new(self.base.agent_info(self.pilot), [info.encode()])
        forked = self._world.pilot_lot.random() < 0.3
        session = Session(self, self.pilot, forked=forked)
        guardian = self.scheduler.spawn(f"guardian {self.pilot}", session, parent=process)
        far = SimulatedFarEnd(self.wire, self, files, alive=lambda: guardian.alive)
        self._world.engine.far_ends[self.pilot] = far
        place = {"node": "n1", "engine_id": "7", "ends_at": 0.0, "cpus": 1, "pid": 1}
        self.wire.send("hello", version=VERSION, **place)
        waiter = FarWaiter(self, process, far)
        ending = serve_letters(
            far,
            self.wire,  # type: ignore[arg-type]
            waiter,  # type: ignore[arg-type]
            waiter,
            self.base,
            clock=self.clock,
        )
        session.stopping = True
        for _ in range(20):
            if guardian.alive:
                process.sleep(0.1)
        self.checker.sweep(self.pilot)
        far.left = ending in ("drained", GONE)
        self.wire.send("bye", why=ending)
        self.wire.close()


class FarWaiter:
    """What a far end waits with, and what it has heard meanwhile."""

    def __init__(self, node: FarNode, process: Process, far: SimulatedFarEnd) -> None:
        self._node = node
        self._process = process
        self._far = far
        self._heard: deque[Frame | None] = deque()

    def empty(self) -> bool:
        return not self._heard

    def get(self) -> Frame | None:
        return self._heard.popleft()

    def follow(self, folders: Sequence[str]) -> None:
        """It looks at everything."""

    def expect_more(self, now: float) -> None:
        """It looks often."""

    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Let time pass, and read the wire."""
        if not ready():
            self._process.sleep(
                min(seconds, self._node._world.pilot_lot.choice((0.001, 0.05, 1.0)))
            )
        self._node.look_at_clock()
        for frame in self._node.wire.take():
            try:
                if frame is None or not self._far.take_in(frame):
                    self._heard.append(frame)
            except OSError:
                self._heard.append(None)  # a full disk: this pilot cannot go on
