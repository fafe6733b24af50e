"""Messages about jobs are sent to an address or a command, each once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.queue import notify
from postroom.queue.notices import PREFIX, notify_of
from postroom.queue.notify import (
    Envelope,
    Message,
    NotifyError,
    check_target,
    compose,
    deliver,
    send,
)
from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from tests.queue.conftest import Webhook
from tests.queue.kit import FILES, end, queue


def notices(base: Base) -> list[str]:
    return [name for name in FILES.names(base.control) if name.startswith(PREFIX)]


def test_a_late_sender_sends_nothing(base: Base, view: QueueView, webhook: Webhook) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    notify_of(FILES, base, [job], webhook.url)
    stem = f"{base.control}/{notices(base)[0].removesuffix('.json')}"
    message = compose(base, view.read_state().readers[job.run], [(0, 1)], "done")
    envelope = Envelope(webhook.url, message, stem)
    deliver(envelope, FILES)
    deliver(envelope, FILES)
    assert len(webhook.got) == 1
    for name in notices(base):
        FILES.remove(f"{base.control}/{name}")
    deliver(envelope, FILES)
    assert len(webhook.got) == 1


@pytest.mark.parametrize("target", ["", "  ", "ftp://host/x", "file:///etc/passwd", "a\0b"])
def test_a_target_that_makes_no_sense_is_refused(target: str) -> None:
    with pytest.raises(PostroomError, match="--notify"):
        check_target(target)


def message_of(base: Base, view: QueueView) -> Message:
    (job,) = queue(base, "a")
    end(base, job)
    return compose(base, view.read_state().readers[job.run], [(0, 1)], "done")


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_message_follows_a_redirect_on_the_same_host(
    base: Base, view: QueueView, webhook: Webhook, code: int
) -> None:
    webhook.codes, webhook.location = [code, code], "/elsewhere"
    send(webhook.url, message_of(base, view))
    assert [got["event"] for got in webhook.got] == ["done"]


@pytest.mark.parametrize("place", ["http://localhost:1/secret?key=1", "ftp://127.0.0.1/x", "//x/y"])
def test_a_message_is_not_sent_on_to_another_host(
    base: Base, view: QueueView, webhook: Webhook, place: str
) -> None:
    webhook.codes, webhook.location = [308], place
    with pytest.raises(NotifyError, match="give the new address to --notify") as caught:
        send(webhook.url, message_of(base, view))
    assert "key" not in str(caught.value)
    assert webhook.got == []


@pytest.mark.parametrize(("codes", "says"), [([303], "303"), ([302] * 9, "again and again")])
def test_a_message_that_nobody_took_is_not_called_sent(
    base: Base, view: QueueView, webhook: Webhook, codes: list[int], says: str
) -> None:
    webhook.codes, webhook.location = codes, "/login"
    with pytest.raises(NotifyError, match=f"did not accept a message: .*{says}"):
        send(webhook.url, message_of(base, view))
    assert webhook.got == []


def test_an_address_where_nobody_listens_is_a_sentence(base: Base, view: QueueView) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
    with pytest.raises(NotifyError, match=f"^{address} did not accept a message: Connection ref"):
        send(address, message_of(base, view))


def test_an_answer_that_is_no_http_is_a_sentence(base: Base, view: QueueView) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(65536)
                line.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotifyError, match="did not accept a message"):
            send(f"http://127.0.0.1:{server.getsockname()[1]}/", message_of(base, view))
        thread.join()


def test_what_a_command_leaves_in_the_background_is_not_waited_for(
    base: Base, view: QueueView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "COMMAND_S", 10.0)
    pid = tmp_path / "pid"
    try:
        send(f"sleep 600 & echo $! > {pid}", message_of(base, view))
        os.kill(int(pid.read_text()), 0)  # it lives on
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_slow_command_is_killed_and_the_error_says_what_to_do(
    base: Base, view: QueueView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "COMMAND_S", 0.2)
    with pytest.raises(NotifyError, match=r"'sleep 600' took longer than 0.2 s.*setsid -f"):
        send("sleep 600", message_of(base, view))


def test_an_address_that_never_ends_is_named_when_the_time_is_up(
    base: Base, view: QueueView, webhook: Webhook
) -> None:
    webhook.hangs.set()
    code = "import postroom.queue.notify as n; n.MOST_S = 1; n._main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=Envelope(f"{webhook.url}?key=1", message_of(base, view)).encode(),
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    assert f"{webhook.url} took longer than 1 s" in done.stderr.decode()


def test_a_batch_tells_how_it_went(tmp_path: Path, webhook: Webhook) -> None:
    lines = ["-c", "echo sorry >&2; exit 4", "-c", "true", "--gpus", "cpu", "--notify", webhook.url]
    done = subprocess.run(
        [sys.executable, "-m", "postroom", "run", *lines, "--output-dir", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    assert [message["event"] for message in webhook.got] == ["failed", "done"]
    assert webhook.got[-1]["counts"] == {"ok": 1, "failed": 1}
    assert "sorry" in str(webhook.got[-1]["text"])
