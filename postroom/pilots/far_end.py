"""The far end of a pilot: an ordinary session in a base of its own, and what passes between it and
the stand-in.

    stand-in ══ frames ══ far end ── letter ──► mailbox ──► guardian and worker (torch, the card)
                             ▲                                 │
                             └── results, notes, output ◄──────┘    all in a folder of this node

The session is the one that runs everywhere: a kernel that crashes, hangs or runs out of memory
costs its worker, not the pilot, whose place in the cluster's queue may have taken hours. The far
end plays the acting Master for it: it writes letters, and sends back every file that the session
makes for them. It never sees the base of its stand-in, so whatever it does it cannot publish there.

Who ends it: its stand-in, by a word or by the end of the wire; the engine; a minute of silence; the
end of its session. Its session dies with it, with all that jobs have started, and its folder goes.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ..errors import BadFileError, PostroomError
from ..parcel.container import PARCEL_LIMIT
from ..store.agents import read_agent_info
from ..store.base import Base, create_base
from ..store.files import Box, Clock, Files, LocalFiles, SystemClock
from ..store.job_ids import JobId
from ..store.mailbox import Letter, is_plain_name, read_in_hand
from ..store.requests import StopOrder, order_stop
from ..store.runs import INFO_LIMIT, RunInfo, count_jobs
from ..store.task_source import find_source, version_of
from ..system.file_events import Waiter
from ..system.own_python import start_detached
from ..system.process_tree import mark_of, sweep
from ..system.regular_file import private
from .folder_mirror import FolderMirror, send_growth
from .wire import Frame, Wire, WireError

# Frames of another version are refused: both ends come from the same release.
VERSION = 1
# A stand-in that says nothing for so long is gone.
SILENT_S = 60.0
PING_S = 5.0
# How often the output of a running job is looked at, and what it does now.
LOOK_S = 0.1
# After this long, the parts of a letter behind the one at work are left to others.
LATE_S = 1.0
# How long a session may take to end.
LEAVE_S = 20.0
PILOT = "POSTROOM_PILOT"
# Why it ended, if its stand-in did first, or was not heard.
GONE = "its stand-in is gone"
FOLDER = "postroom-pilot-"


class Heard(Protocol):
    """What has come over the wire and was not looked at; None: the end."""

    def empty(self) -> bool: ...
    def get(self) -> Frame | None: ...


class LetterPart(NamedTuple):
    """Some jobs of a letter, whose arguments are here."""

    letter: Letter
    commands: list[int]  # which of them are commands
    more: bool  # whether other parts of the same letter follow


class FarEnd:
    """Passes letters to a session, and sends back what comes of them; `step` is one round."""

    def __init__(
        self,
        wire: Wire,
        base: Base,
        agent_id: str,
        *,
        alive: Callable[[], bool] = lambda: True,
        files: Files | None = None,
    ) -> None:
        """`alive`: whether the session still runs."""
        self._wire = wire
        self._base = base
        self._agent_id = agent_id
        self._alive = alive
        self._files: Files = files or LocalFiles()
        self._box: Box | None = None
        self._ready = False
        self._waiting: list[LetterPart] = []
        self._letter: Letter | None = None
        self._begun_at = 0.0  # when it was given to the session
        self._expects = ""  # the id of a letter of which more parts will come
        self._over = ""  # the id of the last letter that has ended: nothing of it is begun
        self._part: LetterPart
        self._size = 0  # of the mailbox when it was last read
        self._reached = 0  # the first job whose result was not sent
        self._hand = (-1, 0)
        self._look_at = 0.0
        self._ping_at = 0.0
        self._mirrors: dict[int, FolderMirror] = {}
        self._output: dict[str, tuple[int, int]] = {}
        self._log_at = 0
        self._infos: dict[str, RunInfo] = {}
        self._wanted: set[str] = set()  # runs whose source was asked for and has not come
        self.ending = ""  # why to end: "drained", or what has gone wrong
        self.drains = False

    @property
    def result_folder(self) -> str | None:
        """Where the results of the current letter appear."""
        return self._base.result_folder(self._letter.run) if self._letter is not None else None

    @property
    def busy(self) -> bool:
        """Whether something is expected of the session now."""
        return self._letter is not None

    def is_answered(self) -> bool:
        """Whether the session has done something for its letter."""
        if self._letter is None or self._box is None:
            return bool(self._waiting) and self._box is not None
        path = self._base.result(self._letter.run, self._reached)
        return self._box.size() != self._size or self._files.exists(path)

    def step(self, now: float) -> None:
        """One round."""
        alive = self._alive()
        if now >= self._ping_at:
            self._ping_at = now + PING_S
            self._wire.send("ping")
            self._send_log()
        if self._box is None:
            self._find_box()
        if self._letter is not None:
            self._look(now)
        if self.drains and self._letter is None:
            if self._waiting or self._expects:
                self._give_back(self._expects or self._waiting[0].letter.letter_id)
            self.ending = self.ending or "drained"
        free = self._letter is None and self._box is not None and not self.ending
        if free and self._waiting and self._waiting[0].letter.run not in self._wanted:
            self._deliver(self._waiting.pop(0), now)
        if not alive:  # what it had published was sent
            self.ending = self.ending or "its session ended"

    # What the stand-in says

    def obey(self, frame: Frame) -> None:
        """Do what a frame says; those with files of the base were taken in before."""
        match frame.kind:
            case "letter":
                letter = Letter.decode(frame.words["line"].encode())
                if letter is None:
                    raise WireError("a letter that is none")
                if letter.letter_id == self._over:
                    return
                more = bool(frame.words["more"])
                self._expects = letter.letter_id if more else ""
                self._waiting.append(LetterPart(letter, list(frame.words["commands"]), more))
                self._ask_for_source(letter.run)
            case "no more":
                self._no_more(str(frame.words["letter"]))
            case "source":
                self._unpack_source(frame.words["run"], frame)
            case "stop":
                words = frame.words
                stop = StopOrder(words["attempt"], words["final"], words["reason"])
                order_stop(self._files, self._base, JobId(words["run"], words["job"]), stop)
            case "drain":
                self.drains = True
            case "end":
                self.ending = self.ending or "drained"

    def take_in(self, frame: Frame) -> bool:
        """Keep a file that the stand-in sends; False: the frame is something else."""
        base, words = self._base, frame.words
        names = [str(name) for name in words.get("names", ())]
        if not all(map(is_plain_name, names)):
            raise WireError(f"{names} cannot be names of files")
        match frame.kind:
            case "run":
                self._make_run(names[0], frame)
            case "record":
                log = base.append_log(_plain(words["run"]))
                self._write_record(log, int(words["at"]), _load(frame))
            case "parcel":
                self._put(frame, base.parcel(*names))
            case "data":
                self._put(frame, base.data(*names))
            case "environment":
                self._put(frame, base.environment(*names))
            case "snapshot":
                self._put(frame, base.code_snapshot(*names))
            case "edited":
                self._put(frame, base.edited(_plain(words["run"]), int(words["job"])))
            case "note":
                run, job, attempt = _plain(words["run"]), int(words["job"]), int(words["attempt"])
                self._put(frame, base.attempt(run, job, attempt))
            case "checkpoint":
                folder = f"{base.job_folder(_plain(words['run']), int(words['job']))}/checkpoint"
                self._put(frame, inside(folder, words["name"]))
            case "drop":
                kind, *rest = words["what"]
                self._drop(kind, [_plain(name) for name in rest])
            case _:
                return False
        return True

    def _write_record(self, path: str, at: int, record: bytes) -> None:
        """Put a record of an append log at the byte where it is in the other base."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(fd, record, at)
        finally:
            os.close(fd)

    def _put(self, frame: Frame, path: str) -> None:
        """Put the load of a frame where its file belongs."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if frame.path:
            os.replace(frame.path, path)
            return
        half = f"{path}.{os.getpid()}.new"
        with open(half, "wb") as file:
            file.write(frame.data)
        os.replace(half, path)

    def _make_run(self, run: str, frame: Frame) -> None:
        data = _load(frame)
        info = RunInfo.decode(self._base.run_info(run), data)
        self._infos[run] = info
        for folder in (self._base.run_folder, self._base.result_folder, self._base.attempts):
            self._files.make_folder(folder(run))
        if not self._files.exists(self._base.append_log(run)):
            self._files.write_new(self._base.append_log(run), [b""])
        self._write_run(info)

    def _write_run(self, info: RunInfo) -> None:
        # Here nothing survives its pilot, and no parcel is written over.
        mine = replace(info, durable=False, recycled=False, embedded=False, program="")
        temporary = self._base.temporary()
        self._files.write_new(temporary, [mine.encode()])
        self._files.move(temporary, self._base.run_info(info.run))

    def _drop(self, kind: str, names: list[str]) -> None:
        base = self._base
        match kind:
            case "parcel":
                self._files.remove(base.parcel(*names))
            case "data":
                self._files.remove(base.data(*names))
            case "environment":
                self._files.remove(base.environment(*names))
            case "snapshot":
                self._files.remove(base.code_snapshot(*names))
            case "record":
                pass  # its log goes with its run

    # The source of kernels, where the project's folder is not on this node

    def _ask_for_source(self, run: str) -> None:
        info = self._infos.get(run)
        if info is None or run in self._wanted or _has_source(info):
            return
        self._wanted.add(run)
        self._wire.send("want source", run=run)

    def _unpack_source(self, run: str, frame: Frame) -> None:
        info = self._infos[run]
        digest = str(frame.words["digest"])
        folder = f"{self._base.root}/source-{_plain(digest)}"
        if not os.path.isdir(folder):
            half = self._base.temporary()
            os.mkdir(half, 0o700)
            with tarfile.open(fileobj=io.BytesIO(_load(frame))) as archive:
                for member in archive:
                    _unpack(archive, member, half)
            os.rename(half, folder)
        self._infos[run] = info = replace(info, import_folder=folder)
        self._write_run(info)
        self._wanted.discard(run)

    # Letters

    def _find_box(self) -> None:
        with contextlib.suppress(BadFileError):
            self._box = self._files.open_box(self._base.mailbox(self._agent_id))
        if self._box is not None and not self._ready:
            self._ready = True
            info = read_agent_info(self._files, self._base, self._agent_id)
            assert info is not None
            self._wire.send(
                "ready",
                gpu=info.gpu,
                gpu_name=info.gpu_name,
                gpus=info.gpus,
                memory_mib=info.memory_mib,
            )

    def _deliver(self, part: LetterPart, now: float) -> None:
        assert self._box is not None
        letter = part.letter
        if self._box.gone():  # its worker is being replaced
            self._box.close()
            self._box = None
            self._waiting.insert(0, part)
            return
        self._letter, self._part, self._begun_at = letter, part, now
        self._reached = letter.first
        self._hand = (-1, 0)
        data = letter.encode()
        self._size = len(data)
        self._mirrors = {
            job: FolderMirror(self._base.job_folder(letter.run, job), letter.run, job)
            for job in part.commands
        }
        self._box.write(data)

    def _look(self, now: float) -> None:
        """See what the session has done for its letter."""
        letter, box = self._letter, self._box
        assert letter is not None and box is not None
        # In this order: what is published before the mailbox is empty belongs to the letter.
        size, gone = box.size(), box.gone()
        ended = not size or gone
        if size > self._size:
            self._size = size
            shorter = Letter.decode(box.read())
            if shorter is not None and shorter.letter_id == letter.letter_id:
                self._letter = letter = shorter
                self._cut(letter)
        elif now >= self._begun_at + LATE_S and not ended:
            self._begun_at = now + 1e9  # once
            self._cut(letter)
        if now >= self._look_at or ended:
            self._look_at = now + LOOK_S
            self._send_hand(letter)
            self._send_output(letter.run)
            for mirror in self._mirrors.values():
                mirror.send(self._wire, now, last=ended)
        self._send_results(letter)
        if ended:
            self._end_part(letter, gone=gone)

    def _cut(self, letter: Letter) -> None:
        """Nothing behind this part will be begun here: others may have it."""
        if self._part.more or letter.stop < self._part.letter.stop:
            self._part = self._part._replace(letter=letter, more=False)
            self._drop_parts(letter.letter_id)
            self._wire.send("cut", letter=letter.letter_id, stop=letter.stop)

    def _drop_parts(self, letter_id: str) -> None:
        self._over = letter_id
        self._waiting = [one for one in self._waiting if one.letter.letter_id != letter_id]
        if self._expects == letter_id:
            self._expects = ""

    def _give_back(self, letter_id: str) -> None:
        """End a letter of which nothing is being done."""
        self._drop_parts(letter_id)
        self._wire.send("empty", letter=letter_id)

    def _no_more(self, letter_id: str) -> None:
        """The last part that came was the last one."""
        if self._expects != letter_id:
            return
        self._expects = ""
        if self._waiting:
            self._waiting[-1] = self._waiting[-1]._replace(more=False)
        elif self._letter is not None and self._letter.letter_id == letter_id:
            self._part = self._part._replace(more=False)
        else:
            self._give_back(letter_id)

    def _send_results(self, letter: Letter) -> None:
        while self._reached < letter.stop:
            path = self._base.result(letter.run, self._reached)
            try:
                jobs = count_jobs(self._files, path)
            except BadFileError as error:
                raise PostroomError(
                    f"the session has published a file that is not a result: {error}"
                ) from None
            if not jobs:
                return
            for mirror in (self._mirrors.get(self._reached),):
                if mirror is not None:
                    mirror.send(self._wire, 0.0, last=True)
            kept = self._base.kept_result(letter.run, self._reached)
            if self._files.exists(kept):
                load = self._files.view(kept, PARCEL_LIMIT)
                self._wire.send("kept", load, run=letter.run, job=self._reached)
            load = self._files.view(path, PARCEL_LIMIT)
            self._wire.send(
                "result",
                load,
                letter=letter.letter_id,
                run=letter.run,
                first=self._reached,
                jobs=jobs,
            )
            self._reached += jobs

    def _end_part(self, letter: Letter, *, gone: bool) -> None:
        base = self._base
        whole = self._reached >= self._part.letter.stop
        for job in range(self._reached, letter.stop):
            path = base.attempt(letter.run, job, letter.attempt)
            with contextlib.suppress(FileNotFoundError):
                note = self._files.read(path, INFO_LIMIT)
                self._wire.send("note", note, letter=letter.letter_id, job=job)
                self._files.remove(path)
        self._send_output(letter.run, last=True)
        if not (whole and self._part.more):
            self._give_back(letter.letter_id)
        for name in self._files.names(base.result_folder(letter.run)):
            self._files.remove(f"{base.result_folder(letter.run)}/{name}")
        for mirror in self._mirrors.values():
            shutil.rmtree(mirror.folder, ignore_errors=True)
        self._mirrors = {}
        self._letter = None
        if gone and self._box is not None:
            self._box.close()
            self._box = None

    def _send_hand(self, letter: Letter) -> None:
        hand = read_in_hand(self._files, self._base, self._agent_id)
        if hand is None or hand.letter_id != letter.letter_id or hand.state != "running":
            return
        if (hand.job, hand.done) != self._hand:
            self._hand = hand.job, hand.done
            self._wire.send(
                "hand", letter=letter.letter_id, job=hand.job, since=hand.since, done=hand.done
            )

    def _send_output(self, run: str, *, last: bool = False) -> None:
        """Send what kernels have printed, and remove what was sent when no job runs."""
        path = self._base.kernel_output(run, self._agent_id)
        for name in (f"{path}.old", path):
            self._output[name] = send_growth(
                self._wire, name, self._output.get(name, (0, 0)), "output", run=run
            )
            if last and self._output[name][1]:
                self._files.remove(name)
                del self._output[name]

    def _send_log(self) -> None:
        """Send what the session has logged, for the log of the pilot."""
        _, self._log_at = send_growth(self._wire, self._base.log, (0, self._log_at), "log")


def _has_source(info: RunInfo) -> bool:
    """Whether the kernels of a run are here as they were submitted."""
    if not os.path.isdir(info.import_folder):
        return False
    for task, version in info.kernels.items():
        path = find_source(info.import_folder, task.partition(":")[0])
        if path is not None and path.startswith(info.import_folder):
            with open(path, "rb") as file:
                if version_of(file.read()) != version:
                    return False
    return True


def inside(folder: str, name: str) -> str:
    """A path below a folder; WireError for a name that leads out of it."""
    path = os.path.normpath(f"{folder}/{name}")
    if not path.startswith(folder + os.sep) or "\0" in path:
        raise WireError(f"{name!r} is no name inside a folder")
    return path


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Write one file of an archive; the filters of `extractall` are not in every Python 3.11."""
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise WireError(f"{member.name!r} is no file")
    path = inside(folder, member.name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        shutil.copyfileobj(content, file)


def _plain(name: Any) -> str:
    if not is_plain_name(str(name)):
        raise WireError(f"{name!r} cannot be a name")
    return str(name)


def _load(frame: Frame) -> bytes:
    if not frame.path:
        return frame.data
    with open(frame.path, "rb") as file:
        data = file.read()
    os.unlink(frame.path)
    return data


# The process


def main() -> int:
    """Serve one stand-in over stdin and stdout."""
    # What anything prints here must not reach the wire.
    reads, writes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    _clear_up()
    folder = tempfile.mkdtemp(prefix=FOLDER)
    lock = LocalFiles().try_lock(f"{folder}/lock")
    try:
        return _serve(reads, writes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.release()


def _clear_up() -> None:
    """Remove the folders of far ends that were killed on this node."""
    for path in glob.glob(f"{tempfile.gettempdir()}/{FOLDER}*"):
        with contextlib.suppress(OSError):
            old = time.time() - os.stat(path).st_mtime > SILENT_S
            if os.stat(path).st_uid == os.geteuid() and old:
                lock = LocalFiles().try_lock(f"{path}/lock")
                if lock is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    lock.release()


def _serve(reads: int, writes: int, folder: str) -> int:
    base = create_base(f"{folder}/base")
    open(base.far_mark, "x", opener=private).close()
    wire = Wire(reads, writes, spool=base.temporary)
    heard: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
    frames = wire.frames()
    try:
        hello = next(frames, None)
    except WireError as error:
        print(f"far end: {error}", file=sys.stderr, flush=True)
        return 2
    if hello is None or hello.kind != "hello" or hello.words["version"] != VERSION:
        said = "its stand-in is gone" if hello is None else f"not for this version: {hello.words}"
        print(f"far end: {said}", file=sys.stderr, flush=True)
        return 2
    agent_id = _plain(hello.words["agent"])
    waiter = Waiter([base.agent_pool], spin=False)
    session = _start_session(base, agent_id, hello.words)
    far = FarEnd(wire, base, agent_id, alive=lambda: session.poll() is None)

    def read() -> None:
        try:
            for frame in frames:
                if not far.take_in(frame):
                    heard.put(frame)
                    waiter.wake()
        except Exception as error:  # a bad frame, or a full disk: this pilot cannot go on
            print(f"far end: {error}", file=sys.stderr, flush=True)
        heard.put(None)
        waiter.wake()

    def told_to_stop(*_: object) -> None:
        # By the engine, before it ends us: finish the running job, and take no other.
        wire.send("draining", why="its engine told it to stop")
        far.drains = True

    signal.signal(signal.SIGTERM, told_to_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wire.send("hello", version=VERSION, pid=os.getpid(), **_place())
    threading.Thread(target=read, daemon=True).start()
    try:
        ending = serve_letters(far, wire, waiter, heard, base)
    finally:
        _end_session(session, base, agent_id)
    wire.send("bye", why=ending)
    wire.close(wait_s=LEAVE_S)
    return 0 if ending in ("drained", GONE) else 1


def serve_letters(
    far: FarEnd,
    wire: Wire,
    waiter: Waiter,
    heard: Heard,
    base: Base,
    *,
    clock: Clock | None = None,
) -> str:
    """Serve until there is a reason to end, and return it."""
    clock = clock or SystemClock()
    while not far.ending:
        while not heard.empty():
            frame = heard.get()
            if frame is None:
                return GONE
            far.obey(frame)
        now = clock.monotonic()
        if now - wire.heard_at > SILENT_S or wire.closed:
            return GONE
        far.step(now)
        if far.ending:
            break
        folder = far.result_folder
        waiter.follow([folder] if folder else [])
        if far.busy:
            waiter.expect_more(now)
        waiter.wait(LOOK_S if far.busy else 1.0, lambda: far.is_answered() or not heard.empty())
    if far.ending == "its session ended":
        log = f"{base.root}/session.txt"
        with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
            return f"its session ended: {file.read()[-2000:].strip().splitlines()[-1]}"
    return far.ending


def _place() -> dict[str, Any]:
    """What the engine says about where this process is."""
    said = os.environ.get("SLURM_JOB_END_TIME", "")
    return {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "engine_id": os.environ.get("SLURM_JOB_ID", ""),
        "ends_at": float(said) if said.isdigit() else 0.0,
        "cpus": len(os.sched_getaffinity(0)),
    }


def _start_session(base: Base, agent_id: str, words: dict[str, Any]) -> subprocess.Popen[bytes]:
    gpus = int(words["gpus"])
    gpu = "cpu"
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpu = visible or ",".join(map(str, range(gpus)))
    # The engine gave us this card: if it is held, then by a pilot that is just ending.
    options = ["--agent", agent_id, "--lazy", "--wait"]
    options += ["--while-pid", str(os.getpid()), "--private"]
    if words["share"] and gpus:
        options.append("--share")
    if words.get("preload") is not None:
        options += ["--preload", words["preload"]]
    log = os.open(f"{base.root}/session.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        environment = {**os.environ, PILOT: agent_id}
        return start_detached(
            "postroom.session", gpu, base.root, *options, log=log, env=environment
        )
    finally:
        os.close(log)


def _end_session(session: subprocess.Popen[bytes], base: Base, agent_id: str) -> None:
    """End the session and all that its jobs have started."""
    for _ in range(2):  # once: after the running job; twice: now
        if session.poll() is None:
            session.terminate()
            time.sleep(0.05)
    try:
        session.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        session.kill()
        session.wait()
    sweep(mark_of(base.root, agent_id))


if __name__ == "__main__":
    sys.exit(main())
