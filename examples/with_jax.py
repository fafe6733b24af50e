"""JAX kernels in warm sessions: compiled once per session, arrays of JAX where they are asked for.

python examples/with_jax.py      on the CPU if JAX has no GPU
"""

from __future__ import annotations

import jax
import numpy as np

from postroom import Job, Master


@jax.jit
def _loss(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return ((x @ w - y) ** 2).mean()


def fit(x: jax.Array, y: jax.Array, lr: float, steps: int = 200) -> jax.Array:
    """Fit a line by gradient descent; `x` and `y` arrive as arrays of JAX, `w` as a numpy array."""
    w = jax.numpy.zeros(x.shape[1])
    gradient = jax.jit(jax.grad(_loss))
    for _ in range(steps):
        w = w - lr * gradient(w, x, y)
    return w


def main() -> None:
    """Try some learning rates, two at a time."""
    random = np.random.default_rng(0)
    x = random.normal(size=(256, 3)).astype("float32")
    y = x @ np.array([1.0, -2.0, 3.0], dtype="float32")
    with Master("./base", agents=2) as master:
        rates = [0.01, 0.03, 0.1]
        found = master.run([Job("with_jax:fit", x=x, y=y, lr=lr) for lr in rates]).results()
    for lr, w in zip(rates, found, strict=True):
        print(f"lr {lr:<5} w {np.round(w, 2)}")


if __name__ == "__main__":
    main()
