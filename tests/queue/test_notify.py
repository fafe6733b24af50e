"""Messages about jobs are sent to an address or a command, each once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.queue.notices import PREFIX, notify_of
from postroom.queue.notify import Envelope, check_target, compose, deliver
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
