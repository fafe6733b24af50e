"""Each job finds torch as every other job found it: what a kernel sets is put back when it returns.

| what | how it leaks |
| --- | --- |
| default dtype and device, grad mode, autocast | `torch.set_default_dtype`, a mode never left |
| TF32, cuDNN, determinism, number of threads | `torch.backends...`, `torch.use_deterministic_...` |
| current card and stream, limit of memory | `torch.cuda.set_device`, `set_stream`, a fraction |
| random numbers | see `job_seed` |

As long as torch is not loaded, all of this is one lookup. Else comparing takes 1 us for each job:
too much for small jobs. So a session without a card does not compare (`watching`) until it runs a
kernel from whose project a module with the word "torch" was loaded, an installed kernel, or a call.
What concerns cards is only looked at where there are any.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from ..gpus.devices.device import Device

_PRECISIONS = (
    ("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul"),
)  # fmt: skip
_KINDS = ("cpu", "cuda")


class TorchState:
    """What a kernel can change of torch."""

    def __init__(self) -> None:
        self._torch: Any = None
        self.watching = False  # whether jobs may use torch
        self.used_up = ""  # why no other job may run in this process

    def save(self, device: Device) -> None:
        """From now on, this is how every job finds torch."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "_GLOBAL_DEVICE_CONTEXT"):
            return  # not there, or not yet
        self._torch = torch
        self._cheap = _cheap_settings(torch)
        self._plain = self._look()
        self._card_settings = _card_settings(torch)
        self._cards = self._look_at_cards(device)
        self._rest = _Rest(torch)

    def seed(self, seed: int, device: Device) -> None:
        """Seed the generators, if jobs may use torch."""
        if self._torch is None or not self.watching:
            return
        self._torch.default_generator.manual_seed(seed)
        if device.count:
            device.seed(seed)

    def restore(self, device: Device) -> None:
        """Put back what a job changed; not needed where nobody uses torch (`watching`)."""
        if self._torch is None:
            if "torch" not in sys.modules:
                return
            self._adopt(device)
            if self._torch is None:
                return  # a module of that name that is not torch, or not all of it
        if self._look() != self._plain:
            self._restore_plain()
        if device.count:
            with contextlib.suppress(Exception):  # a broken context: the worker is replaced
                if self._look_at_cards(device) != self._cards:
                    self._rest.put_precision()
                    for (_, put), value in zip(self._card_settings, self._cards[0], strict=True):
                        put(value)
                    device.put_settings(self._cards[1])

    def _adopt(self, device: Device) -> None:
        """A job has loaded torch, and may have changed it already: begin with what torch has."""
        self.save(device)
        if self._torch is not None:
            threads = self._torch.get_num_threads()
            float32 = self._torch.float32
            self._cheap = _cheap_settings(self._torch, fresh=True)
            self._plain = (0, float32, True, False, False, threads, False, False)
            self._rest.begin()

    def _look(self) -> tuple[Any, ...]:
        return tuple([get() for get, _ in self._cheap])

    def _look_at_cards(self, device: Device) -> tuple[Any, ...]:
        if not device.count:
            return (), ()
        return tuple([get() for get, _ in self._card_settings]), device.settings()

    def _restore_plain(self) -> None:
        if self._torch._C._len_torch_function_stack() > self._plain[0] == 0:
            self._torch.set_default_device(None)
        for (get, put), value in zip(self._cheap, self._plain, strict=True):
            if get() != value:
                put(value)
        self._rest.put_modes()
        if self._look() != self._plain:
            self.used_up = "a job entered a mode of torch and never left it (inference_mode?)"


_Setting = tuple[Callable[[], Any], Callable[[Any], None]]


def _cheap_settings(torch: Any, *, fresh: bool = False) -> list[_Setting]:
    """What can be compared after every job, each with how it is put back."""
    local = torch._GLOBAL_DEVICE_CONTEXT

    def default_device() -> Any:
        context = getattr(local, "device_context", None)
        return None if context is None else context.device

    def nothing(_: Any) -> None:
        """Put back with the rest, or not at all."""

    # A default device is a mode on the stack of functions; looking for one takes 2 us.
    look = [] if fresh or default_device() is None else [(default_device, torch.set_default_device)]
    return [
        *look,
        (torch._C._len_torch_function_stack, nothing),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch._C._set_grad_enabled),
        (torch.is_inference_mode_enabled, nothing),
        (torch._C._is_any_autocast_enabled, nothing),
        (torch.get_num_threads, torch.set_num_threads),
        (torch._C._get_deterministic_algorithms, nothing),
        (torch._C._get_deterministic_algorithms_warn_only, nothing),
    ]


def _card_settings(torch: Any) -> list[_Setting]:
    """What only matters on a card."""
    c = torch._C
    found: list[_Setting] = [
        (c._get_cudnn_enabled, c._set_cudnn_enabled),
        (c._get_cudnn_benchmark, c._set_cudnn_benchmark),
        (c._get_cudnn_deterministic, c._set_cudnn_deterministic),
    ]
    if not hasattr(c, "_get_fp32_precision_getter"):  # before torch 2.9
        return [
            *found,
            (c._get_cublas_allow_tf32, c._set_cublas_allow_tf32),
            (c._get_cudnn_allow_tf32, c._set_cudnn_allow_tf32),
        ]

    def precision(backend: str, op: str) -> _Setting:
        return (
            lambda: c._get_fp32_precision_getter(backend, op),
            lambda value: c._set_fp32_precision_setter(backend, op, value),
        )

    return [*found, *(precision(*words) for words in _PRECISIONS)]


class _Rest:
    """What is only read again when something has changed."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in _KINDS
        ]
        self._determinism = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        self._precision: tuple[str, bool] | None = None
        with contextlib.suppress(RuntimeError):  # a mix of old and new ways to set it
            self._precision = (
                torch.get_float32_matmul_precision(),
                torch._C._get_cudnn_allow_tf32(),
            )

    def begin(self) -> None:
        """Take what torch has when it was just loaded."""
        self._autocast = [(kind, False, dtype) for kind, _, dtype in self._autocast]
        self._determinism = (False, False)

    def put_modes(self) -> None:
        enabled, warn_only = self._determinism
        self._torch._C._set_deterministic_algorithms(enabled, warn_only=warn_only)
        for kind, enabled, dtype in self._autocast:
            self._torch.set_autocast_enabled(kind, enabled)
            self._torch.set_autocast_dtype(kind, dtype)
        self._torch.clear_autocast_cache()

    def put_precision(self) -> None:
        """In the old way, before the new one: torch refuses to read what differs in both."""
        if self._precision is not None:
            matmul, cudnn = self._precision
            self._torch.set_float32_matmul_precision(matmul)
            self._torch._C._set_cudnn_allow_tf32(cudnn)
