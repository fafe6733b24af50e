"""Whole histories of pilots in one process: stand-ins that are killed, stopped or cut off.

The Master and the stand-ins are real, on a real base, step by step; the far ends and the engine are
played. Whatever happens, each job has one result, and only what the engine calls the pilot's own
end counts as an attempt.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from postroom.jobs import Job
from postroom.master import Master
from postroom.parcel.sheets import JobEnd, RanBy, pack_outcomes
from postroom.pilots.engine import Fate, Sighting
from postroom.pilots.far_end import SILENT_S, VERSION
from postroom.pilots.stand_in import StandIn, TakenForDead
from postroom.pilots.wire import Frame, Wire
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.store.mailbox import Letter
from postroom.store.pilot_records import PilotGroup, PilotRecord, PilotState
from postroom.store.runs import read_notes

JOBS = 12
KERNELS = "def double(x):\n    return 2 * x\n"


@dataclass
class PlayedEngine:
    """Knows what became of each pilot, once something has."""

    fates: dict[str, Sighting] = field(default_factory=dict)

    def command(self, group: PilotGroup, job_name: str) -> list[str]:
        raise NotImplementedError

    def look(self, job_names: set[str]) -> dict[str, Sighting]:
        return {name: self.fates[name] for name in job_names if name in self.fates}

    def cancel(self, job_name: str, engine_id: str) -> None:
        self.fates[job_name] = Sighting("", Fate.TAKEN, "CANCELLED")


class PlayedPilot:
    """A stand-in, and a far end that answers when it is told to."""

    def __init__(self, base: Base, folder: Path, number: int, engine: PlayedEngine) -> None:
        name = f"p-{number}"
        record = PilotRecord(name, "p", "slurm", PilotState.SUBMITTED, name, time.time())
        self.name = name
        self.stand_in = StandIn(base, record, PilotGroup("slurm"), engine, idle_s=None)
        self._near_reads, far_writes = os.pipe()
        self._far_reads, near_writes = os.pipe()
        self._spool = folder / name
        self._spool.mkdir()
        self._numbers = iter(range(10_000))
        self._far = Wire(self._far_reads, far_writes, spool=self._new_file)
        self._frames: list[Frame] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        self.stand_in.connect(self._near_reads, near_writes)
        self._far.send("hello", version=VERSION, node="n", engine_id="7", ends_at=0.0, cpus=1)
        self._far.send("ready", gpu="cpu", gpu_name="CPU", gpus=0, memory_mib=0)
        self._letters = 0
        self.stopped = 0  # rounds in which its stand-in does nothing, as after SIGSTOP
        self.silent = False  # nothing is heard of its far end
        self.dead = False

    def _new_file(self) -> str:
        return str(self._spool / str(next(self._numbers)))

    def _listen(self) -> None:
        self._frames.extend(self._far.frames())

    def letter(self) -> Letter | None:
        """The next letter that has come and was not answered."""
        lines = [frame.words["line"] for frame in self._frames if frame.kind == "letter"]
        return Letter.decode(lines[self._letters].encode()) if len(lines) > self._letters else None

    def begin(self, letter: Letter) -> None:
        """Tell that the first job runs."""
        self._far.send("hand", letter=letter.letter_id, job=letter.first, since=time.time(), done=0)

    def answer(self, letter: Letter, rng: random.Random) -> None:
        """Send what comes of a letter: all of it, or its beginning."""
        self._letters += 1
        stop = rng.choice((letter.stop, letter.stop, rng.randint(letter.first, letter.stop)))
        numbers = range(letter.first, stop)
        if numbers:
            ran = RanBy(self.name, "cpu", 1, 0.0, letter.attempt)
            parcel = pack_outcomes(letter.first, [JobEnd(2 * n, None, 1.0) for n in numbers], ran)
            words = {"letter": letter.letter_id, "run": letter.run, "first": letter.first}
            self._far.send("result", b"".join(parcel), **words, jobs=len(numbers))
        self._far.send("empty", letter=letter.letter_id)

    def hang_up(self) -> None:
        """The far end dies."""
        self._far.close(wait_s=5)

    def kill(self) -> None:
        """`kill -9` of the stand-in: its locks are free, and nothing else is put in order."""
        self.dead = True
        self.stand_in._tree.release()
        self.stand_in._lock.release()

    def close(self) -> None:
        self.hang_up()
        self.stand_in.close()
        self._thread.join(5)
        os.close(self._far_reads)
        os.close(self._near_reads)


class History:
    """One history, by its seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.base = create_base(folder / "base")
        (folder / "kernels.py").write_text(KERNELS)
        self.master = Master(self.base.root, import_folder=folder)
        self.engine = PlayedEngine()
        self.pilots: list[PlayedPilot] = []
        self.zombies: list[PlayedPilot] = []  # killed, or over
        self.ended_by_themselves = 0
        self.now = time.monotonic()  # it runs faster than the clock

    def round(self, *, calm: bool) -> None:
        """Something happens, and everybody takes a step."""
        while len(self.pilots) < 3:
            number = len(self.pilots) + len(self.zombies)
            self.pilots.append(PlayedPilot(self.base, self.folder, number, self.engine))
        self.now += 0.03
        self.master.step(self.now)
        for pilot in list(self.pilots):
            at_work = pilot.letter() is not None
            if not calm and self.rng.random() < (0.1 if at_work else 0.005):
                self._strike(pilot)
            self._play(pilot)
            if pilot.dead or pilot.stand_in.ended:
                self.pilots.remove(pilot)
                self.zombies.append(pilot)
        if self.zombies and self.rng.random() < 0.03:
            self._rise(self.rng.choice(self.zombies))

    def _strike(self, pilot: PlayedPilot) -> None:
        match self.rng.choice(("kill", "stop", "silence", "taken", "ended")):
            case "kill":
                pilot.kill()
            case "stop":
                pilot.stopped = self.rng.randint(5, 50)
            case "silence":
                pilot.silent = True
            case "taken":
                self.engine.fates[pilot.name] = Sighting("7", Fate.TAKEN, "PREEMPTED")
                pilot.hang_up()
            case "ended":
                self.engine.fates[pilot.name] = Sighting("7", Fate.ENDED, "FAILED")
                self.ended_by_themselves += 1
                pilot.hang_up()

    def _play(self, pilot: PlayedPilot) -> None:
        if pilot.stopped:
            pilot.stopped -= 1
            return
        letter = None if pilot.silent else pilot.letter()
        if letter is not None:
            pilot.begin(letter)
            if self.rng.random() < 0.2:
                pilot.answer(letter, self.rng)
        if not pilot.dead:
            late = SILENT_S + 1 if pilot.silent else 0.0
            pilot.stand_in.step(self.now + late)

    def _rise(self, zombie: PlayedPilot) -> None:
        """A stand-in whose locks are gone goes on, as if it had only been taken for dead."""
        if not zombie.stand_in.ended:
            letter = zombie.letter()
            if letter is not None:
                zombie.answer(letter, self.rng)
            try:
                zombie.stand_in.step(self.now)
            except TakenForDead:
                zombie.stand_in.ended = True

    def close(self) -> None:
        self.master.close()
        for pilot in (*self.pilots, *self.zombies):
            pilot.close()


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[list[History]]:
    made: list[History] = []
    yield made
    for history in made:
        history.close()


@pytest.mark.parametrize("seed", range(6))
def test_each_job_has_one_result_whatever_becomes_of_its_pilots(
    tmp_path: Path, histories: list[History], seed: int
) -> None:
    history = History(tmp_path, seed)
    histories.append(history)
    pool = history.master.submit_all([Job("kernels:double", x=n) for n in range(JOBS)])
    rounds = 0
    give_up_at = time.monotonic() + 60
    while not pool.done:
        assert time.monotonic() < give_up_at, f"{pool.n_done} of {JOBS} jobs are done"
        history.round(calm=rounds > 300)
        rounds += 1
        time.sleep(0.001)  # for the threads that read the wires
    done = [one.outcome.value for one in pool]
    lost = done.count("lost")
    assert lost * 3 <= history.ended_by_themselves
    assert [value for value in pool.results(return_exceptions=True) if isinstance(value, int)] == [
        2 * n for n in range(JOBS) if done[n] == "ok"
    ]
    notes = read_notes(LocalFiles(), history.base, pool.run)
    assert len(notes) <= history.ended_by_themselves, [note.reason for note in notes]
    assert all("FAILED" in note.reason for note in notes)
