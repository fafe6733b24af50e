"""CuPy kernels in warm sessions: arrays of CuPy where they are asked for, numpy arrays back.

python examples/with_cupy.py     needs a GPU: CuPy has no CPU
"""

from __future__ import annotations

import cupy
import numpy as np

from postroom import Job, Master


def spectrum(x: cupy.ndarray, parts: int) -> cupy.ndarray:
    """The strongest frequencies of a signal; `x` arrives on the card, the result goes back."""
    strength = cupy.abs(cupy.fft.rfft(x))
    return cupy.sort(cupy.argsort(strength)[-parts:])


def main() -> None:
    """Find the frequencies of some sums of sines, two at a time."""
    t = np.arange(4096) / 4096
    signals = [np.sin(2 * np.pi * t * a) + np.sin(2 * np.pi * t * b) for a, b in ((5, 9), (7, 80))]
    with Master("./base", agents=2) as master:
        print(master.run([Job("with_cupy:spectrum", x=x, parts=2) for x in signals]).results())


if __name__ == "__main__":
    main()
