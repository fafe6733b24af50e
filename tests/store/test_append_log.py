from __future__ import annotations

import errno
import os
import random
import re
import threading
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.errors import BadFileError, BaseFolderError, OtherVersionError
from postroom.jobs import Job
from postroom.parcel.container import Buffer
from postroom.parcel.sheets import JobOptions, JobSheet, pack_jobs
from postroom.store import append_log as append_log_module
from postroom.store.append_log import (
    RECORD_BYTES,
    AppendLogReader,
    AppendLogWriter,
    Record,
    RecordReader,
    logged_until,
    read_sheets,
)
from postroom.store.files import LocalAppendFile, LocalFiles
from tests.by_hand import PostRoom
from tests.in_one_process import in_one_process

KERNELS = "def double(x):\n    return x * 2\n"


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    made = PostRoom(tmp_path)
    made.run(0)
    return made


def writer(room: PostRoom, *, durable: bool = False) -> AppendLogWriter:
    return AppendLogWriter(room.files, room.base, "r", durable=durable)


def parcel(x: Any, count: int = 1) -> list[Buffer]:
    return pack_jobs(0, "kernels:double", JobOptions(), None, [{"x": x}] * count)


def path(room: PostRoom) -> Path:
    return Path(room.base.append_log("r"))


def values(room: PostRoom) -> list[Any]:
    """What every job of the log is passed, in order."""
    found: list[Any] = []
    for sheet in read_sheets(room.files, room.base, "r"):
        assert sheet.first == len(found)
        found += [sheet.arguments(n)["x"] for n in range(sheet.first, sheet.first + sheet.count)]
    return found


def reader(room: PostRoom) -> AppendLogReader:
    return AppendLogReader(room.files, room.base, "r")


def test_jobs_are_numbered_by_their_place(room: PostRoom) -> None:
    append_log = writer(room)
    assert [append_log.append(1, parcel(x)).number for x in "abc"] == [0, 1, 2]
    assert append_log.append(5, parcel("d", 5)).number == 3
    assert append_log.append(1, parcel("e")).number == 8
    assert values(room) == [*"abc", *"ddddd", "e"]
    assert logged_until(room.files, room.base.append_log("r")) == 9


def test_a_run_without_a_log_has_no_jobs(room: PostRoom) -> None:
    assert values(room) == []
    assert logged_until(room.files, room.base.append_log("r")) == 0
    assert reader(room).read_on(sync=True) == []


def test_who_comes_later_goes_on_behind(room: PostRoom) -> None:
    one, two = writer(room), writer(room)
    numbers = [who.append(1, parcel(n)).number for n, who in enumerate([one, two, two, one, two])]
    assert numbers == [0, 1, 2, 3, 4]
    assert values(room) == [0, 1, 2, 3, 4]


def test_who_reads_a_log_passes_over_what_was_given_back(
    room: PostRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_log = writer(room)
    records = [append_log.append(1, parcel("x" * 200_000)) for _ in range(60)]
    append_log.close()
    file = room.files.make_append_file(str(path(room)))
    file.give_back(records[1].at, records[58].end)
    file.close()
    sizes: list[int] = []
    read = LocalAppendFile.read

    def noted(self: LocalAppendFile, at: int, size: int) -> bytes:
        sizes.append(size)
        return read(self, at, size)

    monkeypatch.setattr(LocalAppendFile, "read", noted)
    assert reader(room).read_on(sync=False) == [records[0], records[59]]
    assert sum(sizes) < path(room).stat().st_size / 2


class Rival(LocalFiles):
    """Somebody else appends just before we do, as often as is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.rivals: list[tuple[AppendLogWriter, str]] = []

    def make_append_file(self, path: str) -> LocalAppendFile:
        rivals = self.rivals

        class Late(LocalAppendFile):
            def append(self, chunks: Sequence[Buffer]) -> int:
                if rivals:
                    rival, x = rivals.pop()
                    rival.append(1, parcel(x))
                return super().append(chunks)

        made = super().make_append_file(path)
        return Late(os.dup(made._fd))


def test_a_writer_that_is_too_late_for_its_place_writes_its_record_again(tmp_path: Path) -> None:
    room = PostRoom(tmp_path, Rival())
    room.run(0)
    assert isinstance(room.files, Rival)
    theirs = AppendLogWriter(LocalFiles(), room.base, "r", durable=False)
    ours = writer(room)
    ours.append(1, parcel("a"))
    room.files.rivals += [(theirs, "c"), (theirs, "b")]
    assert ours.append(1, parcel("d")).number == 3
    assert values(room) == [*"abcd"]
    # The two that came too late lie there, and count for nobody.
    assert path(room).read_bytes().count(b"jlog/1 ") == 6


def test_many_may_append_at_once(room: PostRoom) -> None:
    told: list[tuple[int, int]] = []

    def submit(who: int) -> None:
        append_log = writer(room)
        for n in range(40):
            told.append((append_log.append(1, parcel(100 * who + n)).number, 100 * who + n))

    threads = [threading.Thread(target=submit, args=[who]) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(room) == [x for _, x in sorted(told)]
    assert len(told) == 160


class Full(LocalFiles):
    """A disk that takes only the first bytes of the next write."""

    takes: int | None = None

    def make_append_file(self, path: str) -> LocalAppendFile:
        files = self

        class Short(LocalAppendFile):
            def append(self, chunks: Sequence[Buffer]) -> int:
                if files.takes is None:
                    return super().append(chunks)
                os.write(self._fd, b"".join(chunks)[: files.takes])
                raise OSError(errno.ENOSPC, "No space left on device")

        made = super().make_append_file(path)
        return Short(os.dup(made._fd))


def short_writes() -> Iterator[int]:
    record = 64 + sum(map(len, parcel("b")))
    yield from (0, 1, 7, 63, 64, 65, 128, record - 1, record)
    yield record + (-record % 64) - 1  # all but a zero


@pytest.mark.parametrize("takes", list(short_writes()))
def test_what_was_cut_short_has_no_number(tmp_path: Path, takes: int) -> None:
    room = PostRoom(tmp_path, Full())
    room.run(0)
    assert isinstance(room.files, Full)
    append_log, follower = writer(room), reader(room)
    append_log.append(1, parcel("a"))
    assert [record.number for record in follower.read_on(sync=False)] == [0]
    room.files.takes = takes
    with pytest.raises(OSError, match="No space"):
        append_log.append(1, parcel("b"))
    assert follower.read_on(sync=False) == []
    assert logged_until(room.files, room.base.append_log("r")) == 1
    room.files.takes = None
    # The next writer pads to where a record may begin; that must not complete the torn one.
    assert writer(room).append(1, parcel("c")).number == 1
    assert append_log.append(1, parcel("d")).number == 2
    assert values(room) == [*"acd"]
    assert [record.number for record in follower.read_on(sync=False)] == [1, 2]


def test_half_a_record_is_none_until_it_is_whole(room: PostRoom) -> None:
    append_log = writer(room)
    append_log.append(1, parcel("a"))
    append_log.append(1, parcel("b"))
    whole = path(room).read_bytes()
    follower = reader(room)
    (first,) = [r for n in (len(whole) - 1,) for r in cut(room, whole[:n], follower)]
    assert first.number == 0
    assert [r.number for r in cut(room, whole, follower)] == [1]
    assert cut(room, whole, follower) == []


def cut(room: PostRoom, data: bytes, follower: AppendLogReader) -> list[Record]:
    path(room).write_bytes(data)
    return follower.read_on(sync=False)


def test_a_copy_of_a_log_in_the_data_of_a_job_counts_for_nothing(room: PostRoom) -> None:
    append_log = writer(room)
    for x in "abc":
        append_log.append(1, parcel(x))
    copy = np.frombuffer(path(room).read_bytes(), np.uint8)
    last = append_log.append(1, parcel(copy))
    assert values(room)[:3] == [*"abc"]
    # ... not even if the record that holds it is torn, so that its inside is searched.
    data = bytearray(path(room).read_bytes())
    data[last.end - 1] ^= 1
    path(room).write_bytes(data)
    assert writer(room).append(1, parcel("d")).number == 3
    assert values(room) == [*"abcd"]


def forged(number: int, at: int, *, repeat: int = 60) -> Any:
    """Data that holds whole records with right checksums, wherever it comes to lie in the log."""
    body = b"".join(parcel("forged"))
    padded = body + bytes(-len(body) % 64)
    made = b""
    for place in range(at, at + repeat * (64 + len(padded)), 64 + len(padded)):
        record = Record(number, 5000, place, len(body))
        made += append_log_module._header(record, zlib.crc32(padded)) + padded
    return np.frombuffer(made, np.uint8)


def test_a_crafted_record_in_the_data_of_a_job_is_no_job(room: PostRoom) -> None:
    append_log = writer(room)
    first = append_log.append(1, parcel("a"))
    bare = b"".join(parcel(np.full(len(forged(0, 0)), 7, np.uint8)))
    crafted = parcel(forged(1, first.end + 64 + bare.index(b"\7" * 64)))
    append_log.append(1, crafted)
    assert logged_until(room.files, room.base.append_log("r")) == 2
    assert [record.jobs for record in reader(room).read_on(sync=False)] == [1, 1]
    assert writer(room).append(1, parcel("b")).number == 2
    assert [x for x in values(room) if isinstance(x, str)] == ["a", "b"]


def test_no_data_counts_as_jobs_whatever_is_torn_or_late(tmp_path: Path) -> None:
    """Jobs whose data consists of records with right checksums, on a disk that cuts writes short,
    beside another writer."""
    chance = random.Random(28)
    for story in range(40):
        room = PostRoom(tmp_path / str(story), Full())
        room.run(0)
        assert isinstance(room.files, Full)
        told: list[Any] = []
        writers = [writer(room), writer(room)]
        for _ in range(12):
            size = path(room).stat().st_size
            # Each piece of 64 bytes is right at one of these offsets.
            crafted = forged(chance.randrange(3), size + 64 * chance.randrange(16), repeat=20)
            x = chance.choice(["plain", crafted, crafted])
            room.files.takes = chance.choice([None, None, -chance.randrange(1, 128)])
            try:
                number = chance.choice(writers).append(1, parcel(x)).number
            except OSError:
                continue
            assert number == len(told)
            told.append(x)
        room.files.takes = None
        follower = reader(room)
        follower.read_on(sync=False)
        assert follower.number == logged_until(room.files, room.base.append_log("r")) == len(told)
        assert all(np.array_equal(*pair) for pair in zip(values(room), told, strict=True))


def test_a_record_of_a_newer_postroom_stops_readers_and_writers(room: PostRoom) -> None:
    append_log = writer(room)
    append_log.append(1, parcel("a"))
    line = b"jlog/2 what a later version says".ljust(55)
    with path(room).open("ab") as file:
        file.write(b"%b%08x\n" % (line, zlib.crc32(line)) + bytes(64))
    before = path(room).read_bytes()
    for use in (
        lambda: writer(room).append(1, parcel("b")),
        lambda: reader(room).read_on(sync=False),
        lambda: logged_until(room.files, room.base.append_log("r")),
    ):
        with pytest.raises(OtherVersionError, match=r"another version .* at byte"):
            use()
    assert path(room).read_bytes() == before


def test_any_flipped_bit_costs_its_own_job_at_most(room: PostRoom) -> None:
    """Numbers never shift: a job that is not lost is passed what it was passed before."""
    append_log = writer(room)
    records = [append_log.append(1, parcel(x)) for x in range(4)]
    good = path(room).read_bytes()
    chance = random.Random(1)
    flips = [*range(8 * records[1].at, 8 * records[1].at + 512)]  # every bit of a header
    for bit in [*flips, *chance.sample(range(8 * len(good)), 500)]:
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        path(room).write_bytes(data)
        hit = next(record for record in records if record.at <= bit // 8 < record.end)
        found = reader(room).read_on(sync=False)
        assert found == [record for record in records if record != hit]
        record_reader = RecordReader(room.files, room.base, "r")
        for record in records:
            place = records[max(record.number - 1, 0)].at  # as the queue knows it, of a lost one
            if record == hit:
                with pytest.raises(BadFileError, match=f"has lost job {record.number}"):
                    record_reader.open(record.number, place)
            else:
                sheet = record_reader.open(record.number, record.at)
                assert sheet.arguments(record.number) == {"x": record.number}
        record_reader.close()
        if hit != records[-1]:
            with pytest.raises(BadFileError, match=f"has lost job {hit.number}"):
                values(room)


def test_a_lost_record_fails_its_job_and_no_other(room: PostRoom) -> None:
    append_log = writer(room)
    records = [append_log.append(1, parcel(x)) for x in range(5)]
    data = bytearray(path(room).read_bytes())
    for lost in (records[0], records[2]):
        data[lost.at : lost.end] = bytes(lost.end - lost.at)
    path(room).write_bytes(data)
    inbox, dispatcher = room.inbox(), room.dispatcher()
    for _ in range(30):
        room.step(dispatcher)
        inbox.step()
    assert room.values() == {0: "failed", 1: 2, 2: "failed", 3: 6, 4: 8}


def test_large_parcels_have_files_of_their_own(room: PostRoom) -> None:
    append_log = writer(room, durable=True)
    large = np.arange(RECORD_BYTES // 8 + 1)
    for x in ("a", large, "b"):
        append_log.append(1, parcel(x))
    assert path(room).stat().st_size < 5000
    (apart,) = Path(room.base.run_folder("r")).glob("*.npz")
    with zipfile.ZipFile(apart) as archive:
        assert "x.npy" in archive.namelist()
    a, found, b = values(room)
    assert (a, b) == ("a", "b")
    assert np.array_equal(found, large)
    record_reader = RecordReader(room.files, room.base, "r")
    for number in range(3):
        assert isinstance(record_reader.open(number, 0 if number == 0 else None), JobSheet)
    apart.unlink()
    with pytest.raises(FileNotFoundError):
        record_reader.open(1, 0)


@pytest.mark.parametrize("name", [b"../x", b"", b"a/b", b"\xff", b"x" * 101])
def test_a_slip_names_a_file_of_its_run_or_nothing(room: PostRoom, name: bytes) -> None:
    writer(room).append(1, [b"slip/1 " + name + b"\n"])
    with pytest.raises(BadFileError, match="names no file"):
        values(room)


def test_a_record_holds_what_its_header_says(room: PostRoom) -> None:
    append_log = writer(room)
    append_log.append(2, parcel("a", 3))
    with pytest.raises(BadFileError, match="holds 3 jobs"):
        values(room)
    other = pack_jobs(5, "kernels:double", JobOptions(), None, [{"x": 1}])
    with pytest.raises(BadFileError, match="from 5 on, not from 0"):
        JobSheet("p", b"".join(other), number=7)


def test_a_long_log_is_read_in_parts(room: PostRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_log_module, "RECORD_BYTES", 2048)
    monkeypatch.setattr(append_log_module, "_LONGEST", 64 + 2048)
    monkeypatch.setattr(append_log_module, "_CHUNK", 2 * (64 + 2048))
    monkeypatch.setattr(append_log_module, "_FEW", 128)
    append_log = writer(room)
    chance = random.Random(3)
    texts = ["x" * chance.randrange(1500) for _ in range(50)]
    for number, text in enumerate(texts):
        if number % 7 == 0:
            with path(room).open("ab") as file:
                file.write(b"torn " * chance.randrange(3000))
        assert append_log.append(1, parcel(text)).number == number
    assert values(room) == texts
    found = reader(room).read_on(sync=False)
    assert [record.number for record in found] == list(range(50))
    record_reader = RecordReader(room.files, room.base, "r")
    for number, text in enumerate(texts):
        place = found[number].at if number % 5 == 0 else None
        assert record_reader.open(number, place).arguments(number) == {"x": text}


class Watched(LocalFiles):
    """Says what is synced, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def make_append_file(self, path: str) -> LocalAppendFile:
        return self._watch(super().make_append_file(path))

    def open_append_file(self, path: str) -> LocalAppendFile | None:
        opened = super().open_append_file(path)
        return None if opened is None else self._watch(opened)

    def _watch(self, append_log: LocalAppendFile) -> LocalAppendFile:
        said = self.said

        class Talking(LocalAppendFile):
            def append(self, chunks: Sequence[Buffer]) -> int:
                said.append("append")
                return super().append(chunks)

            def sync(self) -> None:
                said.append("sync")
                super().sync()

        return Talking(os.dup(append_log._fd))

    def sync_folder(self, path: str) -> None:
        self.said.append("sync names")
        super().sync_folder(path)


def test_a_durable_record_is_synced_before_its_submitter_is_told(tmp_path: Path) -> None:
    room = PostRoom(tmp_path, files := Watched())
    room.run(0, durable=True)
    assert path(room).exists()
    assert files.said[-1] == "sync names", "before anybody appends"
    files.said.clear()
    append_log = writer(room, durable=True)
    append_log.append(1, parcel("a"))
    assert files.said == ["append", "sync"]
    writer(room).append(1, parcel("b"))
    assert files.said == ["append", "sync", "append"]


def test_no_durable_job_is_begun_before_its_record_is_safe(tmp_path: Path) -> None:
    room = PostRoom(tmp_path, files := Watched())
    room.run(0, durable=True)
    room.inbox()
    dispatcher = room.dispatcher()
    writer(room).append(1, parcel(1))  # whose writer was killed before it synced
    files.said.clear()
    room.step(dispatcher)
    assert room.letter() is not None
    assert files.said == ["sync", "sync names"]


def test_a_sync_that_fails_leaves_a_record_that_nobody_relies_upon(room: PostRoom) -> None:
    append_log = writer(room, durable=True)
    sync, append_log._file.sync = append_log._file.sync, fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="sick"):
        append_log.append(1, parcel("a"))
    append_log._file.sync = sync  # type: ignore[method-assign]
    assert append_log.append(1, parcel("a")).number == 1, "it is written again, not synced again"


def fail() -> None:
    raise OSError(errno.EIO, "sick")


def test_nobody_is_told_that_a_job_is_in_a_run_that_has_left(room: PostRoom) -> None:
    append_log = writer(room)
    append_log.append(1, parcel("a"))
    os.rename(room.base.run_folder("r"), f"{room.base.trash}/r")
    with pytest.raises(FileNotFoundError):
        append_log.append(1, parcel("b"))
    os.rename(f"{room.base.trash}/r", room.base.run_folder("r"))
    assert append_log.append(1, parcel("c")).number == 2


def test_a_record_is_carved_out_by_hand_as_the_docs_say(room: PostRoom) -> None:
    """With nothing but what docs/protocol.md tells: the number, the place and the length."""
    append_log = writer(room)
    for x in range(3):
        append_log.append(1, parcel(np.full(3, x)))
    data = path(room).read_bytes()
    pattern = rb"jlog/1 (\d{9}) (\d{7}) ([0-9a-f]{11}) ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8})\n"
    match = list(re.finditer(pattern, data))[2]
    number, count, at, length = int(match[1]), int(match[2]), int(match[3], 16), int(match[4], 16)
    assert (number, count, at) == (2, 1, match.start())
    body = data[at + 64 : at + 64 + length]
    assert zlib.crc32(body + bytes(-length % 64)) == int(match[5], 16)
    (path(room).parent / "job.npz").write_bytes(body)
    with np.load(path(room).parent / "job.npz") as loaded:
        assert loaded["x"].tolist() == [[2, 2, 2]]


def test_a_list_is_written_to_parcels_and_single_jobs_to_the_log(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        master = room.master
        opened, listed = master.open(), master.submit_all([Job("kernels:double", x=0)])
        for pool in (opened, listed):
            master.extend(pool, [Job("kernels:double", x=n) for n in range(3)])
            pool.submit(Job("kernels:double", x=7))
        names = [sorted(os.listdir(room.base.run_folder(pool.run))) for pool in (opened, listed)]
        assert names[0] == ["jobs.log", "run.json", "wanted.lock"]
        (parcel,) = [name for name in names[1] if name.endswith(".npz")]
        assert parcel.startswith("000000000-")
        assert room.finish(opened).results() == [0, 2, 4, 14]
        assert room.finish(listed).results() == [0, 0, 2, 4, 14]


def test_a_forked_child_cannot_append_to_its_parents_log(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS, inboxes=0) as room:
        pool = room.master.open()
        pool.submit(Job("kernels:double", x=0))
        pid = os.fork()
        if pid == 0:
            try:
                pool.submit(Job("kernels:double", x=1))
                os._exit(1)
            except BaseFolderError:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert pool.submit(Job("kernels:double", x=2)).number == 1
