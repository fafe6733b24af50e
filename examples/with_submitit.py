"""submitit: code that was written for Slurm, with real GPUs for each job of this machine.

python examples/with_submitit.py
"""

from __future__ import annotations

import os

import submitit


def train(lr: float) -> str:
    """Stand in for a training."""
    return f"lr {lr} on GPU {os.environ['CUDA_VISIBLE_DEVICES']}"


def main(folder: str = "submitit_jobs") -> list[str]:
    """Run the example."""
    executor = submitit.AutoExecutor(folder, cluster="postroom")
    executor.update_parameters(gpus_per_node=1, timeout_min=60)
    jobs = executor.map_array(train, [0.1, 0.2])
    return [job.result() for job in jobs]


if __name__ == "__main__":
    print(*main(), sep="\n")
