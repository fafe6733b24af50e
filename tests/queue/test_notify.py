"""Messages about jobs: sent to a real server on this host, or to a command, once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.queue.notices import LOOK_S, Notifier, notify_of
from postroom.queue.notify import Envelope, check_target, compose, deliver
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from postroom.store.journal import Journal
from postroom.testing import wait_until
from tests.queue.kit import FAILURE, FILES, end, queue


class Inbox:
    """A server that keeps what is posted to it, and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[dict[str, object]] = []
        self.codes: list[int] = []  # the next answers; 200 when there is none
        self.hangs = threading.Event()
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if inbox.hangs.is_set():
                    wait_until(lambda: not inbox.hangs.is_set(), timeout_s=60)
                code = inbox.codes.pop(0) if inbox.codes else 200
                if code == 200:
                    inbox.got.append(json.loads(body))
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    opened = Inbox()
    yield opened
    opened.hangs.clear()
    opened.server.shutdown()
    opened.server.server_close()


class Rounds:
    """A notifier whose clock runs faster than ours."""

    def __init__(self, base: Base, target: str = "") -> None:
        self.notifier = Notifier(FILES, base, Journal(base, "notifier"), target)
        self.now = 0.0

    def until(self, condition: Callable[[], object]) -> None:
        def came_true() -> bool:
            self.step()
            return bool(condition()) and not self.notifier.sending

        wait_until(came_true, timeout_s=60)

    def step(self) -> None:
        self.now += LOOK_S
        self.notifier.step(self.now)


def notices(base: Base) -> list[str]:
    return [name for name in FILES.names(base.control) if name.startswith("notice.")]


def test_the_first_failure_and_the_end_are_told_once_each(base: Base, inbox: Inbox) -> None:
    jobs = queue(base, "good", "bad", "worse", "other")
    notify_of(FILES, base, jobs[:3], inbox.url)
    rounds = Rounds(base)
    rounds.step()
    assert not rounds.notifier.sending
    folder = Path(base.job_folder(jobs[1].run, 1))
    folder.mkdir(parents=True)
    (folder / "1.ERR").write_text("".join(f"line {n}\n" for n in range(99)) + "ValueError: x\n")
    end(base, jobs[1], FAILURE)
    rounds.until(lambda: len(inbox.got) == 1)
    first = inbox.got[0]
    assert (first["event"], first["counts"], first["jobs"]) == ("failed", {"ok": 0, "failed": 1}, 3)
    assert "ValueError: x" in str(first["text"]) and "line 5\n" not in str(first["text"])
    assert "bad" in str(first["text"]) and "exit code 3" in str(first["text"])
    end(base, jobs[2], FAILURE)
    for _ in range(3):
        rounds.step()
    end(base, jobs[0])
    rounds.until(lambda: not notices(base))
    assert [message["event"] for message in inbox.got] == ["failed", "done"]
    assert inbox.got[1]["counts"] == {"ok": 1, "failed": 2}


def test_jobs_that_end_together_are_told_in_one_message(base: Base, inbox: Inbox) -> None:
    (job,) = queue(base, "bad")
    end(base, job, FAILURE)
    notify_of(FILES, base, [job], inbox.url)
    rounds = Rounds(base)
    rounds.until(lambda: not notices(base))
    assert [message["event"] for message in inbox.got] == ["done"]


def test_two_masters_send_one_message(base: Base, inbox: Inbox) -> None:
    jobs = queue(base, "a", "b")
    notify_of(FILES, base, jobs, inbox.url)
    both = [Rounds(base), Rounds(base)]
    for job in jobs:
        end(base, job)
    for rounds in both:
        rounds.step()
    assert sum(rounds.notifier.sending for rounds in both) == 2
    for rounds in both:
        rounds.until(lambda: not notices(base))
    assert len(inbox.got) == 1


def test_whoever_comes_late_sends_nothing(base: Base, view: QueueView, inbox: Inbox) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    notify_of(FILES, base, [job], inbox.url)
    stem = f"{base.control}/{notices(base)[0].removesuffix('.json')}"
    message = compose(base, view.read_state().readers[job.run], [(0, 1)], "done")
    envelope = Envelope(inbox.url, message, stem)
    deliver(envelope, FILES)
    deliver(envelope, FILES)
    assert len(inbox.got) == 1
    for name in notices(base):
        FILES.remove(f"{base.control}/{name}")
    deliver(envelope, FILES)
    assert len(inbox.got) == 1


def test_what_was_not_taken_is_sent_again_and_a_killed_sender_too(base: Base, inbox: Inbox) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    notify_of(FILES, base, [job], inbox.url)
    inbox.codes = [500, 404]
    rounds = Rounds(base)
    rounds.until(lambda: not notices(base))
    assert len(inbox.got) == 1
    notify_of(FILES, base, [job], inbox.url)
    inbox.hangs.set()
    again = Rounds(base)
    again.step()
    (sending,) = again.notifier._sending.values()
    sending.process.kill()
    inbox.hangs.clear()
    again.until(lambda: not notices(base))
    assert len(inbox.got) >= 2


def test_an_address_that_hangs_keeps_nobody_waiting(base: Base, inbox: Inbox) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    inbox.hangs.set()
    notify_of(FILES, base, [job], inbox.url)
    rounds = Rounds(base)
    for _ in range(5):
        rounds.step()
    assert rounds.notifier.sending == 1
    inbox.hangs.clear()
    rounds.until(lambda: not notices(base))


def test_a_command_gets_the_text_and_the_figures(base: Base, tmp_path: Path) -> None:
    jobs = queue(base, "a", "b", project="vae")
    for job in jobs:
        end(base, job, FAILURE)
    told = tmp_path / "told"
    notify_of(FILES, base, jobs, f'(echo "$POSTROOM_EVENT $POSTROOM_FAILED"; cat) > {told}')
    rounds = Rounds(base)
    rounds.until(lambda: not notices(base))
    assert told.read_text().startswith("done 2\nvae (")


def test_a_master_with_a_target_tells_of_every_run_once(base: Base, inbox: Inbox) -> None:
    (old,) = queue(base, "old", project="over before")
    end(base, old)
    (one,) = queue(base, "a", project="one")
    (two,) = queue(base, "b", project="two")
    rounds = Rounds(base, inbox.url)
    rounds.step()
    end(base, one)
    end(base, two)
    # The next Master, which has no target of its own, knows of them.
    rounds = Rounds(base)
    rounds.until(lambda: len(inbox.got) == 2)
    rounds = Rounds(base, inbox.url)
    for _ in range(4):
        rounds.step()
    assert sorted(str(message["project"]) for message in inbox.got) == ["one", "two"]


def test_a_notice_that_cannot_be_read_is_left_alone(base: Base, inbox: Inbox) -> None:
    Path(base.control, "notice.x.json").write_text("garbage")
    (job,) = queue(base, "a")
    end(base, job)
    notify_of(FILES, base, [job], inbox.url)
    Rounds(base).until(lambda: notices(base) == ["notice.x.json"])
    assert len(inbox.got) == 1


@pytest.mark.parametrize("target", ["", "  ", "ftp://host/x", "file:///etc/passwd", "a\0b"])
def test_a_target_that_makes_no_sense_is_refused(target: str) -> None:
    with pytest.raises(PostroomError, match="--notify"):
        check_target(target)


def test_a_batch_tells_how_it_went(tmp_path: Path, inbox: Inbox) -> None:
    lines = ["-c", "echo sorry >&2; exit 4", "-c", "true", "--gpus", "cpu", "--notify", inbox.url]
    done = subprocess.run(
        [sys.executable, "-m", "postroom", "run", *lines, "--output-dir", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    assert [message["event"] for message in inbox.got] == ["failed", "done"]
    assert inbox.got[-1]["counts"] == {"ok": 1, "failed": 1}
    assert "sorry" in str(inbox.got[-1]["text"])
