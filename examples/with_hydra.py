"""Hydra: each job of a sweep on a GPU of its own.

python examples/with_hydra.py --multirun hydra/launcher=postroom lr=0.1,0.2,0.3
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import hydra
from hydra.core.config_store import ConfigStore


@dataclass
class Settings:
    """The settings of one training."""

    lr: float = 0.1


ConfigStore.instance().store(name="settings", node=Settings)


@hydra.main(version_base=None, config_name="settings")
def train(settings: Settings) -> float:
    """Stand in for a training; return its loss."""
    loss = (settings.lr - 0.3) ** 2
    print(f"lr {settings.lr} on GPU {os.environ.get('CUDA_VISIBLE_DEVICES')}: loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    train()
