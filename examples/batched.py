"""Many small jobs in few calls: what a GPU wants.

python examples/batched.py

With `batched=True`, a session passes jobs that are alike to the kernel together: `x` has a row for
each of them, and so has what the kernel returns. Each job still has its own result.
"""

from __future__ import annotations

import numpy as np
import torch

from postroom import Job, Master


def score(x: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
    """A score for each row; `bias` is a number in each job, and has one for each row here."""
    return {"score": torch.tanh(x).sum(dim=1) + bias, "jobs": torch.full((len(x),), len(x))}


def main() -> None:
    """Score two thousand vectors in two sessions."""
    vectors = np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32)
    jobs = [
        Job("batched:score", x=vector, bias=float(number)).options(batched=True)
        for number, vector in enumerate(vectors)
    ]
    with Master("./base", agents=2) as master:
        results = master.run(jobs).results()
    best = max(range(len(results)), key=lambda number: float(results[number]["score"]))
    print(f"job {best} has the best score, {float(results[best]['score']):.2f}")
    print(f"up to {max(int(one['jobs']) for one in results)} jobs shared a call")


if __name__ == "__main__":
    main()
