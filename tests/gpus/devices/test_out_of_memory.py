"""One classifier for what libraries say when a card is full, in tasks and in commands."""

from __future__ import annotations

import pytest

from postroom.commands.failure import Cause, End, explain
from postroom.gpus.cards import simulated
from postroom.gpus.devices.faults import Fault, fault_of
from postroom.gpus.devices.out_of_memory import is_out_of_memory, says_out_of_memory

SAID = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
    "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: MPS backend out of memory (MPS allocated: 9.05 GB, other allocations: 1 MB)",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
    "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9",
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 32.00GiB",
    "ResourceExhaustedError: OOM when allocating tensor with shape[9,9] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000 bytes (allocated so far: 0)",
    "CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
    "CudaAPIError: [CUresult.CUDA_ERROR_OUT_OF_MEMORY] Call to cuMemAlloc results in "
    "CUDA_ERROR_OUT_OF_MEMORY",
]
NOT_SAID = [
    "MemoryError: Unable to allocate 8.00 TiB for an array",
    "RuntimeError: out of patience",
    "ResourceExhaustedError: OOM when allocating tensor with shape[9] by allocator cpu",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 999",
    "CUDA error: device-side assert triggered",
]


@pytest.mark.parametrize("line", SAID)
def test_tasks_and_commands_that_ran_out_are_known_alike(line: str) -> None:
    kind, _, message = line.partition(": ")
    raised = type(kind.rpartition(".")[2], (RuntimeError,), {})(message)
    assert is_out_of_memory(raised)
    assert says_out_of_memory(f"{kind.rpartition('.')[2]}: {message}"), "as a note has it"
    assert fault_of(raised) is Fault.MEMORY
    failure = explain(End(1, err=f"Traceback\n{line}\n"))
    assert failure is not None
    assert failure.kind == Cause.GPU_MEMORY.value


@pytest.mark.parametrize("line", NOT_SAID)
def test_other_failures_are_not_taken_for_it(line: str) -> None:
    kind, _, message = line.partition(": ")
    base = MemoryError if kind == "MemoryError" else RuntimeError
    assert not is_out_of_memory(type(kind.rpartition(".")[2], (base,), {})(message))
    assert not says_out_of_memory(line)


def test_the_cause_of_an_error_counts_too() -> None:
    try:
        try:
            raise simulated.OutOfMemory("x")
        except simulated.OutOfMemory as error:
            raise ValueError("the batch failed") from error
    except ValueError as error:
        assert is_out_of_memory(error)
    assert not is_out_of_memory(MemoryError("CUDA out of memory"))
