"""What a run leaves behind."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..algorithms.around import adapts
from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..config import complete
from ..errors import require
from ..params import Params
from ..version import code_version
from .ledger import Ledger
from .network import transfer

Record = dict[str, Any]
RATES = (1, 10, 100)  # Mbit/s of the tables


NONE = "no client has a model of its own here; result.module is the one that all share"
MADE = (
    "it makes a client's model of the client's examples, which are not here: ask the result of the run, or give the "
    "run tests of the clients' own (client_tests), with which their models are saved"
)


class Predictor(ABC):
    """What was trained, ready to predict: modules on the CPU, in evaluation mode."""

    algorithm: Algorithm
    module: nn.Module  # that all share
    clients: int  # that have models of their own here
    own_module: Callable[[int], nn.Module] | None
    beside: Mapping[str, nn.Module]  # trained beside the module: FedSM's ``selector``
    served: nn.Module | None  # another model to predict with, of a method that has one: Averaged's average

    @property
    def model(self) -> nn.Module:
        """The module that all share: another name of ``module``."""
        return self.module

    def personal(self, client: int) -> nn.Module:
        """The module with a client's own model, on the CPU and in evaluation mode: another copy at each call.

        Of a method whose clients have models of their own, and of any with ``buffers="local"``, whose clients have
        norm statistics of their own. A client that never took part has what it began with. Raises ``ValueError`` where
        clients have no model of their own, where the run was a deployment, whose clients keep theirs, and where the
        run has made more rounds since.
        """
        if self.own_module is None:
            raise ValueError(f"{self.algorithm!r}: {MADE if adapts(self.algorithm) else NONE}")
        require(0 <= client < self.clients, f"client {client}: the run has clients 0 to {self.clients - 1}")
        return self.own_module(client)

    def predict(self, inputs: Any, client: int | None = None) -> Any:
        """What the trained models make of a batch of ``inputs``, on the CPU; with ``client``, that client's own module.

        Without ``client`` it is the method's prediction. Of most methods it is that of the module that all share. FedSM
        asks its selector for each example, Ensemble all models.
        """
        module = None if client is None else self.personal(client)
        with torch.no_grad():
            return self.algorithm.predict(self, inputs) if module is None else module(inputs)

    @torch.no_grad()
    def selected(self, inputs: Any) -> Tensor:
        """The client whose model :meth:`predict` takes for each example, -1 for the shared one; [examples], int64.

        Raises ``ValueError`` for a method that does not select.
        """
        return self.algorithm.selected(self, inputs)


class Predicting(nn.Module):
    """What a result predicts, as a module that takes inputs on any device."""

    def __init__(self, result: Predictor) -> None:
        super().__init__()
        self.result = result

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """Outputs for one tensor of inputs. Raises ``ValueError`` for a task that gives its model anything else."""
        inputs = given[0] if len(given) == 1 and not named else None
        if not isinstance(inputs, Tensor):
            what, name = ", ".join(named) or ", ".join(type(x).__name__ for x in given), type(self.result.algorithm)
            raise ValueError(
                f"{name.__name__} predicts by several models for examples in one tensor, and this task gives its model "
                f"{what}: take a method with one model a client, such as SoftPull"
            )
        outputs: Tensor = self.result.predict(inputs.cpu())
        return outputs.to(inputs.device)


@dataclass
class Result(Predictor):
    """The records of every round, the ledger, the final model."""

    algorithm: Algorithm
    setting: dict[str, Any]
    rounds: list[Record]
    ledger: Ledger
    params: Params
    module: nn.Module
    path: Path | None = None
    clients: int = 0  # that have models of their own here
    own_module: Callable[[int], nn.Module] | None = None
    beside: Mapping[str, nn.Module] = field(default_factory=dict)
    served: nn.Module | None = None
    asked: Auto | None = None  # what chose the algorithm
    chosen: list[Record] = field(default_factory=list)  # what it chose, and why, oldest first

    @property
    def accuracy(self) -> float | None:
        """Of the last round that was evaluated on the test set, 0 to 1. None where it is NaN too."""
        return self._last("accuracy")

    @property
    def best_accuracy(self) -> float | None:
        """The best of all rounds, 0 to 1."""
        return max(self._values("accuracy"), default=None)

    @property
    def bytes_up(self) -> int:
        """Bytes from clients to server, headers included."""
        return sum(r["up_bytes"] for r in self.rounds)

    @property
    def bytes_down(self) -> int:
        """Bytes from server to clients, headers included, once for each client that was sent to."""
        return sum(r["down_bytes"] for r in self.rounds)

    @property
    def personal_up(self) -> int:
        """Of ``bytes_up`` those of clients' own models, which FedSM and SoftPull mix. All others are shared."""
        return sum(r.get("up_personal", 0) for r in self.rounds)

    @property
    def personal_down(self) -> int:
        """Of ``bytes_down`` those that went to one client alone."""
        return sum(r.get("down_personal", 0) for r in self.rounds)

    def _values(self, name: str) -> list[float]:
        return [r[name] for r in self.rounds if r.get(name) is not None]

    def _last(self, name: str) -> float | None:
        """The value of the last round that has one; None where that is no finite number."""
        value: float | None = next((r[name] for r in reversed(self.rounds) if name in r), None)
        return value

    def summary(self) -> Record:
        """One object: the complete expression, the setting, the totals."""
        last = self.rounds[-1] if self.rounds else {}
        slowest = sum(r["slowest_bytes"] for r in self.rounds)
        method = self.algorithm if self.asked is None else self.asked
        return {
            "name": repr(method),
            "expression": complete(method),
            "version": code_version(),
            **self.setting,
            **({"chosen": self.chosen} if self.chosen else {}),
            "rounds": len(self.rounds),
            "accuracy": self.accuracy,
            "best_accuracy": self.best_accuracy,
            **{name: self._last(name) for name in CLIENTS},
            **{name: self._last(name) for name in (*DICE, *BESIDE) if self._values(name)},
            "test_loss": self._last("test_loss"),
            "train_loss": last.get("train_loss"),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            **{name: sum(r[name] for r in self.rounds) for name in COUNTED},
            **{name: sum(r[name] for r in self.rounds) for name in PERSONAL if name in last},
            "seconds": sum(r["seconds"] for r in self.rounds),
            "network_seconds": {str(rate): transfer(slowest, rate) for rate in RATES},
            "clock": last.get("clock", 0.0),
        }


CLIENTS = tuple(f"client_accuracy{part}" for part in ("", "_spread", "_p10", "_worst", "_before", "_shared"))
DICE = tuple(name.replace("accuracy", "dice") for name in ("accuracy", *CLIENTS))  # where pictures are segmented
BESIDE = tuple(f"{kind}_{name}" for kind in ("served", "predicted") for name in ("accuracy", "dice", "loss"))
COUNTED = ("up_payload", "up_framing", "down_payload", "down_framing", "up_floats", "down_floats", "lost_replies")
PERSONAL = ("up_personal", "down_personal")  # where a method sends to single clients
