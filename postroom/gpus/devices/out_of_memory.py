"""Whether a card ran out of memory: one answer for errors of tasks and for what commands print.

| library | what it says |
| --- | --- |
| torch | `OutOfMemoryError: CUDA out of memory. Tried to allocate ...`; also HIP, XPU, MPS |
| the CUDA runtime | `CUDA error: out of memory`, `cudaErrorMemoryAllocation` |
| the CUDA driver, Numba | `Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY` |
| cuBLAS, cuDNN, cuFFT, ... | `CUBLAS_STATUS_ALLOC_FAILED`, `CUFFT_ALLOC_FAILED`, ... |
| JAX (XLA) | `XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate ...` |
| TensorFlow | `OOM when allocating tensor with shape[...] ... by allocator GPU_0_bfc` |
| CuPy | `OutOfMemoryError: Out of memory allocating 8,000 bytes (allocated so far: ...)` |
| ONNX Runtime | `BFCArena ... Failed to allocate memory for requested buffer` |

Memory of the host is another matter: `MemoryError`, and XLA's errors on its CPU device.
"""

from __future__ import annotations

import re

# How the failure of a command that ran out begins (`commands.failure`).
SAID = "out of GPU memory"

_TEXT = re.compile(
    rf"\b(CUDA|HIP|XPU|MPS backend) out of memory|\b{SAID}|(CUDA|HIP) error: out of memory"
    r"|OutOfMemoryError: (CUDA|HIP|XPU|Out of memory allocating)"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|CU[A-Z]+_(STATUS_)?ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED: (Out of memory|Failed to allocate)"
    r"|OOM when allocating tensor[^\n]* by allocator GPU"
    r"|BFCArena[^\n]*Failed to allocate memory",
)
# Classes of torch, CuPy and our own cards; whatever their text says.
_CLASSES = frozenset({"OutOfMemoryError", "OutOfMemory"})


def says_out_of_memory(text: str) -> bool:
    """Whether a text, such as the end of a program's output, says so."""
    return _TEXT.search(text) is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means it, or the error that it was raised from."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        if type(current).__name__ in _CLASSES:
            return True
        if not isinstance(current, MemoryError) and says_out_of_memory(str(current)):
            return True
        seen.append(current)
        current = current.__cause__
    return False
