"""DNI's auxiliary network: from a part's output it predicts the error gradient that the next part will send.

The method is :class:`~thinwire.pipeline.DNI`, which names its paper and the differences from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..ddp.worker import make_optimizer
from ..key import Key
from ..params import call_with
from ..train.precision import without_cache
from ..wire import State
from .memory import in_order, is_channels_last


class Auxiliary:
    """The network of one part, made at its first output, and the outputs that it has not learnt from yet."""

    def __init__(
        self, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer], key: Key, device: torch.device
    ) -> None:
        self.make, self.key, self.device = optimizer, key, device
        self.net: nn.Module | None = None
        self.optimizer: Optimizer | None = None
        self.untaught: deque[tuple[int, Tensor]] = deque()  # batch, output

    def guess(self, batch: int, out: Tensor) -> Tensor:
        """The error gradient of an output, predicted."""
        h = out.detach()
        net, _ = self._make(h.shape, self._type(h))
        with torch.no_grad(), without_cache(self.device):
            guess: Tensor = call_with(net, {n: b.clone() for n, b in net.named_buffers()}, (h,))
        self.untaught.append((batch, h))
        return guess

    def teach(self, batch: int, error: Tensor) -> None:
        """A step towards the error gradient that came for the oldest output."""
        number, h = self.untaught.popleft()
        assert number == batch
        net, optimizer = self._make(h.shape, self._type(h))
        optimizer.zero_grad()
        with without_cache(self.device):
            out = net(h)
        F.mse_loss(out, error.to(out.dtype)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def _type(self, h: Tensor) -> torch.dtype:
        """The type of the network's parameters: under autocast, which makes the outputs narrow, 32-bit floats."""
        return torch.float32 if torch.is_autocast_enabled(self.device.type) else h.dtype

    def _make(self, shape: Sequence[int], dtype: torch.dtype) -> tuple[nn.Module, Optimizer]:
        if self.net is None or self.optimizer is None:
            before = torch.get_rng_state()
            torch.manual_seed(self.key.number("auxiliary"))
            try:
                self.net = predictor(shape).to(self.device, dtype)
            finally:
                torch.set_rng_state(before)
            self.optimizer = make_optimizer(self.make, list(self.net.parameters()))
        return self.net, self.optimizer

    # -- to a checkpoint and back ---------------------------------------------

    def state(self) -> dict[str, State]:
        """``aux``: shape, network and optimiser; ``untaught``; and which of these lie in memory by pixel."""
        aux: Any = None
        if self.net is not None and self.optimizer is not None:
            aux = [self.net.shape, self.net.state_dict(), self.optimizer.state_dict()]
        untaught: Any = [[batch, h] for batch, h in self.untaught]
        return {
            "aux": aux,
            "untaught": untaught,
            "untaught_channels_last": [is_channels_last(h) for _, h in self.untaught],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        lasts = state.get("untaught_channels_last", [])
        self.untaught = deque(
            (batch, in_order(h.to(self.device), last)) for (batch, h), last in zip_longest(state["untaught"], lasts)
        )
        self.net = self.optimizer = None
        if state["aux"] is not None:
            shape, weights, kept = state["aux"]
            net, optimizer = self._make(shape, weights["0.weight"].dtype)
            net.load_state_dict(weights)
            optimizer.load_state_dict(kept)


def predictor(shape: Sequence[int]) -> nn.Module:
    """DNI's auxiliary network for activations [b, ...]; the last layer begins at zero."""
    width = shape[1] if len(shape) == 4 else shape[-1]
    layers: list[nn.Module] = []
    for _ in range(2):
        if len(shape) == 4:
            layers += [nn.Conv2d(width, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU()]
        else:
            layers += [nn.Linear(width, width), nn.ReLU()]
    last: Any = nn.Conv2d(width, width, 5, padding=2) if len(shape) == 4 else nn.Linear(width, width)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    made = nn.Sequential(*layers, last)
    made.shape = list(shape)  # type: ignore[assignment]
    return made
