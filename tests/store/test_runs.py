"""Runs: names that are taken or not, chains of results, notes, and clearing up behind the dead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import BadFileError
from postroom.parcel.container import Buffer
from postroom.store.append_log import AppendLogWriter
from postroom.store.files import LocalFiles
from postroom.store.mailbox import InHand, Letter, put_up
from postroom.store.runs import (
    Note,
    RunInfo,
    close_outboxes,
    count_covered,
    count_jobs,
    create_run,
    first_missing,
    list_runs,
    publish_results,
    read_note,
    read_notes,
    read_run_info,
    reject,
    take_back_letter,
    write_note,
)
from tests.by_hand import PostRoom, info, jobs, results


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    return PostRoom(tmp_path)


def note(job: int = 1, attempt: int = 1, kind: str = "lost", reason: str = "why") -> Note:
    return Note("r", job, attempt, kind, "0", reason=reason, at=5.0)


def publish(room: PostRoom, made: RunInfo, first: int, values: list[Any], **more: Any) -> bool:
    stop = first + len(values)

    def pack(n: int) -> list[Buffer]:
        return results(n, values[n - first :])

    return publish_results(room.files, room.base, made, first, stop, pack, **more)


class TestRunInfo:
    def test_a_run_info_comes_back_as_it_was_written(self, room: PostRoom) -> None:
        made = room.run(3, kernels={"a:b": "1"}, project="mine")
        assert read_run_info(room.files, room.base, "r") == made

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1}'])
    def test_a_bad_run_info_is_refused(self, data: bytes) -> None:
        with pytest.raises(BadFileError):
            RunInfo.decode("run.json", data)

    def test_a_run_info_cannot_name_a_path(self) -> None:
        with pytest.raises(BadFileError, match="cannot be the name of a run"):
            RunInfo.decode("run.json", info("../x").encode())


class TestCreating:
    def test_a_run_is_seen_whole_or_not_at_all(self, room: PostRoom) -> None:
        def fill(log: AppendLogWriter) -> int:
            log.write(2, jobs(0, 2), apart=True)
            assert list_runs(room.files, room.base) == []
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space"):
            create_run(room.files, room.base, info(), fill)
        assert list_runs(room.files, room.base) == []
        assert os.listdir(room.base.tmp) == []

    @pytest.mark.parametrize("others", [0, 1])
    def test_an_open_run_whose_making_failed_stays_only_if_others_have_appended(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch, others: int
    ) -> None:
        made = info(durable=True)

        def sync_folder(path: str) -> None:
            if path == room.base.job_pool:
                for _ in range(others):
                    log = AppendLogWriter(LocalFiles(), room.base, made.run, durable=False)
                    log.append(1, jobs(0, 1))
                    log.close()
                raise OSError(5, "Input/output error")

        monkeypatch.setattr(room.files, "sync_folder", sync_folder)
        with pytest.raises(OSError, match="Input/output"):
            create_run(room.files, room.base, made)
        assert len(list_runs(room.files, room.base)) == others

    def test_a_durable_run_is_synced_before_it_is_told(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = _watch_fsync(monkeypatch)
        room.run(2, durable=True)
        assert {"run.json", "jobs.log", "job_pool", "result_pool", "attempts"} <= set(synced)

    def test_an_embedded_run_pays_for_no_sync(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = _watch_fsync(monkeypatch)
        publish(room, room.run(2), 0, [0])
        assert synced == []


def _watch_fsync(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


class TestCountingJobs:
    def test_it_is_read_from_the_end_of_the_file(self, room: PostRoom) -> None:
        publish(room, room.run(7), 0, list("abcdefg"))
        assert count_jobs(room.files, room.base.result("r", 0)) == 7
        assert count_jobs(room.files, room.base.result("r", 7)) == 0

    def test_a_parcel_under_another_name_or_kind_is_refused(self, room: PostRoom) -> None:
        publish(room, room.run(7), 0, list("abcdefg"))
        os.link(room.base.result("r", 0), room.base.result("r", 9))
        with pytest.raises(BadFileError, match="its name is wrong"):
            count_jobs(room.files, room.base.result("r", 9))
        os.link(room.parcels()[0], room.base.result("r", 8))
        with pytest.raises(BadFileError, match="its name is wrong"):
            count_jobs(room.files, room.base.result("r", 8))

    def test_half_a_parcel_is_refused(self, room: PostRoom) -> None:
        publish(room, room.run(1), 0, ["a"])
        path = Path(room.base.result("r", 0))
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(BadFileError):
            count_jobs(room.files, str(path))


class TestPublishing:
    def test_the_first_commit_wins_and_the_rest_goes_behind_it(self, room: PostRoom) -> None:
        made = room.run(5)
        assert publish(room, made, 0, ["a", "a"])
        assert publish(room, made, 0, ["b", "b", "b", "b"])
        assert room.values() == {0: "a", 1: "a", 2: "b", 3: "b"}

    def test_what_is_wholly_covered_is_dropped(self, room: PostRoom) -> None:
        made = room.run(5)
        assert publish(room, made, 0, ["a", "a", "a"])
        assert publish(room, made, 0, ["b"])
        assert publish(room, made, 0, ["b", "b", "b"])
        assert room.values() == {0: "a", 1: "a", 2: "a"}
        assert os.listdir(room.base.tmp) == []

    def test_a_bad_file_in_the_way_is_left_to_the_master(self, room: PostRoom) -> None:
        made = room.run(2)
        Path(room.base.result("r", 0)).write_bytes(b"torn")
        assert not publish(room, made, 0, ["a"])
        assert Path(room.base.result("r", 0)).read_bytes() == b"torn"

    def test_a_durable_result_is_synced_name_and_all(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = room.run(1, durable=True)
        synced = _watch_fsync(monkeypatch)
        publish(room, made, 0, ["a"])
        assert len(synced) == 2 and synced[-1] == "r"

    def test_a_link_that_lies_is_found_out(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made, real = room.run(1), os.link

        def link(source: str, target: str) -> None:
            real(source, target)
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "link", link)
        assert publish(room, made, 0, ["a"])
        assert room.values() == {0: "a"}

    def test_results_of_a_run_that_is_gone_have_nowhere_to_go(self, room: PostRoom) -> None:
        with pytest.raises(FileNotFoundError):
            publish(room, info("gone"), 0, ["a"])
        assert os.listdir(room.base.tmp) == []

    def test_the_chain_ends_at_the_first_job_without_a_result(self, room: PostRoom) -> None:
        made = room.run(9)
        for first, count in ((0, 2), (2, 3), (7, 1)):
            publish(room, made, first, ["v"] * count)
        found = [first_missing(room.files, room.base, "r", n, 9) for n in (0, 2, 5, 7)]
        assert found == [5, 5, 5, 8]


class TestNotes:
    def test_the_first_to_say_why_wins(self, room: PostRoom) -> None:
        room.run(2)
        write_note(room.files, room.base, note(reason="first"))
        write_note(room.files, room.base, note(reason="second"))
        found = read_note(room.files, room.base, "r", 1, 1)
        assert found == note(reason="first")
        assert read_note(room.files, room.base, "r", 1, 2) is None

    def test_notes_come_in_the_order_of_jobs_and_attempts(self, room: PostRoom) -> None:
        room.run(20)
        wanted = [(1, 1), (1, 2), (1, 10), (12, 1)]
        for job, attempt in reversed(wanted):
            write_note(room.files, room.base, note(job, attempt))
        found = read_notes(room.files, room.base, "r")
        assert [(one.job, one.attempt) for one in found] == wanted

    @pytest.mark.parametrize("data", [b"", b"{}", b'{"version":1}', b"\0" * 50])
    def test_a_torn_note_still_ends_its_attempt(self, room: PostRoom, data: bytes) -> None:
        room.run(2)
        Path(room.base.attempt("r", 1, 2)).write_bytes(data)
        found = read_notes(room.files, room.base, "r")
        assert [(one.job, one.attempt, one.kind) for one in found] == [(1, 2, "lost")]

    def test_other_files_are_no_notes(self, room: PostRoom) -> None:
        room.run(2)
        for name in ("x", "1.1.json", "000000001.01.json", "000000001.json", "000000001..json"):
            Path(room.base.attempts("r"), name).write_text("{}")
        assert read_notes(room.files, room.base, "r") == []

    def test_a_note_of_an_unknown_kind_is_refused(self) -> None:
        with pytest.raises(BadFileError, match="unknown kind"):
            Note.decode("n", note(kind="else").encode())


class TestLayingDown:
    LETTER = Letter(1, 1, "r", 0, 2, 6, attempt=3)

    def _leave(self, room: PostRoom, hand: InHand | None, letter: Letter = LETTER) -> None:
        put_up(room.files, room.base, "0").write(letter.encode())
        if hand is not None:
            Path(room.base.in_hand("0")).write_bytes(hand.encode())

    def _take_back(self, room: PostRoom, **more: Any) -> Any:
        return take_back_letter(room.files, room.base, "0", reason="it died", at=9.0, **more)

    def test_the_job_in_hand_gets_the_note_and_the_mailbox_goes(self, room: PostRoom) -> None:
        room.run(8)
        self._leave(room, InHand("running", "1.1", 4))
        assert self._take_back(room) == (
            self.LETTER,
            Note("r", 4, 3, "lost", "0", reason="it died", at=9.0),
        )
        assert not os.path.exists(room.base.mailbox("0"))
        assert [n.job for n in read_notes(room.files, room.base, "r")] == [4]

    def test_a_second_time_does_nothing(self, room: PostRoom) -> None:
        room.run(8)
        self._leave(room, InHand("running", "1.1", 4))
        self._take_back(room)
        assert self._take_back(room) is None
        assert len(read_notes(room.files, room.base, "r")) == 1

    def test_the_note_is_there_before_the_mailbox_goes(self, room: PostRoom) -> None:
        """The next owner sees the mailbox gone and requeues the range; it needs the note."""
        room.run(8)
        self._leave(room, InHand("running", "1.1", 4))
        seen: list[int] = []

        class Watching(LocalFiles):
            def remove(self, path: str) -> None:
                if path.endswith(".POOL"):
                    seen.append(len(read_notes(self, room.base, "r")))
                super().remove(path)

        take_back_letter(Watching(), room.base, "0", reason="it died", at=9.0)
        assert seen == [1]

    @pytest.mark.parametrize(
        "hand",
        [None, InHand("idle"), InHand("running", "1.2", 4), InHand("running", "1.1", 6)],
        ids=["nothing", "idle", "another letter", "outside the range"],
    )
    def test_nobody_is_blamed_for_what_was_not_begun(
        self, room: PostRoom, hand: InHand | None
    ) -> None:
        room.run(8)
        self._leave(room, hand)
        assert self._take_back(room) == (self.LETTER, None)
        assert read_notes(room.files, room.base, "r") == []

    def test_a_job_that_has_its_result_is_not_blamed(self, room: PostRoom) -> None:
        made = room.run(8)
        publish(room, made, 2, ["v"] * 3)
        self._leave(room, InHand("running", "1.1", 4))
        assert self._take_back(room) == (self.LETTER, None)

    def test_a_worker_that_was_told_to_stop_is_not_blamed(self, room: PostRoom) -> None:
        room.run(8)
        self._leave(room, InHand("running", "1.1", 4))
        assert self._take_back(room, blame=False) == (self.LETTER, None)

    def test_outboxes_are_closed_before_results_are_read(self, room: PostRoom) -> None:
        """A result published after the look would be made again by the range's next owner."""
        made = room.run(8)
        self._leave(room, InHand("running", "1.1", 4))
        outbox = room.base.new_outbox("0")
        room.files.make_folder(outbox)
        tried: list[int] = []

        class Late(LocalFiles):
            def tail(self, path: str, size: int) -> bytes:
                with pytest.raises(FileNotFoundError):
                    publish(room, made, 2, ["late"], outbox=outbox)
                tried.append(1)
                return super().tail(path, size)

        take_back_letter(Late(), room.base, "0", reason="it died", at=9.0)
        assert tried and room.values() == {}

    def test_half_a_letter_is_cleared_away_without_blame(self, room: PostRoom) -> None:
        put_up(room.files, room.base, "0").write(self.LETTER.encode()[:40])
        assert self._take_back(room) is None
        assert not os.path.exists(room.base.mailbox("0"))


class TestOutboxes:
    def test_what_is_in_a_closed_outbox_can_no_longer_be_published(self, room: PostRoom) -> None:
        made = room.run(2)
        outbox = room.base.new_outbox("0")
        room.files.make_folder(outbox)
        begun = room.base.temporary(outbox)
        room.files.write_new(begun, results(0, ["late"]))
        close_outboxes(room.files, room.base, "0")
        with pytest.raises(FileNotFoundError):
            room.files.publish(begun, room.base.result("r", 0))
        with pytest.raises(FileNotFoundError):
            publish(room, made, 0, ["late"], outbox=outbox)
        assert room.values() == {}

    def test_a_file_that_lost_its_name_cannot_be_linked(self, tmp_path: Path) -> None:
        """What outboxes rely on: link(2) refuses a file without names, by any way to it."""
        path = tmp_path / "file"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        path.unlink()
        # With a dir_fd, Python follows the symlink in /proc to the open file itself.
        with pytest.raises(FileNotFoundError):
            os.link(f"/proc/self/fd/{fd}", tmp_path / "again", src_dir_fd=fd)
        os.close(fd)

    def test_the_outboxes_of_other_agents_stay_open(self, room: PostRoom) -> None:
        for agent_id in ("1", "10", "0-1"):
            room.files.make_folder(room.base.new_outbox(agent_id))
        close_outboxes(room.files, room.base, "0")
        close_outboxes(room.files, room.base, "1")
        left = sorted(name.rpartition(".")[0] for name in os.listdir(room.base.tmp))
        assert left == ["outbox.0-1", "outbox.10"]

    def test_an_outbox_that_was_moved_but_not_emptied_is_emptied(self, room: PostRoom) -> None:
        outbox = room.base.new_outbox("0")
        aside = outbox.replace(room.base.tmp, room.base.trash)
        room.files.make_folder(aside)
        Path(aside, "begun").write_bytes(b"x")
        close_outboxes(room.files, room.base, "0")
        assert os.listdir(aside) == []


def test_a_rejected_file_is_put_aside_with_its_reason(room: PostRoom) -> None:
    room.run(1)
    path = room.base.result("r", 0)
    Path(path).write_bytes(b"torn")
    reject(room.files, room.base, path, "it is torn")
    assert not os.path.exists(path)
    aside = {name: Path(room.base.rejected, name) for name in os.listdir(room.base.rejected)}
    assert sorted(file.read_bytes() for file in aside.values()) == [b"it is torn\n", b"torn"]


@pytest.mark.parametrize(
    ("spans", "counted"),
    [
        ([], (0, 0)),
        ([(0, 4), (4, 6)], (6, 0)),
        ([(4, 6), (0, 5)], (6, 1)),
        ([(0, 10), (2, 4), (3, 5)], (10, 4)),
        ([(5, 6), (5, 6)], (1, 1)),
    ],
)
def test_what_is_covered_is_counted_once(
    spans: list[tuple[int, int]], counted: tuple[int, int]
) -> None:
    assert count_covered(spans) == counted
