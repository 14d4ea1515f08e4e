"""A reader's own model and data, which every program of this folder trains: no line of it is counted for anyone.

Three clients hold scikit-learn's digits, 500 each; the other 297 are the test. Twenty rounds of one epoch each, batches
of 32, SGD at a rate of .1, all three clients in every round. FedProx pulls by ``MU``; the new method shortens what a
client sends to a norm of ``MOST``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLIENTS, ROUNDS, BATCH, LR, MU, MOST = 3, 20, 32, 0.1, 0.1, 0.1


class Net(nn.Module):
    """64 numbers in, 10 classes out; 4,810 parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def digits() -> tuple[Tensor, Tensor]:
    """All pictures, [1797, 64] from 0 to 1, and their classes."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def parts() -> list[tuple[Tensor, Tensor]]:
    """What each client holds."""
    x, y = digits()
    return [(x[i * 500 : i * 500 + 500], y[i * 500 : i * 500 + 500]) for i in range(CLIENTS)]


def test() -> tuple[Tensor, Tensor]:
    """What nobody trains on."""
    x, y = digits()
    return x[1500:], y[1500:]


def show(name: str, weights: Mapping[str, Tensor] | nn.Module) -> None:
    """A line with what a model reaches, and a digest of its weights."""
    net = Net()
    net.load_state_dict(weights.state_dict() if isinstance(weights, nn.Module) else dict(weights))
    x, y = test()
    accuracy = (net(x).argmax(1) == y).float().mean().item()
    digest = hashlib.blake2b(b"".join(w.numpy().tobytes() for w in net.state_dict().values()), digest_size=8)
    print(f"result: {name} {accuracy:.4f} {digest.hexdigest()}", flush=True)
