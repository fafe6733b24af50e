"""Arrays of JAX and CuPy: for kernels whose parameters ask for them, and back.

    def fit(x: jax.Array, lr: float) -> jax.Array: ...
    def fit(x: cupy.ndarray, lr: float) -> float: ...

The annotation asks, as `torch.Tensor` does for tensors. Arrays of these libraries that a kernel
returns become numpy arrays, which every parcel can hold. Numba needs none of this: its functions
take numpy arrays, and its kernels tensors (`numba.cuda.as_cuda_array`).
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_ASKS = {
    "jax": re.compile(r"\b(jax|jaxlib|jnp)\b[\w.]*\.(Array|ndarray|ArrayImpl)\b"),
    "cupy": re.compile(r"\b(cupy|cp)\b[\w.]*\.ndarray\b"),
}
_LIBRARIES = ("jax", "cupy", "numba.cuda")
_CPU = 1  # kDLCPU of DLPack

Change = Callable[[Any], Any]


def library_asked_for(annotation: object) -> str:
    """Return the library whose arrays an annotation names: `jax`, `cupy` or ``."""
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return next((name for name, asks in _ASKS.items() if asks.search(text)), "")


def converter_to(library: str) -> Change:
    """Return what turns an array or a tensor into one of the library, on the device it uses."""
    made_by: Any = importlib.import_module("jax.numpy" if library == "jax" else "cupy")

    def change(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return made_by.asarray(value)
        if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "__dlpack__"):
            return made_by.from_dlpack(value)
        return value

    return change


def are_loaded() -> bool:
    """Whether a kernel can return arrays of these libraries at all."""
    return any(name in sys.modules for name in _LIBRARIES)


def synchronise(*, card: bool) -> None:
    """Wait until the work that was queued through these libraries has ended; raise its errors.

    `card`: they use a card, and torch does not; what torch synchronises is all work of the process.
    """
    jax: Any = sys.modules.get("jax")
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    if jax is not None and getattr(bridge, "backends_are_initialized", bool)():
        jax.effects_barrier()
        jax.block_until_ready(jax.live_arrays())
        for device in jax.local_devices():
            if device.platform != "cpu":
                # Of arrays that were dropped meanwhile, too: a card does its work in order.
                (jax.device_put(0, device) + 0).block_until_ready()
    if card and (cupy := sys.modules.get("cupy")) is not None:
        cupy.cuda.runtime.deviceSynchronize()  # all work in the context, which Numba's is, too
    elif card and (cuda := sys.modules.get("numba.cuda")) is not None:
        cuda.synchronize()


def to_numpy(value: Any) -> Any:
    """Return an array of one of these libraries as a numpy array; any other value as it is."""
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    if root == "numba" and hasattr(value, "copy_to_host"):
        return value.copy_to_host()
    if root not in ("jax", "jaxlib", "cupy") or not hasattr(value, "__dlpack_device__"):
        return value
    if root == "cupy":
        return value.get()
    if value.__dlpack_device__()[0] == _CPU:
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):  # a type that DLPack lacks, such as bfloat16
            pass
    return np.asarray(value)
