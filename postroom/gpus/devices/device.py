"""The one door to the device: every call of torch that concerns a GPU is made here.

    open_device("GPU-1d2f...")   the device of a session that has this card: CUDA, ROCm
    open_device("cpu")           the CPU, where all of it costs nothing
    device_in_use()              of any process: the device that it has used already, or the CPU

| class | what is behind it |
| --- | --- |
| `Device` | the CPU: nothing is ever unfinished, and nothing is kept |
| `TorchDevice` | CUDA and ROCm (both are `torch.cuda`), XPU, MPS |
| `scripted_device.ScriptedDevice` | simulated cards with `POSTROOM_FAKE_DEVICE`, for tests |

Work on a device is queued: its errors surface at a later call, in the worst case in another job. So
a job ends with `synchronise`, and its results are copied with `to_host`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import warnings
from typing import Any, NamedTuple

from ...errors import GpuError

MIB = 1 << 20
NOT_INITIALISED = 3  # CUDA_ERROR_NOT_INITIALIZED
FAKE_DEVICE = "POSTROOM_FAKE_DEVICE"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class DeviceMissing(GpuError):
    """A session has a card, but its process cannot compute on that card."""


class DeviceMemory(NamedTuple):
    """What this process holds on its devices: used by tensors, and kept in all, cache included."""

    allocated_mib: int = 0
    reserved_mib: int = 0


class Device:
    """The CPU; what every other device is asked, too."""

    kind = "cpu"
    count = 0  # how many cards; 0: no work is queued and no memory kept, so nobody need ask

    def __str__(self) -> str:
        return self.kind

    def for_kernels(self) -> Any:
        """What a kernel that names `device` is passed: torch's word for it; None without torch."""
        torch = sys.modules.get("torch")
        return torch.device("cpu") if torch is not None else None

    def all_for_kernels(self) -> list[Any]:
        """What a kernel that names `devices` is passed: torch's words for all cards."""
        one = self.for_kernels()
        return [] if one is None else [one]

    def touch(self) -> None:
        """Use every card once, as jobs will; raise what the driver raises."""

    def uuids(self) -> list[str]:
        """The cards as the driver names them to this process; "" for one without a name."""
        return []

    def select(self, uuid: str) -> None:
        """Make one of several cards the current one."""

    def synchronise(self) -> None:
        """Wait until all queued work has ended; its errors are raised here."""

    def holds(self, value: object) -> bool:
        """Whether a value is an array in a card's memory."""
        return False

    def to_host(self, array: Any) -> Any:
        """A copy of such an array, in memory of this process."""
        return array

    def put(self, tensor: Any) -> Any:
        """A tensor on the current card, from one in memory of this process."""
        return tensor

    def pin(self, nbytes: int) -> Any:
        """Memory of this process from which a card reads fast, as an array; None: there is none."""
        return None

    def memory(self) -> DeviceMemory:
        """What this process holds now."""
        return DeviceMemory()

    def empty_cache(self) -> None:
        """Give back what no tensor uses."""

    def reset_peak(self) -> None:
        """Count the peak from now on."""

    def peak_mib(self) -> int:
        """The most that was kept on one card since then."""
        return 0

    def limit(self, part: float) -> bool:
        """Refuse more than this part of the first card; False where that cannot be done."""
        return False

    def seed(self, seed: int) -> None:
        """Seed the generators of random numbers on the cards."""

    def settings(self) -> tuple[Any, ...]:
        """What a job can change of the device: the current card and streams, the limits."""
        return ()

    def put_settings(self, settings: tuple[Any, ...]) -> None:
        """Put such changes back."""

    def free(self) -> None:
        """Collect garbage, which may hold tensors, and give back all that nobody uses."""
        if self.count:
            gc.collect()
            self.empty_cache()


class TorchDevice(Device):
    """Cards behind torch: `cuda` (also ROCm), `xpu` or `mps`."""

    def __init__(self, torch: Any, kind: str) -> None:
        self.kind = kind
        self._torch = torch
        self._module = torch.get_device_module(kind)
        self.count = int(self._module.device_count())
        self._current = torch.device(kind, 0)

    def __str__(self) -> str:
        return str(self._current)

    def for_kernels(self) -> Any:
        return self._current

    def all_for_kernels(self) -> list[Any]:
        return self._each()

    def _each(self) -> list[Any]:
        return [self._torch.device(self.kind, number) for number in range(self.count)]

    def touch(self) -> None:
        for device in self._each():
            self._torch.ones(1, device=device).add_(1).cpu()
        self.synchronise()

    def uuids(self) -> list[str]:
        if self.kind == "mps":
            return [""]
        properties = [self._module.get_device_properties(number) for number in range(self.count)]
        return [str(getattr(one, "uuid", "")) for one in properties]

    def select(self, uuid: str) -> None:
        for number, found in enumerate(self.uuids()):
            if same_card(found, uuid):
                self._make_current(number)

    def synchronise(self) -> None:
        # Every stream of every card: `touch` has made a context on each.
        for number in range(self.count):
            self._torch.accelerator.synchronize(number)

    def holds(self, value: object) -> bool:
        return isinstance(value, self._torch.Tensor) and value.device.type != "cpu"

    def to_host(self, array: Any) -> Any:
        return array.detach().cpu()

    def put(self, tensor: Any) -> Any:
        # A plain copy: see `pinned` for what is pinned, and why nothing else is.
        return tensor.to(self._current)

    def pin(self, nbytes: int) -> Any:
        if self.kind == "mps":
            return None  # the memory is the card's own
        return self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()

    def memory(self) -> DeviceMemory:
        module = self._module
        if self.kind == "mps":
            used = module.current_allocated_memory(), module.driver_allocated_memory()
        else:
            cards = range(self.count)
            used = (
                sum(module.memory_allocated(number) for number in cards),
                sum(module.memory_reserved(number) for number in cards),
            )
        return DeviceMemory(int(used[0]) // MIB, int(used[1]) // MIB)

    def empty_cache(self) -> None:
        self._module.empty_cache()

    def reset_peak(self) -> None:
        if self.kind != "mps":
            for number in range(self.count):
                self._module.reset_peak_memory_stats(number)

    def peak_mib(self) -> int:
        if self.kind == "mps":
            return int(self._module.driver_allocated_memory()) // MIB
        peaks = [self._module.max_memory_reserved(number) for number in range(self.count)]
        return int(max(peaks, default=0)) // MIB

    def limit(self, part: float) -> bool:
        if self.kind == "mps":
            self._module.set_per_process_memory_fraction(part)
        else:
            self._module.set_per_process_memory_fraction(part, 0)
        return True

    def settings(self) -> tuple[Any, ...]:
        if self.kind == "mps":
            return ()
        cards = range(self.count)
        streams = tuple([self._torch.accelerator.current_stream(number) for number in cards])
        # Torch 2.6 can set a limit, but cannot read it.
        read = getattr(self._module, "get_per_process_memory_fraction", None)
        limits = tuple([read(number) for number in cards]) if read is not None else ()
        return self._torch._C._accelerator_getDeviceIndex(), streams, limits

    def put_settings(self, settings: tuple[Any, ...]) -> None:
        if settings:
            current, streams, limits = settings
            for number, limit in enumerate(limits):
                self._module.set_per_process_memory_fraction(limit, number)
            for stream in streams:
                self._torch.accelerator.set_stream(stream)
            self._make_current(current)

    def _make_current(self, number: int) -> None:
        self._torch._C._accelerator_setDeviceIndex(number)
        self._current = self._torch.device(self.kind, number)

    def seed(self, seed: int) -> None:
        if self.kind == "mps":
            self._module.manual_seed(seed)
        else:
            self._module.manual_seed_all(seed)


def open_device(gpu: str, *, any_accelerator: bool = False) -> Device | None:
    """The device of a session, whose cards have these uuids, or "cpu"; None: torch is not loaded.

    Raises DeviceMissing where torch cannot use the cards, or sees others: a session for a card must
    never compute on the CPU in silence. `any_accelerator`: no card is known, but torch may have
    one that Postroom cannot list (XPU, MPS).
    """
    uuids = [] if gpu == "cpu" else gpu.split(",")
    if uuids and FAKE_DEVICE in os.environ:
        from .scripted_device import open_scripted

        device: Device = open_scripted(uuids)
        _verify(device, uuids)
        return device
    if not uuids and not any_accelerator:
        return Device()
    if uuids and "POSTROOM_FAKE_GPUS" in os.environ:
        return Device()  # cards that exist only in the ledger: their jobs compute on the CPU
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind = _accelerator(torch)
    if kind is None and not uuids:
        return Device()
    if kind is None:
        raise DeviceMissing(_why_missing(torch))
    device = TorchDevice(torch, kind)
    if uuids and not torch.version.hip:  # ROCm has other uuids in HIP than in its driver
        _verify(device, uuids)
    return device


def cuda_is_fixed() -> bool:
    """Whether CUDA has read CUDA_VISIBLE_DEVICES: another value would be without effect.

    The driver reads it when it is initialised, which torch.cuda.is_available() is enough for.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
        return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != NOT_INITIALISED
    except (OSError, AttributeError):  # nothing has loaded it
        return False


def device_in_use() -> Device:
    """The device that this process has used already; the CPU if it has used none."""
    if FAKE_DEVICE in os.environ:
        from . import scripted_device

        return scripted_device.opened or Device()
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            return TorchDevice(torch, kind)
    return Device()


def same_card(found: str, uuid: str) -> bool:
    """Whether two names mean one card: torch leaves out what stands before a uuid of NVML."""
    return _bare(found) == _bare(uuid)


def _bare(uuid: str) -> str:
    return re.sub(r"^(GPU|MIG)-", "", uuid).lower()


def _verify(device: Device, uuids: list[str]) -> None:
    """Compare the cards that the process sees with those of the session's lease."""
    found = device.uuids()
    if len(found) == len(uuids) and all(map(same_card, found, uuids)):
        return
    known = [uuid for uuid in (*found, *uuids) if not _UUID.fullmatch(_bare(uuid))]
    if device.kind == "cuda" and known and len(found) == len(uuids):
        return  # an old form of a MIG slice's name says nothing that torch says, too
    raise DeviceMissing(
        f"the session has {', '.join(uuids)}, but its process sees {', '.join(found) or 'no card'}:"
        " does something set CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER when Python starts?"
    )


def _accelerator(torch: Any) -> str | None:
    """The kind of accelerator that torch can use now; None if it can use none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reason is told in one sentence, see `_why_missing`
        found = torch.accelerator.current_accelerator()
        if found is None or not torch.get_device_module(found.type).is_available():
            return None
    return str(found.type)


def _why_missing(torch: Any) -> str:
    """Why torch cannot use a card that the driver lists."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is a build for the CPU: install one for this GPU, or start "
            "the session for the CPU, or without torch (--preload numpy)"
        )
    try:
        torch.cuda.init()
        reason = "it sees no card"
    except Exception as error:  # whatever the driver says
        reason = str(error).strip().split("\n")[0] or type(error).__name__
    return (
        f"torch {torch.__version__} cannot use the GPU: {reason}; is the driver older than torch "
        "needs, or was the machine suspended (reload nvidia_uvm, or reboot)?"
    )
