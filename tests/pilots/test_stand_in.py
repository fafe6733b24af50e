"""The near half of a pilot, with a far end that says what the test says; `step` by `step`."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from postroom.errors import OtherVersionError
from postroom.jobs import Job
from postroom.master import Master
from postroom.parcel.sheets import JobEnd, RanBy, pack_outcomes
from postroom.pilots.engine import EngineError, Fate, Sighting
from postroom.pilots.far_end import GONE, SILENT_S, VERSION
from postroom.pilots.stand_in import StandIn, pack_source
from postroom.pilots.wire import Frame, Wire
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.store.mailbox import Letter, read_in_hand
from postroom.store.pilot_records import (
    PilotGroup,
    PilotRecord,
    PilotState,
    change_groups,
    read_groups,
    read_pilots,
)
from postroom.store.requests import StopOrder, order_stop
from postroom.store.runs import Note, read_notes, take_back_letter
from postroom.testing import wait_until

KERNELS = "def double(x):\n    return 2 * x\n"


class ScriptedEngine:
    """Says what the test says."""

    carries = True

    def __init__(self) -> None:
        self.fate: Sighting | None = None
        self.cancelled: list[str] = []
        self.fails = 0

    def command(self, group: PilotGroup, job_name: str) -> list[str]:
        raise NotImplementedError

    def look(self, job_names: set[str]) -> dict[str, Sighting]:
        if self.fails:
            self.fails -= 1
            raise EngineError("slurm_load_jobs error: Unable to contact slurm controller")
        return dict.fromkeys(job_names, self.fate) if self.fate is not None else {}

    def cancel(self, job_name: str, engine_id: str) -> None:
        self.cancelled.append(job_name)


class Room:
    """A base with a Master, a stand-in, and the far end of its wire in the hands of the test."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.files = LocalFiles()
        self.base = create_base(folder / "base")
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "kernels.py").write_text(KERNELS)
        self.engine = ScriptedEngine()
        record = PilotRecord("p-1", "p", "slurm", PilotState.SUBMITTED, "postroom-p-1", time.time())
        group = PilotGroup("slurm", **options)  # type: ignore[arg-type]
        self.stand_in = StandIn(self.base, record, group, self.engine, idle_s=30.0)
        near_reads, self.far_writes = os.pipe()
        self.far_reads, near_writes = os.pipe()
        self.near_reads = near_reads
        spools = (f"{folder}/spool-{number}" for number in range(1000))
        self.far = Wire(self.far_reads, self.far_writes, spool=lambda: next(spools))
        self.heard: list[Frame] = []
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()
        self.stand_in.connect(near_reads, near_writes)
        self.master = Master(self.base.root, import_folder=self.project)
        self.now = time.monotonic()

    def _listen(self) -> None:
        for frame in self.far.frames():
            self.heard.append(frame)

    def until(self, condition: Callable[[], object]) -> None:
        """Have both sides take steps until something is true."""

        def came_true() -> bool:
            self.master.step(time.monotonic())
            if not self.stand_in.ended:
                self.stand_in.step(self.now)
            return bool(condition())

        wait_until(came_true, folder=self.base.root, timeout_s=20)

    def kinds(self) -> list[str]:
        return [frame.kind for frame in self.heard]

    def serve(self, *, ends_at: float = 0.0) -> None:
        """Say what a far end says until it is ready."""
        place = {"node": "n1", "engine_id": "7", "ends_at": ends_at, "cpus": 1, "pid": 1}
        self.far.send("hello", version=VERSION, **place)
        self.far.send("ready", gpu="cpu", gpu_name="CPU", gpus=0, memory_mib=0)
        self.until(lambda: os.path.exists(self.base.mailbox("p-1")))

    def letter(self) -> Letter:
        """The letter that came last."""
        self.until(lambda: self.kinds().count("letter") > self._taken)
        self._taken += 1
        line = [frame for frame in self.heard if frame.kind == "letter"][-1].words["line"]
        letter = Letter.decode(line.encode())
        assert letter is not None
        return letter

    _taken = 0

    def answer(self, letter: Letter, *values: object, last: bool = True) -> None:
        """Send results of a letter's first jobs, as one parcel."""
        ends = [JobEnd(value) for value in values]
        parcel = pack_outcomes(letter.first, ends, RanBy("p-1", "cpu", 1, 0.0, letter.attempt))
        words = {"letter": letter.letter_id, "run": letter.run}
        self.far.send("result", b"".join(parcel), **words, first=letter.first, jobs=len(ends))
        if last:
            self.far.send("empty", letter=letter.letter_id)

    def hang_up(self) -> None:
        """The far end dies."""
        self.far.close(wait_s=5)

    @property
    def record(self) -> PilotRecord:
        return read_pilots(self.files, self.base)["p-1"]

    def close(self) -> None:
        self.hang_up()
        self.master.close()
        self.stand_in.close()
        self.thread.join(5)
        os.close(self.far_reads)
        os.close(self.near_reads)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


def test_a_letter_goes_over_the_wire_with_its_files_and_results_come_back(room: Room) -> None:
    room.serve()
    pool = room.master.submit_all([Job("kernels:double", x=4)], shared={"w": 1})
    letter = room.letter()
    sent = room.kinds()
    assert sent[0] == "hello"
    assert {"run", "data", "record"} <= set(sent[: sent.index("letter")])
    room.answer(letter, 8)
    room.until(lambda: pool.done)
    assert list(pool.results()) == [8]
    assert room.files.read(room.base.mailbox("p-1"), 100) == b""
    # The same files are not sent again.
    again = room.master.submit_all([Job("kernels:double", x=5)], shared={"w": 1})
    room.answer(room.letter(), 10)
    room.until(lambda: again.done)
    assert room.kinds().count("data") == 1


def test_the_group_learns_which_gpu_its_pilots_find(room: Room) -> None:
    change_groups(room.files, room.base, lambda groups: groups.groups.update(p=PilotGroup("slurm")))
    room.far.send("hello", version=VERSION, node="n1", engine_id="7", ends_at=0.0, cpus=1, pid=1)
    room.far.send("ready", gpu="GPU-1", gpu_name="A100", gpus=1, memory_mib=40_000)
    room.until(lambda: os.path.exists(room.base.mailbox("p-1")))
    group = read_groups(room.files, room.base).groups["p"]
    assert (group.gpu_name, group.memory_mib) == ("A100", 40_000)


def test_frames_of_a_letter_that_it_does_not_have_are_dropped(room: Room) -> None:
    room.serve()
    pool = room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    room.answer(letter._replace(serial=letter.serial + 1), 666)
    room.answer(letter, 8)
    room.until(lambda: pool.done)
    assert list(pool.results()) == [8]


def test_a_note_is_written_before_the_letter_is_given_back(room: Room) -> None:
    room.serve()
    pool = room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    note = Note(letter.run, 99, 5, "lost", "x", reason="its worker exited with code 3", at=1.0)
    room.far.send("note", note.encode(), letter=letter.letter_id, job=letter.first)
    room.far.send("empty", letter=letter.letter_id)
    second = room.letter()
    assert (second.attempt, second.first) == (2, letter.first)
    (written,) = read_notes(room.files, room.base, letter.run)
    assert (written.job, written.attempt, written.agent) == (letter.first, 1, "p-1")
    room.answer(second, 8)
    room.until(lambda: pool.done)


def test_a_letter_that_is_shortened_there_is_shortened_here(room: Room) -> None:
    room.serve()
    first = room.master.submit_all([Job("kernels:double", x=4)])
    room.answer(room.letter(), 8)
    room.until(lambda: first.done)  # now the Master knows that they are short
    pool = room.master.submit_all([Job("kernels:double", x=n) for n in range(4)])
    letter = room.letter()
    taken = letter.stop - letter.first
    while taken < 2:
        room.answer(letter, *range(taken))
        letter = room.letter()
        taken = letter.stop - letter.first
    room.far.send("cut", letter=letter.letter_id, stop=letter.first + 1)
    room.answer(letter, 77)
    rest = room.letter()
    assert rest.first == letter.first + 1
    room.answer(rest, *range(rest.stop - rest.first))
    while not pool.done:
        room.until(lambda: pool.done or room.kinds().count("letter") > room._taken)
        if not pool.done:
            more = room.letter()
            room.answer(more, *range(more.stop - more.first))


@pytest.mark.parametrize(
    ("fate", "blamed"),
    [
        (Sighting("7", Fate.TAKEN, "PREEMPTED"), 0),
        (Sighting("7", Fate.TAKEN, "TIMEOUT"), 0),
        (Sighting("7", Fate.ENDED, "FAILED (NonZeroExitCode)"), 1),
        (None, 1),
    ],
)
def test_how_a_pilot_ended_is_asked_of_the_engine_and_decides_about_blame(
    room: Room, fate: Sighting | None, blamed: int
) -> None:
    letter = begin(room)
    room.engine.fate = fate
    room.engine.fails = 1  # a look that fails means nothing
    room.hang_up()
    room.until(lambda: room.stand_in.ended)
    assert len(read_notes(room.files, room.base, letter.run)) == blamed
    assert not os.path.exists(room.base.mailbox("p-1"))
    assert room.record.state is PilotState.ENDED
    assert (fate.why if fate else "") in room.record.why
    assert not room.record.fault  # it was ready


def begin(room: Room) -> Letter:
    """Have the pilot at work."""
    room.serve()
    room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    room.far.send("hand", letter=letter.letter_id, job=letter.first, since=time.time(), done=0)
    room.until(lambda: (hand := read_in_hand(room.files, room.base, "p-1")) and hand.job >= 0)
    return letter


def test_an_engine_that_does_not_answer_blames_nobody(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.pilots.stand_in.ASK_S", 0.1)
    letter = begin(room)
    room.engine.fails = 1_000_000
    room.hang_up()
    room.until(lambda: room.stand_in.ended)
    assert read_notes(room.files, room.base, letter.run) == []
    assert "Unable to contact" in room.record.why


def test_a_far_end_that_left_because_its_stand_in_was_stopped_blames_nobody(room: Room) -> None:
    letter = begin(room)
    room.engine.fate = Sighting("7", Fate.ENDED, "COMPLETED")
    room.far.send("bye", why=GONE)
    room.hang_up()
    room.until(lambda: room.stand_in.ended)
    assert read_notes(room.files, room.base, letter.run) == []


def test_trouble_of_this_host_ends_the_pilot_and_blames_nobody(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = begin(room)
    files = room.stand_in._files

    def publish(temporary: str, final: str) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "publish", publish)
    monkeypatch.setattr("postroom.pilots.stand_in.may_pass", lambda error: False)
    room.answer(letter, 8)
    room.until(lambda: room.stand_in.ended)
    assert room.engine.cancelled == ["postroom-p-1"]
    assert read_notes(room.files, room.base, letter.run) == []


@pytest.mark.parametrize(
    ("line", "carries", "blamed"),
    [
        ("exit 1", True, 1),
        ("exit 0", True, 0),  # it left in order, since it could not reach us
        ("exit 75", True, 0),
        ("kill -9 $$", True, 0),  # somebody killed `srun` on this host
        ("kill -9 $$", False, 1),  # it was the far end itself
    ],
)
def test_how_the_engines_command_ended_decides_about_blame_too(
    room: Room, line: str, carries: bool, blamed: int
) -> None:
    letter = begin(room)
    room.engine.carries = carries
    room.engine.fate = Sighting("7", Fate.ENDED, "FAILED")
    room.stand_in._process = subprocess.Popen(["sh", "-c", line])
    room.hang_up()
    room.until(lambda: room.stand_in.ended)
    assert len(read_notes(room.files, room.base, letter.run)) == blamed


def test_a_disk_that_does_not_answer_for_a_moment_ends_no_pilot(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.serve()
    asked = []

    def size() -> int:
        asked.append(errno.EIO)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(room.stand_in._box, "size", size)
        room.until(lambda: len(asked) >= 3)
    # Nor does it fail the job whose arguments could not be read.
    pool = room.master.submit_all([Job("kernels:double", x=4)])
    with monkeypatch.context() as patch:
        patch.setattr(room.stand_in._files, "open_append_file", lambda path: size())
        room.until(lambda: len(asked) >= 6)
    assert "letter" not in room.kinds()
    room.answer(room.letter(), 8)
    room.until(lambda: pool.done)
    assert room.record.state is PilotState.SERVING


def test_what_another_version_has_written_waits_for_an_update_and_starts_no_other_pilot(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.serve()
    pool = room.master.submit_all([Job("kernels:double", x=4)])
    asked = []

    def ship(*_: object, **__: object) -> None:
        asked.append(1)
        raise OtherVersionError("run.json", "a later one")

    with monkeypatch.context() as patch:
        patch.setattr(room.stand_in._ships, "ship", ship)
        room.until(lambda: len(asked) >= 3)
        hand = read_in_hand(room.files, room.base, "p-1")
        assert hand is not None and hand.state == "blocked"
    room.answer(room.letter(), 8)
    room.until(lambda: pool.done)


def test_a_job_that_was_not_begun_is_not_blamed(room: Room) -> None:
    room.serve()
    room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    room.hang_up()
    room.until(lambda: room.stand_in.ended)
    assert read_notes(room.files, room.base, letter.run) == []


def test_a_stand_in_that_was_taken_for_dead_cannot_publish(room: Room) -> None:
    room.serve()
    pool = room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    take_back_letter(room.files, room.base, "p-1", reason="test", at=0.0)
    room.answer(letter, 666)
    with pytest.raises(Exception, match="taken for dead"):
        room.until(lambda: False)
    assert not pool.done


def test_a_far_end_that_talks_nonsense_is_ended_and_its_job_is_blamed(room: Room) -> None:
    room.serve()
    room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    room.far.send("hand", letter=letter.letter_id, job=letter.first, since=1.0, done=0)
    room.answer(letter._replace(first=letter.stop), 8)
    room.until(lambda: room.stand_in.ended)
    assert room.engine.cancelled == ["postroom-p-1"]
    assert len(read_notes(room.files, room.base, letter.run)) == 1
    assert "cannot go on" in room.record.why


def test_a_stand_in_that_is_found_dead_costs_no_attempt(room: Room) -> None:
    room.serve()
    room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    room.far.send("hand", letter=letter.letter_id, job=letter.first, since=1.0, done=0)
    room.until(lambda: (hand := read_in_hand(room.files, room.base, "p-1")) and hand.job >= 0)
    room.stand_in.ended = True  # it takes no more steps
    room.stand_in._tree.release()
    room.stand_in._lock.release()
    room.until(lambda: not os.path.exists(room.base.mailbox("p-1")))
    assert read_notes(room.files, room.base, letter.run) == []


def test_a_silent_wire_cancels_the_pilot_first_and_then_lays_down_the_letter(room: Room) -> None:
    room.serve()
    room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    room.now = time.monotonic() + SILENT_S + 1
    room.until(lambda: room.stand_in.ended)
    assert room.engine.cancelled == ["postroom-p-1"]
    assert read_notes(room.files, room.base, letter.run) == []
    assert "nothing was heard" in room.record.why


def test_an_idle_pilot_ends_by_itself(room: Room) -> None:
    room.serve()
    assert room.record.state is PilotState.SERVING
    room.now += 31.0
    room.far.send("ping")
    room.until(lambda: "end" in room.kinds())
    assert not os.path.exists(room.base.mailbox("p-1"))
    room.far.send("bye", why="drained")
    room.hang_up()
    room.until(lambda: room.stand_in.ended)
    assert (room.record.why, room.record.fault) == ("idle", False)


def test_a_job_that_may_take_longer_than_the_pilot_lives_is_not_begun(room: Room) -> None:
    room.serve(ends_at=time.time() + 600)
    room.master.submit_all([Job("kernels:double", x=4).options(timeout_s=3600)])
    room.until(lambda: "end" in room.kinds())
    assert "letter" not in room.kinds()
    assert not os.path.exists(room.base.mailbox("p-1"))


def test_near_its_end_a_pilot_drains_and_its_job_is_told_to_stop(room: Room) -> None:
    room.serve(ends_at=time.time() + 65)
    room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    room.far.send("hand", letter=letter.letter_id, job=letter.first, since=1.0, done=0)
    room.stand_in.record = replace(room.stand_in.record, ends_at=time.time() + 10)

    def told() -> bool:
        room.now += 0.1
        return "stop" in room.kinds()

    room.until(told)
    stop = next(frame for frame in room.heard if frame.kind == "stop")
    assert (stop.words["job"], stop.words["final"]) == (letter.first, False)
    assert room.record.state is PilotState.DRAINING


def test_an_order_to_stop_a_job_is_passed_on(room: Room) -> None:
    room.serve()
    room.master.submit_all([Job("kernels:double", x=4)])
    letter = room.letter()
    room.far.send("hand", letter=letter.letter_id, job=letter.first, since=1.0, done=0)
    order = StopOrder(letter.attempt, True, "killed by ana")
    order_stop(room.files, room.base, JobId(letter.run, letter.first), order)

    def heard() -> bool:
        room.now += 0.1
        return "stop" in room.kinds()

    room.until(heard)
    stop = next(frame for frame in room.heard if frame.kind == "stop")
    assert (stop.words["final"], stop.words["reason"]) == (True, "killed by ana")


def test_a_pilot_that_dies_before_it_is_ready_is_a_fault(room: Room) -> None:
    room.engine.fate = Sighting("7", Fate.ENDED, "FAILED")
    room.hang_up()
    room.until(lambda: room.stand_in.ended)
    assert room.record.fault


def test_the_source_of_a_project_is_sent_without_what_is_not_its_own(tmp_path: Path) -> None:
    import io
    import tarfile

    for name in ("a.py", "sub/b.py", "sub/data.bin", ".git/c.py", "venv/pyvenv.cfg", "venv/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    with tarfile.open(fileobj=io.BytesIO(pack_source(str(tmp_path)))) as archive:
        assert sorted(archive.getnames()) == ["a.py", "sub/b.py"]
