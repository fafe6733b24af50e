"""Tensors as arrays that numpy can hold, and back; torch is imported only where one is made."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

_SAME = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64"
# What numpy lacks is stored as unsigned numbers of the same bits.
_BITS = {
    "bfloat16": "uint16",
    "complex32": "uint32",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
# The dtype of the array in a parcel, by the name of the tensor's.
_STORED = {name: np.dtype(name) for name in [*_SAME.split(), "complex64", "complex128"]}
_STORED |= {name: np.dtype(bits) for name, bits in _BITS.items()}


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor; then its program has imported torch."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def array_of(tensor: Any) -> tuple[str, Array]:
    """The name of a tensor's dtype, and its data; ValueError says why not, and what to do."""
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        raise ValueError(f"is a {kind}, not a plain tensor: send .as_subclass(torch.Tensor)")
    if tensor.is_nested:
        raise ValueError("is a nested tensor: send a list of its parts, .unbind()")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"is a sparse tensor ({tensor.layout}): send .to_dense(), or its indices and values"
        )
    if tensor.is_quantized:
        raise ValueError(
            "is a quantised tensor: send .int_repr() with its scale and zero point, or"
            " .dequantize()"
        )
    if tensor.is_meta:
        raise ValueError("is a tensor on the meta device, without data: send its shape and dtype")
    if name not in _STORED:
        raise ValueError(f"is a tensor of {tensor.dtype}, which no parcel can hold: send .float()")
    data = tensor.detach().cpu().resolve_conj().resolve_neg()
    if name in _BITS:
        data = data.view(getattr(torch, _BITS[name]))
    return name, data.numpy()


def tensor_of(name: str, array: Array) -> Any:
    """The tensor, on the CPU, with memory of its own; ValueError if there is no such."""
    if _STORED.get(name) != array.dtype:
        raise ValueError("it has a tensor of an odd dtype")
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways
        raise ValueError(
            f"it holds a tensor, and torch cannot be imported here ({error}): install it, or read"
            " the file with numpy.load"
        ) from None
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise ValueError(f"it holds a tensor of {name}, which this torch does not know: update it")
    # A parcel's memory is read-only, and a tensor's is not.
    tensor = torch.from_numpy(array.copy(order="K"))
    return tensor if tensor.dtype is dtype else tensor.view(dtype)
