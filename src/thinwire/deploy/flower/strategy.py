"""For those who start a run as ``strategy.start(grid, ...)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as Base
from torch import nn

from ...algorithms.base import Algorithm
from ...errors import require
from ...federated.result import Record
from .loop import serve


class Strategy(Base):
    """:func:`serve` in the shape of Flower's strategies: ``Strategy(FedAvg(), Net, clients=3).start(grid)``.

    It adds nothing, and leaves things out. It cannot resume unless ``out=`` names a folder.
    It does not take initial arrays: both ends make the model under one seed. It does not
    configure or aggregate messages one by one, nor evaluate on clients: those methods raise.
    """

    def __init__(
        self, algorithm: Algorithm, model: nn.Module | Callable[[], nn.Module], clients: int, **options: Any
    ) -> None:
        require("rounds" not in options, "rounds belong to start(num_rounds=...)")
        self.algorithm, self.model, self.clients, self.options = algorithm, model, clients, options

    def summary(self) -> None:
        """Show the method."""
        print(f"{self.algorithm!r} on {self.clients} clients")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds. ``timeout`` is the deadline of each, in seconds."""
        require(initial_arrays is None, "initial_arrays: both ends make the model under one seed; give seed= instead")
        given = [name for name, value in (("train", train_config), ("evaluate", evaluate_config)) if value]
        require(not given, f"{given}: clients are told what to do by the method; put it into its LocalSGD(...)")
        require(evaluate_fn is None, "evaluate_fn: give test= to the strategy, a task that the server evaluates")
        result = serve(grid, self.algorithm, self.model, self.clients, num_rounds, deadline=timeout, **self.options)
        made = Result()
        made.arrays = ArrayRecord(result.module.state_dict())
        for record in result.rounds:
            made.train_metrics_clientapp[record["round"]] = _metrics(record, ("train_loss", "up_bytes", "down_bytes"))
            own = [name for name in record if name.startswith("client_")]
            made.evaluate_metrics_clientapp[record["round"]] = _metrics(record, own)
            beside = [name for name in record if name.startswith(("served_", "predicted_"))]
            made.evaluate_metrics_serverapp[record["round"]] = _metrics(record, (*TESTED, *beside))
        return made

    def configure_train(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("a round here is one piece, with what both ends keep of it: call start()")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


TESTED = ("accuracy", "dice", "mae", "test_loss")  # what `thinwire.losses.MEASURE` and the loss are called in a record


def _metrics(record: Record, names: Iterable[str]) -> MetricRecord:
    return MetricRecord({name: record[name] for name in names if record.get(name) is not None})
