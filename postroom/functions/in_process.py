"""A call that runs in this process, once a GPU is granted.

CUDA cannot change its GPU after initialisation: the environment is set before the function starts,
and a process that has already used CUDA on a card stays on that card. One process runs one job at a
time; a call from inside another job is part of it, and runs on its cards.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import GpuError, PostroomError
from ..gpus.cards import inventory
from ..gpus.cards.inventory import Card
from ..gpus.devices.device import Device, cuda_is_fixed, device_in_use, open_device
from ..gpus.ledger.lease_environment import grants_to
from ..gpus.ledger.protocol import open_ledger
from ..gpus.memory.booking import Booking, Need, book, held_for_us, prune_timelines
from ..gpus.memory.packing import CONTEXT_MIB
from ..gpus.memory.profiles import Profiles
from ..session.booked_task import card_watch
from ..system.process_tree import MARK, SHARES, base_of_mark
from ..text.safe_text import say
from .kept_booking import KeptBooking

R = TypeVar("R")

BRIEF_S = 1.0  # in a session, shorter jobs are measured only KNOWN_RUNS times
KNOWN_RUNS = 3
PATIENCE_S = 1.0  # a call that waits longer for another thread says why

CUDA_LIBRARIES = ("jax", "cupy", "numba.cuda", "tensorflow")  # torch says itself if it uses CUDA

_last_card = ""  # of the last job of this process
_fixed_on = ""  # the card that CUDA saw when it was initialised, if that was in a job
_turn = threading.RLock()  # one job at a time in this process
_within = threading.local()  # whether this thread is inside a job
_kept = KeptBooking()  # of the last call that was short, in a session that shares its card


class MemoryExceeded(GpuError):
    """A job was stopped because it took more memory than was reserved for it."""


def is_on_cpu_session() -> bool:
    """Return whether this is a session without a card."""
    return MARK in os.environ and os.environ.get("POSTROOM_GPU") == ""


def brief(need: Need) -> bool:
    """Return whether a kind is so short and so well known that measuring it is a waste."""
    profile = Profiles().get(need.kind.type)
    row = next((row for row in profile.rows if row.call == need.kind.call), None)
    if row is None or profile.code != need.kind.code:
        return False
    # On a card that others use, what it needs must be known, too.
    has_figure = _has_whole_card() or need.memory_mib is not None or row.peak_mib is not None
    return has_figure and row.runs >= KNOWN_RUNS and (row.seconds or BRIEF_S) < BRIEF_S


def run(
    function: Callable[[], R], need: Need, *, over: str = "warn", timeout_s: float | None = None
) -> R:
    """Run a function on cards of its own, or on those of the job around it."""
    is_brief = MARK in os.environ and brief(need)
    if getattr(_within, "job", False) or (_has_whole_card() and is_brief):
        return function()  # there is nothing to reserve
    with in_turn(need.name):
        if is_brief and over == "warn":
            return _run_brief(function, need, timeout_s)
        _kept.close()
        cards = _look(need)
        if not cards:
            with _limited(timeout_s):
                return function()  # no GPU: it runs on the CPU
        booking = _book(need, cards)
        _remember(booking)
        with booking, inside_job():
            return _run_booked(function, booking, over=over, timeout_s=timeout_s)


def _run_brief(function: Callable[[], R], need: Need, timeout_s: float | None) -> R:
    """Run what is short and known, in a session that shares its card: it is not measured again."""
    with _kept.use(need, lambda: _book(need, _look(need))) as booking:
        _remember(booking)
        granted = booking.environment if booking.lease is not None else {}
        try:
            with inside_job(), pinned(granted), _limited(timeout_s):
                return function()
        finally:
            device_in_use().empty_cache()  # others may have the rest of the card


def _look(need: Need) -> list[Card]:
    """The cards as they are now."""
    links = need.count > 1
    # A session asks the driver for every call, through one child process that it keeps.
    return card_watch().cards(links=links) if MARK in os.environ else inventory.cards(links=links)


def _has_whole_card() -> bool:
    """Return whether this is a session that has a card of its own."""
    return MARK in os.environ and SHARES not in os.environ


@contextmanager
def inside_job() -> Iterator[None]:
    """Have calls of this thread count as parts of the job that holds the cards."""
    before = getattr(_within, "job", False)
    _within.job = True
    try:
        yield
    finally:
        _within.job = before


@contextmanager
def in_turn(name: str) -> Iterator[None]:
    """Wait for jobs of other threads: a process has one environment, and one CUDA."""
    if not _turn.acquire(timeout=PATIENCE_S):
        say(f"{name} waits for a job of another thread; .submit would run both in parallel")
        _turn.acquire()
    try:
        yield
    finally:
        _turn.release()


def measure(stand_in: Callable[[], object], need: Need) -> None:
    """Run a stand-in alone on a card if its kind is not measured yet; its errors are raised."""
    if getattr(_within, "job", False):
        return
    with in_turn(need.name):
        cards = inventory.cards()
        profiles = Profiles()
        if not cards or need.memory_mib is not None or held_for_us(open_ledger(), cards):
            return  # nothing depends on a measurement
        while profiles.learned(need.kind).peak_mib is None:
            booking = book(
                need,
                ledger=open_ledger(),
                profiles=profiles,
                cards=cards,
                home=home_of(cards),
                say=say,
            )
            with booking:
                if booking.measuring:
                    _remember(booking)
                    with inside_job():
                        # Once, whatever was seen of it: it is there to be run only once.
                        _run_booked(stand_in, booking, over="warn", timeout_s=None, sure=True)


def _book(need: Need, cards: list[Card]) -> Booking:
    look = card_watch().cards if MARK in os.environ else inventory.cards
    ledger, profiles = open_ledger(cards=look), Profiles()
    held = held_for_us(ledger, cards)
    if held:
        # A session, a shell or a job above us holds the card for us: use it, and measure on it.
        return Booking(need, held, profiles=profiles)
    return book(
        need,
        ledger=ledger,
        profiles=profiles,
        cards=cards,
        home=home_of(cards),
        say=say,
        look=look,
    )


def _remember(booking: Booking) -> None:
    global _last_card
    _last_card = booking.cards[0].uuid


def home_of(cards: list[Card]) -> Card | None:
    """Return the card on which this process has initialised CUDA; it cannot change it.

    In a container the driver may not show our process. Then it is the card of the job before.
    """
    ours = [c for c in cards if any(usage.pid == os.getpid() for usage in c.processes)]
    fixed = cuda_is_fixed()
    before = [card for card in cards if card.uuid == (_fixed_on if fixed else _last_card)]
    loaded = any(name in sys.modules for name in CUDA_LIBRARIES)
    if not ours and not fixed and not device_in_use().count and not (before and loaded):
        return None
    candidates = ours or before or cards
    if len(candidates) == 1:
        return candidates[0]
    raise PostroomError(
        "this process has already initialised CUDA (torch.cuda.is_available() does that, too), and "
        "CUDA cannot move to another GPU: take the GPU before anything uses CUDA, or use it in "
        "another process (.submit of a function, `postroom gpu run` for a program)"
    )


def _run_booked(
    function: Callable[[], R],
    booking: Booking,
    *,
    over: str,
    timeout_s: float | None,
    sure: bool = False,
) -> R:
    environment = booking.environment if booking.lease is not None else {}
    with pinned(environment), _limited(timeout_s) as interrupt:
        reserved_mib = booking.reserved_mib
        if over == "limit" and reserved_mib is not None:
            own_mib = max(1, reserved_mib - CONTEXT_MIB)
            _usable_device().limit(min(1.0, own_mib / booking.cards[0].memory_mib))

        def exceeded(text: str) -> None:
            say(text)
            if over == "kill":
                interrupt(MemoryExceeded)

        booking.exceeded = exceeded
        try:
            watch = card_watch() if MARK in os.environ else None
            return booking.call(function, sure=sure, ended=lambda: interrupt(None), watch=watch)
        finally:
            timeline = _timeline(booking)
            booking.leave_timeline(timeline)
            prune_timelines(os.path.dirname(timeline))
            say(booking.advice)


def _usable_device() -> Device:
    """The device of this process, even if it has not used it yet."""
    device = device_in_use()
    return device if device.count else open_device("cpu", any_accelerator=True) or device


@contextmanager
def pinned(granted: dict[str, str]) -> Iterator[None]:
    """Have these environment variables, which make only the granted cards visible, for a while."""
    global _fixed_on
    changes = grants_to(os.environ, granted)
    before = {name: os.environ.get(name) for name in changes}
    fixed = cuda_is_fixed()
    os.environ.update(changes)  # and no other: each takes a microsecond, and memory for good
    try:
        yield
    finally:
        if not fixed and cuda_is_fixed():
            _fixed_on = granted.get("POSTROOM_GPU", "")
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _limited(timeout_s: float | None) -> Iterator[Callable[[type[BaseException] | None], None]]:
    """Yield a function that raises an error in this thread; the time limit calls it, too.

    Python raises it between two lines: a call that waits in C returns first.
    """
    thread_id = threading.get_ident()
    lock = threading.Lock()
    over = False

    def interrupt(error: type[BaseException] | None) -> None:
        nonlocal over
        with lock:
            if error is None:
                over = True
            elif not over:
                over = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread_id), ctypes.py_object(error)
                )

    timer = None
    if timeout_s is not None:
        timer = threading.Timer(timeout_s, interrupt, [TimeoutError])
        timer.daemon = True
        timer.start()
    try:
        yield interrupt
    finally:
        interrupt(None)
        if timer is not None:
            timer.cancel()


def _timeline(booking: Booking) -> str:
    """Return the file of a job's timeline: in a session beside its log, else with the profiles."""
    base = base_of_mark(os.environ.get(MARK, ""))
    job = os.environ.get("POSTROOM_JOB", "").replace("/", "-")
    if base and job:
        return os.path.join(base, "log", "timelines", f"{job}.csv")
    name = "".join(c if c.isalnum() else "_" for c in booking.need.name)[:60]
    folder = os.path.join(Profiles().where, "timelines")
    return os.path.join(folder, f"{name}-{os.getpid()}-{os.urandom(3).hex()}.csv")
