"""The acting Master's rounds, on a real folder, with the time as a parameter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from postroom.dispatch.dispatcher import LIST_S
from postroom.dispatch.run_queue import RunQueue
from postroom.master import Master
from postroom.parcel.sheets import JobEnd, JobSheet
from postroom.session.inbox import Step
from postroom.store.agents import PROTOCOL, AgentInfo, MasterInfo
from postroom.store.append_log import AppendLogWriter
from postroom.store.files import Box, LocalBox, LocalFiles
from postroom.store.mailbox import Letter, put_up
from postroom.store.runs import (
    Note,
    RunInfo,
    publish_results,
    read_notes,
    take_back_letter,
    write_note,
)
from tests.by_hand import PostRoom, jobs, results


@pytest.fixture
def room(tmp_path: Path) -> PostRoom:
    return PostRoom(tmp_path)


def work(inbox: Any) -> None:
    while inbox.step() is Step.WORKED:
        pass


def publish(room: PostRoom, made: RunInfo, first: int, values: list[Any]) -> None:
    stop = first + len(values)
    publish_results(
        room.files, room.base, made, first, stop, lambda n: results(n, values[n - first :])
    )


def denied(*_: object) -> None:
    raise PermissionError("not allowed")


class TestSending:
    def test_an_idle_agent_is_sent_the_next_job(self, room: PostRoom) -> None:
        room.run(3)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        assert room.letter() == Letter(dispatcher.epoch, 1, "r", 0, 0, 1)

    def test_every_job_gets_its_result(self, room: PostRoom) -> None:
        room.run(40)
        inboxes = [room.inbox(str(n)) for n in range(3)]
        dispatcher = room.dispatcher()
        for _ in range(40):
            room.step(dispatcher, after=0.3)
            for inbox in inboxes:
                work(inbox)
        room.step(dispatcher)
        assert room.values() == {n: 2 * n for n in range(40)}
        assert dispatcher.runs["r"].queue.finished
        assert sum(count for _, _, count in room.delivered) == 40

    def test_an_agent_of_another_version_is_sent_nothing(self, room: PostRoom) -> None:
        room.run(3)
        for agent_id, version in (("0", PROTOCOL - 1), ("1", PROTOCOL)):
            info = AgentInfo(agent_id, "g", "G", "h", "b", 1, 1, 0.0, protocol=version)
            room.files.write_new(room.base.agent_info(agent_id), [info.encode()])
            room.inbox(agent_id)
        room.step(room.dispatcher())
        assert room.letter("0") is None
        assert room.letter("1") is not None

    @pytest.mark.parametrize("queue", [False, True])
    def test_short_jobs_of_a_list_go_out_before_results_are_read_but_not_those_of_a_queue(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch, queue: bool
    ) -> None:
        monkeypatch.setattr(RunQueue, "_length", lambda *_: 1)
        room.run(4, queue=queue)
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        collect, is_empty = dispatcher._collector.collect, []

        def collect_and_note(*given: Any, **options: Any) -> bool:
            is_empty.append(room.letter() is None)
            return collect(*given, **options)

        monkeypatch.setattr(dispatcher._collector, "collect", collect_and_note)
        for _ in range(5):
            room.step(dispatcher, after=0.001)
            work(inbox)
        assert room.values() == {n: 2 * n for n in range(4)}
        assert dispatcher.runs["r"].queue.finished
        # How long jobs take is not known before the first result, and behind the last is none.
        assert is_empty == [True, queue, queue, True]
        assert not dispatcher.at_work

    def test_a_reservation_of_a_busy_agents_gpu_is_known_before_its_next_job(
        self, room: PostRoom
    ) -> None:
        room.run(2)

        def say(until: float) -> None:
            info = AgentInfo("0", "g", "G", "h", "b", 1, 1, 0.0, gpus=1, kept=True, until=until)
            temporary = room.base.temporary()
            room.files.write_new(temporary, [info.encode()])
            room.files.move(temporary, room.base.agent_info("0"))

        say(0.0)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        say(1e9)
        room.step(dispatcher, after=LIST_S)
        assert room.letter() is not None  # it is busy
        assert dispatcher.agents["0"].until == 1e9

    @pytest.mark.parametrize("durable", [False, True])
    def test_a_result_is_seen_before_the_mailbox_is_emptied_unless_it_has_to_be_synced(
        self, room: PostRoom, durable: bool
    ) -> None:
        made = room.run(2, durable=durable)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        assert not dispatcher.is_answered()
        publish(room, made, 0, [0])
        assert dispatcher.is_answered() is not durable
        room.step(dispatcher, after=0.001)
        assert room.delivered == ([] if durable else [("r", 0, 1)])
        assert not dispatcher.is_answered()
        assert dispatcher.at_work  # its holder has yet to empty it
        Path(room.base.mailbox("0")).write_bytes(b"")
        assert dispatcher.is_answered()
        room.step(dispatcher, after=0.001)
        assert room.delivered == [("r", 0, 1)]
        assert (letter := room.letter()) is not None and letter.first == 1

    def test_what_cannot_be_collected_is_not_asked_for_again_and_again(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.run(1)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        Path(room.base.result("r", 0)).write_bytes(b"garbage")
        monkeypatch.setattr(room.files, "move", denied)
        assert dispatcher.is_answered()
        room.step(dispatcher, after=0.001)
        assert room.delivered == []
        assert not dispatcher.is_answered()

    def test_two_runs_take_turns(self, room: PostRoom) -> None:
        room.run(5)
        room.run(5, "s")
        for agent_id in "0123":
            room.inbox(agent_id)
        room.step(room.dispatcher())
        runs = [letter.run for n in "0123" if (letter := room.letter(n))]
        assert sorted(runs) == ["r", "r", "s", "s"]

    def test_an_embedded_run_is_served_only_while_it_is_wanted(self, room: PostRoom) -> None:
        room.run(2, embedded=True)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        assert room.letter() is None
        wanted = room.files.try_lock(room.base.wanted("r"), shared=True)
        room.step(dispatcher)
        assert room.letter() is not None
        assert wanted is not None

    def test_what_is_appended_later_is_found(self, room: PostRoom) -> None:
        room.run(1)
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        for _ in range(3):
            room.step(dispatcher)
            work(inbox)
        room.append(1, 2)
        for _ in range(5):
            room.step(dispatcher)
            work(inbox)
        assert room.values() == {0: 0, 1: 2, 2: 4}

    def test_garbage_in_a_mailbox_is_cleared_before_a_letter_is_sent(self, room: PostRoom) -> None:
        room.run(0)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        Path(room.base.mailbox("0")).write_bytes(b"x" * 500)
        record = AppendLogWriter(room.files, room.base, "r", durable=False).append(1, jobs(0, 1))
        dispatcher.extended("r", record)  # sent before the next listing, which clears boxes, too
        room.step(dispatcher, after=0.001)
        assert room.letter() is not None


class BadBox(LocalBox):
    """A box whose write fails after some bytes, or after all of them."""

    def __init__(self, inner: LocalBox, cut: int | None) -> None:
        super().__init__(os.dup(inner._fd))
        self._cut = cut

    def write(self, letter: bytes) -> None:
        super().write(letter[: self._cut])
        self._cut = len(letter)
        raise OSError(28, "No space left on device")


class BadBoxes(LocalFiles):
    """The Master's boxes fail; the session's own does not."""

    cut: int | None = None

    def open_box(self, path: str) -> LocalBox | None:
        box = super().open_box(path)
        return BadBox(box, self.cut) if box is not None else None


class TestDoubtfulWrites:
    @pytest.mark.parametrize("cut", [0, 1, 50], ids=["nothing", "a byte", "half"])
    def test_half_a_letter_is_cleared_and_its_range_waits(self, tmp_path: Path, cut: int) -> None:
        files = BadBoxes()
        files.cut = cut
        room = PostRoom(tmp_path, files)
        room.run(1)
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        work(inbox)
        dispatcher._blocked_until = 1e9
        room.step(dispatcher)
        assert os.path.getsize(room.base.mailbox("0")) == 0
        assert dispatcher.runs["r"].queue.waiting() == 1

    def test_a_whole_letter_counts_as_sent_though_the_write_failed(self, tmp_path: Path) -> None:
        room = PostRoom(tmp_path, BadBoxes())
        room.run(1)
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        room.step(dispatcher)
        assert dispatcher.runs["r"].queue.waiting() == 0
        work(inbox)
        room.step(dispatcher)
        assert room.delivered == [("r", 0, 1)]


class TestCollecting:
    def test_results_in_the_middle_of_a_letter_are_seen(self, room: PostRoom) -> None:
        made = room.run(5)
        put_up(room.files, room.base, "0").write(Letter(1, 1, "r", 0, 0, 5).encode())
        lock = room.files.try_lock(room.base.agent_lock("0"))
        dispatcher = room.dispatcher()
        publish(room, made, 0, ["v", "v"])
        room.step(dispatcher)
        publish(room, made, 2, ["v"])
        room.step(dispatcher)
        assert room.delivered == [("r", 0, 2), ("r", 2, 1)]
        assert dispatcher.at_work and lock is not None

    def test_what_an_agent_left_waits_again(self, room: PostRoom) -> None:
        made = room.run(5)
        box = put_up(room.files, room.base, "0")
        box.write(Letter(1, 1, "r", 0, 0, 4).encode())
        lock = room.files.try_lock(room.base.agent_lock("0"))
        dispatcher = room.dispatcher()
        publish(room, made, 0, ["v", "v"])
        box.clear()
        room.step(dispatcher)
        letter = room.letter()
        assert letter is not None and letter.first == 2
        assert dispatcher.runs["r"].queue.done == 2
        assert lock is not None

    def test_a_mailbox_taken_down_as_a_letter_comes_is_judged_by_its_results(
        self, tmp_path: Path
    ) -> None:
        """The worker took the letter, did half of it and left, all before the write returned."""
        room = PostRoom(tmp_path)
        made = room.run(4)

        class Hasty(LocalBox):
            def write(self, letter: bytes) -> None:
                super().write(letter)
                if not room.values():
                    publish(room, made, 0, ["v", "v"])
                    os.unlink(room.base.mailbox("0"))

        class Files(LocalFiles):
            def open_box(self, path: str) -> LocalBox | None:
                box = super().open_box(path)
                return Hasty(os.dup(box._fd)) if box is not None else None

        put_up(room.files, room.base, "0")
        lock = room.files.try_lock(room.base.agent_lock("0"))
        room.files = Files()
        dispatcher = room.dispatcher()
        dispatcher.runs["r"].queue.mean_s = 0.0
        dispatcher.agents["0"].probe_at = 1e9
        room.step(dispatcher)
        room.step(dispatcher)
        room.files = LocalFiles()
        inboxes = [room.inbox(str(n)) for n in (1, 2)]
        for _ in range(5):
            room.step(dispatcher)
            for inbox in inboxes:
                work(inbox)
        assert room.values() == {0: "v", 1: "v", 2: 4, 3: 6}
        assert lock is not None

    def test_a_bad_result_is_put_aside_and_its_jobs_run_again(self, room: PostRoom) -> None:
        room.run(2)
        Path(room.base.result("r", 1)).write_bytes(b"torn")
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        for _ in range(4):
            room.step(dispatcher)
            work(inbox)
        assert room.values() == {0: 0, 1: 2}
        assert any(name.endswith(".reason") for name in os.listdir(room.base.rejected))

    def test_a_durable_result_is_synced_before_it_is_handed_out(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = room.run(2, durable=True)
        put_up(room.files, room.base, "0").write(Letter(1, 1, "r", 0, 0, 2).encode())
        lock = room.files.try_lock(room.base.agent_lock("0"))
        dispatcher = room.dispatcher()
        publish(room, made, 0, ["v"])
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(len(room.delivered)))
        room.step(dispatcher)
        assert room.delivered and synced == [0]
        assert lock is not None


class TestDeath:
    def test_a_dead_agents_range_goes_on_and_the_blame_on_the_job_in_hand(
        self, room: PostRoom
    ) -> None:
        def die(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
            raise KeyboardInterrupt

        room.run(3)
        inbox = room.inbox(run_job=die)
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        inbox.step()
        with pytest.raises(KeyboardInterrupt):
            inbox.step()
        room.step(dispatcher)
        assert dispatcher.at_work, "a held lock is proof of life, however long it takes"
        room.die()
        room.step(dispatcher)
        assert not os.path.exists(room.base.mailbox("0"))
        assert [(n.job, n.kind) for n in read_notes(room.files, room.base, "r")] == [(0, "lost")]
        other = room.inbox("1")
        for _ in range(5):
            room.step(dispatcher)
            work(other)
        assert room.values() == {0: 0, 1: 2, 2: 4}

    def test_nothing_is_requeued_while_processes_of_a_dead_agent_may_go_on(
        self, room: PostRoom
    ) -> None:
        room.run(1)
        room.inbox()
        tree = room.files.try_lock(room.base.agent_tree("0"))
        assert tree is not None
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        room.die()
        for _ in range(3):
            room.step(dispatcher)
            assert dispatcher.at_work
            assert room.letter() is not None
        tree.release()
        room.step(dispatcher, after=2.0)
        assert not os.path.exists(room.base.mailbox("0"))
        assert dispatcher.runs["r"].queue.waiting() == 1

    def test_a_late_result_of_a_dead_agent_counts(self, room: PostRoom) -> None:
        made = room.run(2)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        publish(room, made, 0, ["late"])
        room.die()
        room.step(dispatcher)
        assert ("r", 0, 1) in room.delivered
        assert dispatcher.runs["r"].queue.waiting() == 1

    def test_a_result_that_comes_while_the_dead_are_cleared_away_counts(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A holder that lives after all may publish until its outbox is closed, and not after."""
        made = room.run(2)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)

        def late(*args: Any, **more: Any) -> Any:
            publish(room, made, 0, ["late"])
            return take_back_letter(*args, **more)

        monkeypatch.setattr("postroom.dispatch.dispatcher.take_back_letter", late)
        room.die()
        room.step(dispatcher)
        assert ("r", 0, 1) in room.delivered

    def test_three_lost_attempts_make_a_job_lost(self, room: PostRoom) -> None:
        room.run(2)
        for attempt in (1, 2, 3):
            note = Note("r", 0, attempt, "lost", "0", reason="it died", at=0.0)
            write_note(room.files, room.base, note)
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        for _ in range(4):
            room.step(dispatcher)
            work(inbox)
        assert room.values() == {0: "lost", 1: 2}

    def test_two_lost_attempts_do_not(self, room: PostRoom) -> None:
        room.run(1)
        for attempt in (1, 2):
            note = Note("r", 0, attempt, "lost", "0", reason="it died", at=0.0)
            write_note(room.files, room.base, note)
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        letter = room.letter()
        assert letter is not None and letter.attempt == 3
        work(inbox)
        assert room.values() == {0: 0}

    def test_the_lock_file_of_a_dead_agent_stays(self, room: PostRoom) -> None:
        """Were it removed, two could hold a lock of the same name on different files."""
        room.run(1)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        room.die()
        room.step(dispatcher)
        assert os.path.exists(room.base.agent_lock("0"))


class TestRecovery:
    def test_a_new_master_goes_on_where_the_old_one_was(self, room: PostRoom) -> None:
        room.run(6)
        inboxes = [room.inbox(str(n)) for n in range(2)]
        first = room.dispatcher()
        room.step(first)
        work(inboxes[0])
        second = room.dispatcher()
        for _ in range(6):
            room.step(second)
            for inbox in inboxes:
                work(inbox)
        assert room.values() == {n: 2 * n for n in range(6)}
        assert second.runs["r"].queue.done == 6

    def test_a_letter_that_is_out_is_not_sent_again(self, room: PostRoom) -> None:
        room.run(2)
        room.inbox("0")
        first = room.dispatcher()
        room.step(first)
        room.inbox("1")
        second = room.dispatcher()
        room.step(second)
        numbers = [letter.first for n in "01" if (letter := room.letter(n))]
        assert sorted(numbers) == [0, 1]

    def test_half_a_letter_of_a_dead_master_is_cleared_and_sent_anew(self, room: PostRoom) -> None:
        room.run(1)
        inbox = room.inbox()
        Path(room.base.mailbox("0")).write_bytes(Letter(1, 1, "r", 0, 0, 1).encode()[:60])
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        work(inbox)
        assert room.values() == {0: 0}

    def test_each_master_has_a_higher_epoch_than_any_letter(self, room: PostRoom) -> None:
        room.run(1)
        room.inbox()
        Path(room.base.mailbox("0")).write_bytes(Letter(41, 1, "r", 0, 0, 1).encode())
        assert room.dispatcher().epoch == 42
        Path(room.base.master_info).write_bytes(MasterInfo(99, 1, "h").encode())
        assert room.dispatcher().epoch == 100

    @pytest.mark.parametrize("moment", range(8))
    def test_a_job_that_finishes_while_a_master_starts_is_not_done_twice(
        self, tmp_path: Path, moment: int
    ) -> None:
        """Mailboxes are read before results: what moves meanwhile is seen twice, never missed."""
        room = PostRoom(tmp_path)
        room.run(4)
        inbox = room.inbox()
        first = room.dispatcher()
        room.step(first)
        listings: list[str] = []

        class Slow(LocalFiles):
            def names(self, folder: str) -> list[str]:
                found = super().names(folder)
                if len(listings) == moment:
                    work(inbox)  # everything that is out is finished just behind our back
                listings.append(folder)
                return found

        room.files = Slow()
        second = room.dispatcher()
        assert second.runs["r"].queue.waiting() == 3
        work(inbox)
        room.step(second, after=0.01)
        assert second.runs["r"].queue.done == 1

    def test_holes_in_a_chain_are_filled_and_nothing_beside_them(self, room: PostRoom) -> None:
        made = room.run(6)
        publish(room, made, 0, ["v", "v"])
        publish(room, made, 3, ["v", "v"])  # the parcel of job 2 was lost with the power
        put_up(room.files, room.base, "0").write(Letter(1, 1, "r", 0, 0, 6).encode())
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        inboxes = [room.inbox(str(n)) for n in (1, 2)]
        for _ in range(6):
            room.step(dispatcher)
            for inbox in inboxes:
                work(inbox)
        assert room.values() == {0: "v", 1: "v", 2: 4, 3: "v", 4: "v", 5: 10}
        assert dispatcher.runs["r"].queue.done == 6

    @pytest.mark.parametrize("covered", [False, True], ids=["nobody's", "of a letter"])
    def test_a_result_whose_end_alone_survived_a_power_loss_is_made_again(
        self, room: PostRoom, covered: bool
    ) -> None:
        made = room.run(2)
        publish(room, made, 0, ["torn"])
        path = Path(room.base.result("r", 0))
        path.write_bytes(bytes(40) + path.read_bytes()[40:])
        if covered:
            put_up(room.files, room.base, "0").write(Letter(1, 1, "r", 0, 0, 1).encode())
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        inbox = room.inbox("1")
        for _ in range(4):
            room.step(dispatcher)
            work(inbox)
        assert room.values() == {0: 0, 1: 2}

    def test_a_result_under_anothers_name_covers_nothing(self, room: PostRoom) -> None:
        made = room.run(3)
        publish(room, made, 0, ["v"])
        os.link(room.base.result("r", 0), room.base.result("r", 2))
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        for _ in range(4):
            room.step(dispatcher)
            work(inbox)
        assert room.values() == {0: "v", 1: 2, 2: 4}

    def test_answer_folders_that_a_power_loss_took_are_made_again(self, room: PostRoom) -> None:
        room.run(1)
        os.rmdir(room.base.result_folder("r"))
        os.rmdir(room.base.attempts("r"))
        inbox = room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        work(inbox)
        assert room.values() == {0: 0}

    def test_a_run_that_a_listing_misses_is_not_forgotten(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.run(2)
        room.inbox()
        dispatcher = room.dispatcher()
        room.step(dispatcher)
        monkeypatch.setattr("postroom.dispatch.registry.list_runs", lambda files, base: [])
        room.step(dispatcher)
        assert "r" in dispatcher.runs
        os.rename(room.base.run_folder("r"), f"{room.base.trash}/r")
        room.step(dispatcher)
        assert "r" not in dispatcher.runs


class FailingFiles(LocalFiles):
    """Every path that contains `failing` fails with an I/O error."""

    failing = ""

    def names(self, folder: str) -> list[str]:
        self._maybe(folder)
        return super().names(folder)

    def write_new(self, path: str, chunks: Any, *, sync: bool = False, **_: Any) -> None:
        self._maybe(path)
        super().write_new(path, chunks, sync=sync)

    def open_box(self, path: str) -> Box | None:  # type: ignore[override]
        self._maybe(path)
        return super().open_box(path)

    def _maybe(self, path: str) -> None:
        if self.failing and self.failing in path:
            raise OSError(5, "Input/output error", path)


class TestAMasterOnASickDisk:
    @pytest.mark.parametrize("failing", ["/agent_pool", "/base/tmp/", "/job_pool", "/result_pool"])
    def test_it_is_blocked_and_goes_on_when_the_disk_is_well(
        self, tmp_path: Path, failing: str
    ) -> None:
        files = FailingFiles()
        room = PostRoom(tmp_path, files)
        room.run(3)
        inbox = room.inbox()
        with Master(room.base.root, import_folder="/", files=files, clock=room.clock) as master:
            files.failing = failing
            for _ in range(3):
                room.clock.now += 2
                assert master.step(room.clock.now) is False
            files.failing = ""
            for _ in range(6):
                room.clock.now += 2
                master.step(room.clock.now)
                work(inbox)
            assert room.values() == {0: 0, 1: 2, 2: 4}

    def test_it_sends_no_letter_before_its_epoch_is_on_disk(self, tmp_path: Path) -> None:
        files = FailingFiles()
        room = PostRoom(tmp_path, files)
        room.run(1)
        room.inbox()
        with Master(room.base.root, import_folder="/", files=files, clock=room.clock) as master:
            files.failing = "/base/tmp/"
            room.clock.now += 2
            master.step(room.clock.now)
            assert room.letter() is None and not master.acting

    def test_another_may_act_while_it_is_blocked(self, tmp_path: Path) -> None:
        files = FailingFiles()
        room = PostRoom(tmp_path, files)
        with Master(room.base.root, import_folder="/", files=files, clock=room.clock) as master:
            files.failing = "/agent_pool"
            room.clock.now += 2
            master.step(room.clock.now)
            assert LocalFiles().try_lock(room.base.master_lock) is not None


class TestAMasterThatStandsBy:
    def test_there_is_one_acting_master(self, room: PostRoom) -> None:
        with (
            Master(room.base.root, import_folder="/", clock=room.clock) as first,
            Master(room.base.root, import_folder="/", clock=room.clock) as second,
        ):
            for master in (first, second):
                room.clock.now += 2
                master.step(room.clock.now)
            assert first.acting and not second.acting
            first.close()
            room.clock.now += 2
            second.step(room.clock.now)
            assert second.acting

    def test_it_syncs_a_durable_result_before_it_hands_it_out(
        self, room: PostRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = room.run(1, durable=True)
        acting = room.files.try_lock(room.base.master_lock)
        with Master(room.base.root, import_folder="/", clock=room.clock) as master:
            pool = master.resume("r")
            publish(room, made, 0, ["v"])
            synced: list[int] = []
            monkeypatch.setattr(os, "fsync", lambda fd: synced.append(pool.n_done))
            room.clock.now += 2
            master.step(room.clock.now)
            assert pool.n_done == 1 and synced == [0]
        assert acting is not None

    def test_it_takes_its_part_of_results_that_reach_behind_its_last_job(
        self, room: PostRoom
    ) -> None:
        made = room.run(2)
        acting = room.files.try_lock(room.base.master_lock)
        with Master(room.base.root, import_folder="/", clock=room.clock) as master:
            pool = master.resume("r")
            room.append(2, 1)
            publish(room, made, 0, ["a", "b", "c"])
            room.clock.now += 2
            master.step(room.clock.now)
            assert pool.done and [pool[n].done.value for n in (0, 1)] == ["a", "b"]
        assert acting is not None

    def test_a_bad_result_is_left_to_the_acting_one(self, room: PostRoom) -> None:
        room.run(1)
        acting = room.files.try_lock(room.base.master_lock)
        with Master(room.base.root, import_folder="/", clock=room.clock) as master:
            pool = master.resume("r")
            Path(room.base.result("r", 0)).write_bytes(b"torn")
            room.clock.now += 2
            assert master.step(room.clock.now) is False
            assert not pool.done and os.path.exists(room.base.result("r", 0))
        assert acting is not None
