"""The kernel: what one job computes. Edit it, run main.py again; agents need not be restarted.

An argument annotated with torch.Tensor arrives as a tensor on the session's device, even if it was
sent as a numpy array; without the annotation it arrives as it was sent, on the CPU. `shared` and
`device` are passed only if they are named here. Return numbers, strings, arrays, tensors,
dataclasses, and lists or dicts of them.
"""

import torch


def expensive_task(
    a: torch.Tensor, b: torch.Tensor, shared: dict[str, torch.Tensor], device: torch.device
) -> dict[str, object]:
    """Contract two tensors, weigh the product, and keep what is worth keeping of it."""
    product = torch.tensordot(a, b, dims=1)
    weighted = product * shared["weights"]
    return {
        "norm": float(torch.linalg.norm(weighted)),
        "diagonal": torch.diagonal(weighted),
        "device": str(device),
    }
