"""Numba kernels in warm sessions: compiled once per session, numpy arrays in and out.

python examples/with_numba.py

On a GPU, `numba.cuda` kernels take numpy arrays as well, or tensors that are on the card already:
`numba.cuda.as_cuda_array(x)` of a parameter `x: torch.Tensor` copies nothing.
"""

from __future__ import annotations

import numba
import numpy as np

from postroom import Job, Master


@numba.njit
def _escape(c: complex, limit: int) -> int:
    z = 0j
    for n in range(limit):
        if abs(z) > 2.0:
            return n
        z = z * z + c
    return limit


def row(y: float, width: int = 72, limit: int = 60) -> np.ndarray:
    """One row of the Mandelbrot set."""
    return np.array([_escape(complex(x, y), limit) for x in np.linspace(-2.0, 0.6, width)])


def main() -> None:
    """Draw the set, row by row, in two sessions."""
    with Master("./base", agents=2) as master:
        rows = master.run(
            [Job("with_numba:row", y=float(y)) for y in np.linspace(-1.1, 1.1, 24)]
        ).results()
    for counts in rows:
        print("".join(" .:-=+*#%@"[min(9, int(n) // 7)] for n in counts))


if __name__ == "__main__":
    main()
