"""Sends messages about jobs: to a command of the user, or by POST to a web address.

    python -m postroom.queue.notify    reads an envelope from stdin and sends it, in limited time

A process of its own sends each message, so that nobody waits for an address that never answers. It
holds the lock of the notice while it sends, and writes a file when it has sent. If it dies between
the two, the message is sent again: at least once, and twice only after a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..commands.failure import last_line
from ..commands.job_folder import tail
from ..errors import BadFileError, PostroomError
from ..store.base import Base
from ..store.files import Files, LocalFiles
from ..store.records import JsonRecord, to_fields
from ..system.own_python import own_python
from .rows import FAILED
from .run_reader import RunReader, command_text, output_folder

# How long a command, or an address, may take.
COMMAND_S = 60.0
ADDRESS_S = 15.0
# The sending process is killed after this time in any case.
MOST_S = 90
# Redirects that are followed with the same POST; a 303 says that the message is somewhere else.
REDIRECTS = (301, 302, 307, 308)
MOST_REDIRECTS = 5
MOST_STDERR = 64 << 10
MOST_FAILURES = 5
LAST_LINES = 10
MOST_TARGET = 2000

Span = tuple[int, int]


class NotifyError(PostroomError):
    """A message could not be sent."""


@dataclass(frozen=True)
class FailedJob:
    """One failed job in a message."""

    job: str
    name: str
    command: str
    error: str
    lines: list[str]  # the last lines of its stderr, else of its stdout


@dataclass(frozen=True)
class Message:
    """The outcome of some jobs."""

    event: str  # "failed": the first job failed; "done": all have ended
    base: str
    host: str
    project: str
    run: str
    jobs: int
    counts: dict[str, int]  # of ended jobs, by outcome
    seconds: float | None  # since the first job was submitted
    failures: list[FailedJob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole message, for people."""
        ended = sum(self.counts.values())
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        head = "first failure" if self.event == "failed" else "done"
        lines = [
            f"{self.project} ({self.run[-6:]}): {head}, {ended} of {self.jobs} jobs ended "
            f"({counts}) on {self.host} in {self.base}"
        ]
        if self.seconds is not None:
            lines[0] += f", after {self.seconds:.0f} s"
        for failure in self.failures:
            name = f" {failure.name}" if failure.name else ""
            lines += ["", f"{failure.job}{name}: {failure.error}", f"$ {failure.command}"]
            lines += [f"  {line}" for line in failure.lines]
        failed = sum(self.counts.get(outcome, 0) for outcome in FAILED)
        if failed > len(self.failures):
            lines += [
                "",
                f"{failed - len(self.failures)} more failed; see: postroom jobs -s failed",
            ]
        return "\n".join(lines)

    def encode(self) -> bytes:
        """As JSON; chat programs show its `text`."""
        return json.dumps({"text": self.text, **to_fields(self)}).encode()


def check_target(target: str) -> str:
    """A valid target, or an error that says what is wrong."""
    if not target.strip() or len(target) > MOST_TARGET or "\0" in target:
        raise PostroomError(
            "--notify needs a command, or an address that starts with http:// or https://"
        )
    if "://" in target.split(maxsplit=1)[0] and not is_address(target):
        raise PostroomError(
            f"--notify supports only http:// and https:// addresses, not {target!r}"
        )
    return target


def is_address(target: str) -> bool:
    """Whether a target is an address, not a command."""
    return target.startswith(("http://", "https://"))


def compose(base: Base, reader: RunReader, spans: Sequence[Span], event: str) -> Message:
    """Make the message about some jobs of a run."""
    jobs = sum(stop - first for first, stop in spans)
    waiting = sum(
        max(0, min(stop, end) - max(first, start))
        for first, stop in spans
        for start, end in reader.waiting
    )
    failed = failures_in(reader, spans)
    counts = {"ok": jobs - waiting - len(failed)}
    for outcome in failed.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    told = [job for job, outcome in sorted(failed.items()) if outcome in FAILED]
    first = min(first for first, _ in spans)
    return Message(
        event=event,
        base=base.root,
        host=socket.gethostname(),
        project=reader.project,
        run=reader.run,
        jobs=jobs,
        counts=counts,
        seconds=max(0.0, time.time() - reader.submitted_at(first)) if reader.asked else None,
        failures=[_failed_job(base, reader, job) for job in told[:MOST_FAILURES]],
    )


def failures_in(reader: RunReader, spans: Sequence[Span]) -> dict[int, str]:
    """The jobs of some ranges that did not end well, with their outcome."""
    return {
        job: outcome
        for failures in reader.failures.values()
        for job, outcome in failures.items()
        if any(first <= job < stop for first, stop in spans)
    }


def _failed_job(base: Base, reader: RunReader, job: int) -> FailedJob:
    error = name = command = folder = ""
    with contextlib.suppress(BadFileError, OSError, IndexError):
        sheet = reader.read_jobs(job)
        name = sheet.name(job) if sheet.names else ""
        command = command_text(sheet, job)
        folder = output_folder(base, reader, job)
    first = reader.result_of(job)
    if first is not None:
        with contextlib.suppress(BadFileError, OSError):
            error = reader.read_outcomes(first).failures[job].text
    stem = f"{folder}/{os.path.basename(folder)}"
    output = (tail(f"{stem}.ERR") or tail(f"{stem}.OUT")) if folder else ""
    lines = output.rstrip().splitlines()[-LAST_LINES:]
    return FailedJob(reader.job_id(job).short, name, command, error, lines)


# Sending


def send(target: str, message: Message) -> None:
    """Send a message now; raises NotifyError when that fails."""
    if is_address(target):
        _post(target, message)
    else:
        _call(target, message)


def _post(address: str, message: Message) -> None:
    import http.client
    import urllib.error
    import urllib.request  # it imports http and ssl: only where needed

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """Python would follow most redirects with a GET, and lose the message."""

        def redirect_request(self, *_: object) -> None:
            return None

    opener = urllib.request.build_opener(NoRedirect)
    headers = {"Content-Type": "application/json", "User-Agent": "postroom"}
    problem = "it redirects again and again"
    for _ in range(MOST_REDIRECTS + 1):
        try:
            # The user gave this address; it was checked to be http or https.
            request = urllib.request.Request(address, message.encode(), headers)  # noqa: S310
            opener.open(request, timeout=ADDRESS_S).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in REDIRECTS or not (place := error.headers.get("Location")):
                problem = str(error)
                break
            address = _redirected(address, place)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            problem = getattr(reason, "strerror", None) or str(reason)
            if isinstance(reason, TimeoutError):
                problem = f"no answer within {ADDRESS_S:g} s"
            break
    raise NotifyError(f"{_without_query(address)} did not accept a message: {problem}")


def _redirected(address: str, place: str) -> str:
    """Where a redirect leads: on the same host only, since a message and its address are private"""
    from urllib.parse import urljoin, urlsplit

    new = urljoin(address, place)
    one, other = urlsplit(address), urlsplit(new)
    is_safer = (one.scheme, other.scheme) == ("http", "https")
    same = (one.scheme, one.netloc) == (other.scheme, other.netloc)
    if same or (is_safer and one.hostname == other.hostname):
        return new
    raise NotifyError(
        f"{_without_query(address)} redirects to {_without_query(new)}, and messages are not sent "
        "on to another host: give the new address to --notify"
    )


def _without_query(address: str) -> str:
    return address.partition("?")[0]


def _call(command: str, message: Message) -> None:
    environment = {
        **os.environ,
        "POSTROOM_EVENT": message.event,
        "POSTROOM_BASE": message.base,
        "POSTROOM_PROJECT": message.project,
        "POSTROOM_RUN": message.run,
        "POSTROOM_JOBS": str(message.jobs),
        "POSTROOM_FAILED": str(sum(message.counts.get(outcome, 0) for outcome in FAILED)),
    }
    # Files, not pipes: what the command leaves running in the background (`&`) keeps them open, and
    # is not waited for.
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as stderr:
        text.write(message.text.encode(errors="replace") + b"\n")
        text.seek(0)
        # The user gave this command to be run.
        process = subprocess.Popen(  # noqa: S602
            command,
            shell=True,
            stdin=text,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotifyError(
                f"{command!r} took longer than {COMMAND_S:g} s and was killed: make it faster, or "
                "write `setsid -f` before it, so that nobody waits for it"
            ) from None
        stderr.seek(0)
        why = last_line(stderr.read(MOST_STDERR).decode(errors="replace"))
    if code:
        raise NotifyError(f"{command!r} failed with exit code {code}: {why}")


@dataclass(frozen=True)
class Envelope(JsonRecord):
    """A message for the process that sends it, and the notice that asks for it."""

    target: str
    message: Message
    notice: str = ""  # its path without the ending; empty: send it unconditionally


def start(envelope: Envelope) -> subprocess.Popen[bytes]:
    """Send a message in a process of its own; it exits with 0 when the message was sent."""
    process = subprocess.Popen(
        own_python("postroom.queue.notify"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(envelope.encode())
        process.stdin.close()
    process.stdin = None  # so that `communicate` leaves it alone
    return process


def deliver(envelope: Envelope, files: Files) -> None:
    """Send a message unless another process does or has; then write the marker."""
    if not envelope.notice:
        send(envelope.target, envelope.message)
        return
    lock = files.try_lock(f"{envelope.notice}.lock")
    if lock is None:
        return
    try:
        marker = f"{envelope.notice}.{envelope.message.event}"
        # If another process was faster, the marker exists, or the notice is gone with its marker.
        if files.exists(f"{envelope.notice}.json") and not files.exists(marker):
            send(envelope.target, envelope.message)
            files.write_new(marker, [b""], sync=True)
    finally:
        lock.release()


def _main() -> None:
    envelope = Envelope.decode("stdin", sys.stdin.buffer.read())

    def too_late(*_: object) -> None:
        target = envelope.target
        shown = _without_query(target) if is_address(target) else repr(target)
        raise NotifyError(f"{shown} took longer than {MOST_S} s")

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(MOST_S)
    deliver(envelope, LocalFiles())


if __name__ == "__main__":
    try:
        _main()
    except (PostroomError, OSError) as problem:
        sys.exit(str(problem))
