"""Notices: when a message is due, and that it is sent once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from postroom.queue.notices import POLL_S, RETRY_S, Notifier, notify_of
from postroom.store.base import Base
from postroom.store.journal import Journal
from postroom.testing import wait_until
from tests.queue.conftest import Webhook
from tests.queue.kit import FAILURE, FILES, end, queue


class Rounds:
    """A notifier with a clock of its own."""

    def __init__(self, base: Base, *targets: str) -> None:
        self.notifier = Notifier(FILES, base, Journal(base, "notifier"), *targets)
        self.now = 0.0

    def until(self, condition: Callable[[], object]) -> None:
        def came_true() -> bool:
            self.step()
            return bool(condition()) and not self.notifier.sending

        wait_until(came_true, timeout_s=60)

    def step(self) -> None:
        self.now += POLL_S
        self.notifier.step(self.now)


def notices(base: Base) -> list[str]:
    return [name for name in FILES.names(base.control) if name.startswith("notice.")]


def test_the_first_failure_and_the_end_are_told_once_each(base: Base, webhook: Webhook) -> None:
    jobs = queue(base, "good", "bad", "worse", "other")
    notify_of(FILES, base, jobs[:3], webhook.url)
    rounds = Rounds(base)
    rounds.step()
    assert not rounds.notifier.sending
    folder = Path(base.job_folder(jobs[1].run, 1))
    folder.mkdir(parents=True)
    (folder / "1.ERR").write_text("".join(f"line {n}\n" for n in range(99)) + "ValueError: x\n")
    end(base, jobs[1], FAILURE)
    rounds.until(lambda: len(webhook.got) == 1)
    first = webhook.got[0]
    assert (first["event"], first["counts"], first["jobs"]) == ("failed", {"ok": 0, "failed": 1}, 3)
    assert "ValueError: x" in str(first["text"]) and "line 5\n" not in str(first["text"])
    assert "bad" in str(first["text"]) and "exit code 3" in str(first["text"])
    end(base, jobs[2], FAILURE)
    for _ in range(3):
        rounds.step()
    end(base, jobs[0])
    rounds.until(lambda: not notices(base))
    assert [message["event"] for message in webhook.got] == ["failed", "done"]
    assert webhook.got[1]["counts"] == {"ok": 1, "failed": 2}


def test_jobs_that_end_together_are_told_in_one_message(base: Base, webhook: Webhook) -> None:
    (job,) = queue(base, "bad")
    end(base, job, FAILURE)
    notify_of(FILES, base, [job], webhook.url)
    rounds = Rounds(base)
    rounds.until(lambda: not notices(base))
    assert [message["event"] for message in webhook.got] == ["done"]


def test_two_masters_send_one_message(base: Base, webhook: Webhook) -> None:
    jobs = queue(base, "a", "b")
    notify_of(FILES, base, jobs, webhook.url)
    both = [Rounds(base), Rounds(base)]
    for job in jobs:
        end(base, job)
    for rounds in both:
        rounds.step()
    assert sum(rounds.notifier.sending for rounds in both) == 2
    for rounds in both:
        rounds.until(lambda: not notices(base))
    assert len(webhook.got) == 1


def test_a_message_that_failed_is_sent_again(base: Base, webhook: Webhook) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    notify_of(FILES, base, [job], webhook.url)
    webhook.codes = [500, 404]
    rounds = Rounds(base)
    rounds.until(lambda: not notices(base))
    assert len(webhook.got) == 1
    notify_of(FILES, base, [job], webhook.url)
    webhook.hangs.set()
    again = Rounds(base)
    again.step()
    (sending,) = again.notifier._sending.values()
    sending.process.kill()
    webhook.hangs.clear()
    again.until(lambda: not notices(base))
    assert len(webhook.got) >= 2


def test_the_log_says_why_a_message_was_not_sent_and_when_it_is_given_up(base: Base) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    notify_of(FILES, base, [job], "echo no such user >&2; exit 3")
    rounds = Rounds(base)
    while notices(base):
        rounds.until(lambda: True)
        rounds.now += RETRY_S[-1]
    log = Path(base.log).read_text()
    assert log.count("failed with exit code 3: no such user") == len(RETRY_S) + 1
    assert log.count("trying again in") == len(RETRY_S)
    assert f"could not be sent in {len(RETRY_S) + 1} tries" in log
    assert "giving up; check what --notify names" in log


def test_an_address_that_hangs_blocks_nothing(base: Base, webhook: Webhook) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    webhook.hangs.set()
    notify_of(FILES, base, [job], webhook.url)
    rounds = Rounds(base)
    for _ in range(5):
        rounds.step()
    assert rounds.notifier.sending == 1
    webhook.hangs.clear()
    rounds.until(lambda: not notices(base))


def test_a_command_gets_the_text_and_the_counts(base: Base, tmp_path: Path) -> None:
    jobs = queue(base, "a", "b", project="vae")
    for job in jobs:
        end(base, job, FAILURE)
    output = tmp_path / "output"
    notify_of(FILES, base, jobs, f'(echo "$POSTROOM_EVENT $POSTROOM_FAILED"; cat) > {output}')
    rounds = Rounds(base)
    rounds.until(lambda: not notices(base))
    assert output.read_text().startswith("done 2\nvae (")


def test_a_master_with_a_target_tells_of_every_run_once(base: Base, webhook: Webhook) -> None:
    (old,) = queue(base, "old", project="over before")
    end(base, old)
    (one,) = queue(base, "a", project="one")
    (two,) = queue(base, "b", project="two")
    rounds = Rounds(base, webhook.url)
    rounds.step()
    end(base, one)
    end(base, two)
    # The next Master has no target of its own, but finds the notices.
    rounds = Rounds(base)
    rounds.until(lambda: len(webhook.got) == 2)
    rounds = Rounds(base, webhook.url)
    for _ in range(4):
        rounds.step()
    assert sorted(str(message["project"]) for message in webhook.got) == ["one", "two"]


def test_a_notice_that_cannot_be_read_is_ignored(base: Base, webhook: Webhook) -> None:
    Path(base.control, "notice.x.json").write_text("garbage")
    (job,) = queue(base, "a")
    end(base, job)
    notify_of(FILES, base, [job], webhook.url)
    Rounds(base).until(lambda: notices(base) == ["notice.x.json"])
    assert len(webhook.got) == 1
