"""A scripted device for tests: it fails as GPUs fail, and its cards are the simulated ones.

Switched on by `POSTROOM_FAKE_DEVICE`, beside `POSTROOM_FAKE_GPUS`: every process of a session then
computes on this device instead of the CPU. The variable is `1`, or options:

    POSTROOM_FAKE_DEVICE=context_mib=300,late_free_s=2

`context_mib` is what each process holds from its first use on; `late_free_s` is how long a card
still shows the memory of a process that has died. Memory is held on the simulated cards, if
`POSTROOM_FAKE_GPUS_FOLDER` is set: then everybody sees it, and a full card is full.

A kernel calls the device of its process:

    from postroom.testing import scripted_device

    def kernel(x):
        card = scripted_device()
        y = card.launch(numpy.multiply, x, 2)   # queued; an array on the card
        card.fail_later()                       # queued: a device-side assert; or `"ecc"`, a text
        card.compute(0.5)                       # queued: half a second of work
        card.hang()                             # queued: work that never ends
        block = card.hold(8192)                 # 8 GiB; back to the cache when it is dropped
        return y                                # the job's end copies it to the host

Queued work is done, and its errors surface, when somebody synchronises: at `card.synchronise()`,
when an array is copied to the host, at the job's end. An error then poisons the context: each later
call raises it again until the process ends. Only out of memory does not, and is raised at once.

A test scripts the cards, for all processes, with `script_device(folder, {"FAKE-0": {...}})`:

| entry | what happens on that card |
| --- | --- |
| `"touch": "busy"` | its first use fails: `busy`, `out of memory`, `ecc`, `hang`, or another text |
| `"times": 2` | ... for that many first uses, by any process; without it for ever |
| `"missing": "reason"` | torch cannot use it at all |
| `"uuid": "FAKE-3"` | a process that is pinned to it sees this card instead |
"""

from __future__ import annotations

import copy
import json
import os
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..cards.simulated import Claim, OutOfMemory
from .device import FAKE_DEVICE, MIB, Device, DeviceMemory, DeviceMissing

ASSERT = "CUDA error: device-side assert triggered"
_ERRORS = {
    "busy": "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "ecc": "CUDA error: uncorrectable ECC error encountered",
    "out of memory": "CUDA error: out of memory",
}
_SCRIPT = "device.json"


class AcceleratorError(RuntimeError):
    """What torch calls an error of the device."""


class OutOfMemoryError(RuntimeError):
    """What torch raises when a card has too little memory."""


class HeldMemory:
    """Memory of a scripted card; dropped, it goes back to the process's cache, not to the card."""

    def __init__(self, pool: _Pool, memory_mib: int) -> None:
        pool.allocate(memory_mib)
        self._memory_mib = memory_mib
        self.free = weakref.finalize(self, pool.release, memory_mib)


class ScriptedArray:
    """An array on a scripted card: what it holds is known only after its work was done."""

    def __init__(self, device: ScriptedDevice, nbytes: int) -> None:
        self._device = device
        self._held = device.hold(-(-nbytes // MIB))
        self.value: Any = None

    def cpu(self) -> Any:
        """A copy in memory of this process."""
        return self._device.to_host(self)

    @property
    def nbytes(self) -> int:
        """Its size, as soon as it is known."""
        return int(getattr(self.value, "nbytes", 0))


class _Pool:
    """What one process holds of one card: used, cached, and its context."""

    def __init__(self, uuid: str, context_mib: int, late_free_s: float) -> None:
        self.uuid = uuid
        self.allocated_mib = self.reserved_mib = self.peak_mib = 0
        self.limit_mib: int | None = None
        self._context_mib = context_mib
        self._late_free_s = late_free_s
        self._claim: Claim | None = None

    def open(self) -> None:
        """Make a context on the card."""
        if self._claim is None and os.environ.get("POSTROOM_FAKE_GPUS_FOLDER"):
            try:
                self._claim = Claim(self.uuid, self._context_mib, late_free_s=self._late_free_s)
            except OutOfMemory:
                raise AcceleratorError(_ERRORS["out of memory"]) from None

    def allocate(self, memory_mib: int) -> None:
        wanted_mib = self.allocated_mib + memory_mib
        if wanted_mib > self.reserved_mib:
            try:
                if self.limit_mib is not None and wanted_mib > self.limit_mib:
                    raise OutOfMemory(f"{wanted_mib} MiB are more than {self.limit_mib}")
                self.open()
                self._reserve(wanted_mib)
            except (OutOfMemory, AcceleratorError) as error:
                raise OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {memory_mib} MiB. {error}"
                ) from None
        self.allocated_mib = wanted_mib
        self.peak_mib = max(self.peak_mib, self.reserved_mib)

    def release(self, memory_mib: int) -> None:
        self.allocated_mib -= memory_mib

    def empty_cache(self) -> None:
        if self.reserved_mib > self.allocated_mib:
            self._reserve(self.allocated_mib)

    def _reserve(self, memory_mib: int) -> None:
        if self._claim is not None:
            self._claim.resize(self._context_mib + memory_mib)
        self.reserved_mib = memory_mib

    def close(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None


class ScriptedDevice(Device):
    """Simulated cards with a queue of work and errors that come late."""

    kind = "scripted"

    def __init__(self, uuids: list[str], *, context_mib: int = 0, late_free_s: float = 0.0) -> None:
        self.count = len(uuids)
        self._uuids = uuids
        self._pools = [_Pool(uuid, context_mib, late_free_s) for uuid in uuids]
        self._current = 0
        self._queue: list[Callable[[], None]] = []
        self._poisoned: str | None = None
        self.seeded: int | None = None
        self.pinned_bytes = 0  # in all: nothing is ever unpinned
        self.stream = 0  # the current one; a kernel may set it

    def __str__(self) -> str:
        return f"scripted:{self._current}"

    # What the package asks

    def all_for_kernels(self) -> list[Any]:
        return [f"scripted:{number}" for number in range(self.count)]

    def touch(self) -> None:
        self._check()
        for pool in self._pools:
            script = _script_of(pool.uuid)
            if "touch" in script and _first_uses(pool.uuid) < script.get("times", 1 << 30):
                if script["touch"] == "hang":
                    _never_return()
                raise AcceleratorError(_ERRORS.get(script["touch"], script["touch"]))
            pool.open()
        self.synchronise()

    def uuids(self) -> list[str]:
        return [_script_of(uuid).get("uuid", uuid) for uuid in self._uuids]

    def select(self, uuid: str) -> None:
        self._current = self._uuids.index(uuid)

    def synchronise(self) -> None:
        self._check()
        queue, self._queue = self._queue, []
        for work in queue:
            try:
                work()
            except Exception as error:
                self._poison(str(error))

    def holds(self, value: object) -> bool:
        return isinstance(value, ScriptedArray)

    def to_host(self, array: Any) -> Any:
        self.synchronise()
        return copy.copy(array.value)

    def put(self, tensor: Any) -> Any:
        held = self.hold(-(-tensor.nbytes // MIB))
        placed = tensor.clone()
        weakref.finalize(placed, lambda kept: kept.free(), held)
        return placed

    def pin(self, nbytes: int) -> Any:
        import numpy as np

        self._check()
        self.pinned_bytes += nbytes
        return np.empty(nbytes, np.uint8)

    def memory(self) -> DeviceMemory:
        return DeviceMemory(
            sum(pool.allocated_mib for pool in self._pools),
            sum(pool.reserved_mib for pool in self._pools),
        )

    def empty_cache(self) -> None:
        self._check()
        for pool in self._pools:
            pool.empty_cache()

    def reset_peak(self) -> None:
        for pool in self._pools:
            pool.peak_mib = pool.reserved_mib

    def peak_mib(self) -> int:
        return max((pool.peak_mib for pool in self._pools), default=0)

    def limit(self, part: float) -> bool:
        from ..cards.inventory import find

        self._pools[0].limit_mib = int(find(self._uuids[0]).memory_mib * part)
        return True

    def seed(self, seed: int) -> None:
        self.seeded = seed

    def settings(self) -> tuple[Any, ...]:
        return self._current, self.stream, tuple(pool.limit_mib for pool in self._pools)

    def put_settings(self, settings: tuple[Any, ...]) -> None:
        self._current, self.stream, limits = settings
        for pool, limit_mib in zip(self._pools, limits, strict=True):
            pool.limit_mib = limit_mib

    # What kernels of a test call

    def launch(self, function: Callable[..., Any], *arguments: Any, nbytes: int = 0) -> Any:
        """Queue a function of arrays; return its result, an array of `nbytes` on the card."""
        self._check()
        made = ScriptedArray(self, nbytes)

        def work() -> None:
            plain = [one.value if isinstance(one, ScriptedArray) else one for one in arguments]
            made.value = function(*plain)

        self._queue.append(work)
        return made

    def hold(self, memory_mib: int) -> HeldMemory:
        """Use memory of the current card until what is returned is dropped."""
        self._check()
        try:
            return HeldMemory(self._pools[self._current], memory_mib)
        except OutOfMemoryError:
            # As torch does: give back the cache, and try once more.
            self.empty_cache()
            return HeldMemory(self._pools[self._current], memory_mib)

    def fail_later(self, message: str = ASSERT) -> None:
        """Queue work that fails, by default with a device-side assert."""
        self._check()

        def fail() -> None:
            raise AcceleratorError(_ERRORS.get(message, message))

        self._queue.append(fail)

    def compute(self, seconds: float) -> None:
        """Queue work that takes this long."""
        self._check()
        self._queue.append(lambda: time.sleep(seconds))

    def hang(self) -> None:
        """Queue work that never ends."""
        self._check()
        self._queue.append(_never_return)

    def close(self) -> None:
        """Give all memory back, as the end of the process would."""
        for pool in self._pools:
            pool.close()

    def _poison(self, message: str) -> None:
        self._poisoned = _ERRORS.get(message, message)
        self._check()

    def _check(self) -> None:
        if self._poisoned is not None:
            raise AcceleratorError(self._poisoned)


opened: ScriptedDevice | None = None  # the device of this process


def open_scripted(uuids: list[str]) -> ScriptedDevice:
    """The device of a process that is pinned to these simulated cards; one for each process."""
    global opened
    for uuid in uuids:
        if "missing" in (script := _script_of(uuid)):
            raise DeviceMissing(str(script["missing"]))
    if opened is None or opened._uuids != uuids:
        if opened is not None:
            opened.close()
        options = dict(
            word.split("=") for word in os.environ.get(FAKE_DEVICE, "").split(",") if "=" in word
        )
        opened = ScriptedDevice(
            uuids,
            context_mib=int(options.get("context_mib", 0)),
            late_free_s=float(options.get("late_free_s", 0)),
        )
    return opened


def scripted_device() -> ScriptedDevice:
    """The scripted device of this process, for a kernel or a program under test."""
    return opened or open_scripted(
        [uuid for uuid in os.environ.get("POSTROOM_GPU", "").split(",") if uuid] or ["FAKE-0"]
    )


def script_device(folder: str | os.PathLike[str], changes: dict[str, dict[str, Any]]) -> None:
    """Say how simulated cards behave from now on, by uuid; `folder` is that of the cards."""
    temporary = os.path.join(folder, f"new-{os.urandom(6).hex()}")
    with open(temporary, "x", encoding="utf-8") as file:
        json.dump(changes, file)
    os.replace(temporary, os.path.join(folder, _SCRIPT))


def _script_of(uuid: str) -> dict[str, Any]:
    folder = os.environ.get("POSTROOM_FAKE_GPUS_FOLDER", "")
    if folder:
        with suppress(FileNotFoundError), open(os.path.join(folder, _SCRIPT), "rb") as file:
            return dict(json.load(file).get(uuid, {}))
    return {}


def _first_uses(uuid: str) -> int:
    """Count a first use of a card, by any process; return how many there were before."""
    folder = os.environ["POSTROOM_FAKE_GPUS_FOLDER"]
    number = 0
    while True:
        try:
            path = os.path.join(folder, f"touched-{uuid}-{number}")
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return number
        except FileExistsError:
            number += 1


def _never_return() -> None:
    while True:
        time.sleep(3600)
