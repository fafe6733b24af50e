"""A small training loop as a job: it waits for free GPU memory, and measures what it needs.

python examples/train.py                 in this process (on the CPU if there is no GPU)
python examples/train.py --submit 4      four runs, in sessions of ./base
postroom profiles                        what was measured
"""

from __future__ import annotations

import argparse

import torch

import postroom


@postroom.job(policy="pack", retries=1)
def train(width: int = 64, steps: int = 200, lr: float = 0.01, seed: int = 0) -> float:
    """Fit a small network to a sine wave; return its last loss."""
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.linspace(-3, 3, 512, device=device)[:, None]
    model = torch.nn.Sequential(
        torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
    ).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(x), torch.sin(x))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()


@train.profile
def _light(width: int = 64, steps: int = 200, lr: float = 0.01, seed: int = 0) -> None:
    """A stand-in for a long training: two steps need as much memory as two hundred."""
    train.__wrapped__(width, 2, lr, seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--submit", type=int, default=0, metavar="N", help="submit N jobs to sessions"
    )
    options = parser.parse_args()
    if options.submit:
        futures = [train.submit(seed=seed) for seed in range(options.submit)]
        losses = [future.result() for future in futures]
    else:
        losses = [train()]
    print(*(f"{loss:.5f}" for loss in losses))
