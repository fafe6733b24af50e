"""`postroom doctor --gpu`: what a real card does, step by step, as a report to paste.

Every step says `passed`, `failed` or `not possible here`. The first steps look at all visible cards
from processes of their own; the others run jobs in a session on one free card, through a base in
a temporary folder and the ledger of the machine: nobody else's card is touched.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..commands.spec import COMMAND
from ..errors import CardHeld, PostroomError
from ..gpus.cards import inventory
from ..gpus.cards.gpu_list import SlotSpec
from ..gpus.cards.inventory import Card
from ..gpus.devices.device import FAKE_DEVICE, same_card
from ..gpus.devices.out_of_memory import says_out_of_memory
from ..gpus.ledger.lease_environment import granted_over
from ..gpus.ledger.protocol import LeaseRequest, open_ledger
from ..gpus.memory.booking import Booking, Need, book
from ..gpus.memory.profiles import Kind, Profiles
from ..jobs import Job
from ..master import Master
from ..parcel.sheets import Outcome
from ..session.job_runner import ASYNCHRONOUS
from ..session.sessions import Sessions
from ..store.base import create_base
from ..system import processes
from ..system.own_python import own_python

KERNELS = "gpu_check_jobs"
HELD_MIB = 256  # by a program that only shows itself
SHARED_MIB = 1024  # by each of two jobs that share the card
ALTERNATING = 20  # jobs over which memory must stay flat
LIMIT_S = 5.0  # of a job that never ends
PATIENCE_S = 120.0  # for torch to be imported, and a context to be made
STALLED_S = 60.0
SEEN_S = 10.0  # for the driver to show what a program holds


class Verdict(enum.StrEnum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "failed"
    IMPOSSIBLE = "not possible here"


@dataclass(frozen=True)
class CheckStep:
    """One step of the check: what was looked at, how it ended, and what was seen."""

    name: str
    verdict: Verdict
    seen: str


class _Impossible(Exception):
    """A step cannot be done on this machine."""


class _Failed(Exception):
    """A step did not show what it should."""


class _Steps:
    """Runs steps, and turns what they raise into verdicts."""

    def __init__(self) -> None:
        self.context_mib = 0

    def step(self, name: str, do: Callable[[], str]) -> CheckStep:
        try:
            return CheckStep(name, Verdict.PASSED, do())
        except _Impossible as error:
            return CheckStep(name, Verdict.IMPOSSIBLE, str(error))
        except _Failed as error:
            return CheckStep(name, Verdict.FAILED, str(error))
        except Exception as error:  # whatever happens, the other steps are reported, too
            return CheckStep(name, Verdict.FAILED, f"{type(error).__name__}: {error}")


def check_gpus() -> Iterator[CheckStep]:
    """Check the visible cards; yields each step when it has ended."""
    steps = _Steps()
    try:
        cards = inventory.cards()
    except PostroomError as error:
        yield CheckStep("the driver", Verdict.FAILED, str(error))
        return
    if not cards:
        yield CheckStep("the driver", Verdict.IMPOSSIBLE, "no GPU is visible on this machine")
        return
    yield steps.step("versions", lambda: _versions(cards))
    yield steps.step("container", _container)
    yield steps.step("modes", _modes)
    if "POSTROOM_FAKE_GPUS" in os.environ and FAKE_DEVICE not in os.environ:
        words = (
            "the cards are simulated (POSTROOM_FAKE_GPUS), and no program can use them; with "
            f"{FAKE_DEVICE}=on and a folder in POSTROOM_FAKE_GPUS_FOLDER a scripted device does"
        )
        yield CheckStep("programs on the cards", Verdict.IMPOSSIBLE, words)
        return
    for card in cards:
        yield from _look_at(card, steps)
    free = _free_card(cards)
    if free is None:
        words = "no card is free: see postroom gpu list"
        yield CheckStep("jobs in a session", Verdict.IMPOSSIBLE, words)
        return
    with tempfile.TemporaryDirectory(prefix="postroom-gpu-check-") as folder:
        with open(f"{folder}/{KERNELS}.py", "w", encoding="utf-8") as file:
            file.write("from postroom.session.gpu_check_kernels import *\n")
        yield from _use_in_session(free, folder, steps)
        yield steps.step("two shared jobs", lambda: _share(free, f"{folder}/profiles", steps))


# All cards, from outside


def _versions(cards: list[Card]) -> str:
    from importlib.metadata import version

    words = [f"postroom {version('postroom')}", f"Python {platform.python_version()}"]
    words += [f"Linux {platform.release().partition('-')[0]}", f"{len(cards)} x {cards[0].name}"]
    return ", ".join(words)


def _container() -> str:
    with open("/proc/version", encoding="utf-8", errors="replace") as file:
        wsl = "microsoft" in file.read().lower()
    marks = ("/.dockerenv", "/run/.containerenv")
    first = processes.in_first_pid_namespace()
    if wsl:
        return "WSL: the driver does not say which process uses what"
    if first and not any(map(os.path.exists, marks)):
        return "none: pids are those of the machine"
    return f"in a container, pids are {'those of the machine' if first else 'its own'}"


def _modes() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise _Impossible("there is no nvidia-smi to ask")
    fields = "index,driver_version,compute_mode,persistence_mode,mig.mode.current,ecc.mode.current"
    done = subprocess.run(
        [program, f"--query-gpu={fields}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    if done.returncode:
        raise _Failed(f"nvidia-smi: {(done.stderr or done.stdout).strip()[:200]}")
    return f"{fields}: " + "; ".join(done.stdout.strip().splitlines())


def _look_at(card: Card, steps: _Steps) -> Iterator[CheckStep]:
    """Compare what the driver says of a card with what a program on it sees."""
    name = f"card {card.index}"
    if card.problem:
        yield CheckStep(name, Verdict.FAILED, card.problem)
        return
    try:
        with (
            open_ledger().try_acquire(LeaseRequest(memory_mib=2 * HELD_MIB, cards=(card.uuid,))),
            _program(card, str(HELD_MIB)) as child,
        ):
            facts = _facts(child)
            now = inventory.find(card.uuid)
    except CardHeld as error:
        yield CheckStep(name, Verdict.IMPOSSIBLE, str(error))
        return
    except (PostroomError, _Failed, OSError) as error:
        yield CheckStep(name, Verdict.FAILED, str(error))
        return
    yield steps.step(f"{name}: same uuid for NVML and CUDA", lambda: _same_uuid(card, facts))
    used_mib = max(0, (now.used_mib or 0) - (card.used_mib or 0) - HELD_MIB)
    steps.context_mib = max(steps.context_mib, used_mib)
    sizes = (
        f"{card.memory_mib} MiB for programs, {card.driver_mib} more are the driver's, "
        f"{used_mib} are a context's"
    )
    yield CheckStep(f"{name}: memory", Verdict.PASSED, sizes)
    yield steps.step(f"{name}: own process and memory are seen", lambda: _seen(now, facts))


def _same_uuid(card: Card, facts: dict[str, Any]) -> str:
    found = [str(uuid) for uuid in facts["uuids"]]
    with_torch = f" (torch {facts['torch']}, {facts['cuda']})" if "torch" in facts else ""
    if [same_card(uuid, card.uuid) for uuid in found] != [True]:
        raise _Failed(f"{card.uuid} for NVML, {', '.join(found) or 'nothing'} for the program")
    return f"{card.uuid}, {facts['kind']}{with_torch}"


def _seen(card: Card, facts: dict[str, Any]) -> str:
    own = [usage for usage in card.processes if usage.pid == facts["pid"]]
    if not own:
        raise _Impossible(
            "the driver does not list our process by its pid: jobs are measured alone on their card"
        )
    if own[0].used_mib is None:
        raise _Impossible("the driver does not say what our process uses")
    if own[0].used_mib < HELD_MIB:
        raise _Failed(f"{own[0].used_mib} MiB are shown, and {HELD_MIB} are held")
    return f"{own[0].used_mib} MiB, of which the program asked for {HELD_MIB}"


@contextlib.contextmanager
def _program(card: Card, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that uses a card; it ends with the block."""
    child = subprocess.Popen(
        own_python("postroom.session.gpu_check_kernels", "hold", *words),
        env=os.environ | inventory.pin(card),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            child.communicate(timeout=PATIENCE_S)
        if child.poll() is None:
            child.kill()
            child.wait()


def _facts(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert child.stdout is not None and child.stderr is not None
    line = child.stdout.readline()
    if not line:
        said = child.stderr.read().decode(errors="replace").strip().splitlines()
        raise _Failed(f"a program could not use the card: {said[-1] if said else 'it ended'}")
    facts: dict[str, Any] = json.loads(line)
    return facts


# One card, in a session


def _free_card(cards: list[Card]) -> Card | None:
    ledger = open_ledger()
    sick = ledger.quarantined()
    for card in cards:
        if not card.problem and card.uuid not in sick:
            with contextlib.suppress(CardHeld):
                ledger.try_acquire(LeaseRequest(cards=(card.uuid,))).release()
                return card
    return None


def _use_in_session(card: Card, folder: str, steps: _Steps) -> Iterator[CheckStep]:
    base = create_base(f"{folder}/base")
    sessions = Sessions(base, say=lambda _: None)
    try:
        sessions.start([SlotSpec("check", card.uuid)])
    except PostroomError as error:
        yield CheckStep("a session starts", Verdict.FAILED, str(error))
        return
    try:
        yield CheckStep("a session starts", Verdict.PASSED, f"on card {card.index}")
        with Master(base.root, import_folder=folder, raise_after_s=STALLED_S) as master:
            jobs = _SessionJobs(master, card, folder)
            for name, do in jobs.steps():
                yield steps.step(name, do)
    finally:
        sessions.stop(["check"])


class _SessionJobs:
    """The steps that run as jobs of a session, each followed by a product that must be right."""

    def __init__(self, master: Master, card: Card, folder: str) -> None:
        self._master = master
        self._card = card
        self._folder = folder

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        """Their names, and what they do."""
        return [
            ("a product is the same as on the CPU", self._product),
            ("bandwidth to the card", self._bandwidth),
            ("a device-side assert is its job's failure", lambda: self._fail(wait=True)),
            ("... also if it surfaces after the job's last line", lambda: self._fail(wait=False)),
            ("out of memory is its job's failure", self._too_much),
            ("an endless kernel is ended at its limit", self._hang),
            (f"memory is flat over {ALTERNATING} jobs", self._flat),
            ("a command after a job that filled half the card", self._command),
        ]

    def _run(self, kernel: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        job = Job(f"{KERNELS}:{kernel}", **arguments).options(timeout_s=timeout_s)
        return self._master.run([job])[0]

    def _product(self, seed: int = 0) -> str:
        size = 64
        random = np.random.default_rng(seed)
        left, right = (random.integers(-9, 9, (size, size)).astype("float32") for _ in range(2))
        done = self._run("product", size=size, seed=seed)
        if not np.array_equal(np.asarray(done.result()), left @ right):
            raise _Failed("the card's product differs from the CPU's")
        return f"in {done.done.seconds:.3f} s"

    def _bandwidth(self) -> str:
        if FAKE_DEVICE in os.environ or self._card.kind == "fake":
            raise _Impossible("the device is scripted: nothing is copied")
        found = self._run("bandwidth", memory_mib=256).result()
        return f"plain {found['plain']} GB/s, pinned {found['pinned']} GB/s"

    def _blamed(self, done: Any, outcome: Outcome, *, says: Callable[[str], bool]) -> str:
        """See that a job failed by itself, that the next one is fine, and the card not blamed."""
        if done.outcome is not outcome:
            raise _Failed(f"the job is {done.outcome.value}, and should be {outcome.value}")
        text = str(done.error)
        if not says(text):
            raise _Failed(f"the job's failure says something else: {text[:300]}")
        self._product(seed=1)
        reason = open_ledger().quarantined().get(self._card.uuid)
        if reason is not None:
            raise _Failed(f"the card was quarantined: {reason.reason}")
        ended = "failed with its own error" if outcome is Outcome.FAILED else outcome.value
        return f"the job {ended}, the next job was fine, the card is not blamed"

    def _fail(self, *, wait: bool) -> str:
        done = self._run("fail", wait=wait)
        return self._blamed(done, Outcome.FAILED, says=lambda text: ASYNCHRONOUS[:40] in text)

    def _too_much(self) -> str:
        done = self._run("hold", memory_mib=2 * self._card.memory_mib)
        return self._blamed(done, Outcome.FAILED, says=says_out_of_memory)

    def _hang(self) -> str:
        if self._card.kind not in ("cuda", "mig", "fake"):
            raise _Impossible(f"no endless kernel is known for a card of kind {self._card.kind}")
        done = self._run("hang", timeout_s=LIMIT_S)
        return self._blamed(done, Outcome.TIMED_OUT, says=lambda _: True)

    def _flat(self) -> str:
        sizes = [int(self._card.memory_mib * part) for part in (0.05, 0.2)]
        seen = []
        for number in range(ALTERNATING):
            done = self._run("hold", memory_mib=sizes[number % 2])
            done.result()
            seen.append(inventory.find(self._card.uuid).used_mib or 0)
        first, last = max(seen[:2]), max(seen[-2:])
        if last > first + 64:
            raise _Failed(f"the card shows {first} MiB after two jobs, {last} after {ALTERNATING}")
        return f"{first} MiB after two jobs, {last} after {ALTERNATING}"

    def _command(self) -> str:
        half, more = (int(self._card.memory_mib * part) for part in (0.5, 0.6))
        self._run("hold", memory_mib=half).result()
        line = shlex.join(own_python("postroom.session.gpu_check_kernels", "hold", str(more)))
        job = Job(
            COMMAND, command=line, cwd=self._folder, folder=f"{self._folder}/command"
        ).options(name="check")
        done = self._master.run([job])[0]
        if done.outcome is not Outcome.OK:
            raise _Failed(f"the command did not get {more} MiB: {done.error}")
        return f"it got {more} of {self._card.memory_mib} MiB after a job that used {half}"


# Shared by memory


def _share(card: Card, folder: str, steps: _Steps) -> str:
    """Measure a job alone on the card, then run two of them at once."""
    profiles, kind = Profiles(folder), Kind("gpu check")
    _run_booked([_book(card, profiles, kind)])
    learned_mib = profiles.learned(kind).peak_mib
    true_mib = SHARED_MIB + steps.context_mib
    if learned_mib is None:
        raise _Failed("nothing was learned from a job alone on the card")
    if abs(learned_mib - true_mib) > 64 + true_mib // 10:
        raise _Failed(f"learned {learned_mib} MiB, true {true_mib}")
    both = [_book(card, profiles, kind) for _ in range(2)]
    reserved = [booking.reserved_mib for booking in both]
    _run_booked(both)
    return f"learned {learned_mib} MiB, true {true_mib}; two at once, {reserved[0]} reserved each"


def _book(card: Card, profiles: Profiles, kind: Kind) -> Booking:
    need = Need(kind, name="gpu check", pack=True)
    return book(need, ledger=open_ledger(), profiles=profiles, cards=[card])


def _run_booked(bookings: list[Booking]) -> None:
    """Run a program in each booking, at the same time, until a measured one was seen."""
    children = []
    for booking in bookings:
        assert booking.lease is not None
        child = subprocess.Popen(
            own_python("postroom.session.gpu_check_kernels", "hold", str(SHARED_MIB)),
            env=granted_over(os.environ, booking.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=booking.lease.fds,
        )
        booking.watch(child.pid)
        children.append(child)
    for booking, child in zip(bookings, children, strict=True):
        assert child.stdout is not None and booking.meter is not None
        holds = bool(child.stdout.readline())
        give_up_at = time.monotonic() + SEEN_S
        while holds and booking.measuring and booking.meter.peak_mib < SHARED_MIB:
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.02)
    said = [child.communicate(timeout=PATIENCE_S)[1] for child in children]
    for booking, child in zip(bookings, children, strict=True):
        booking.finish(ok=child.returncode == 0)
    for child, text in zip(children, said, strict=True):
        if child.returncode:
            raise _Failed(text.decode(errors="replace").strip()[-300:])
