"""Flower's FedAvg over one number, which each client sends back as it came. Nothing here imports torch."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()
client = ClientApp()


class Timed(FedAvg):
    """Notes when each round begins."""

    began: list[float]

    def configure_train(self, *given: Any, **named: Any) -> Any:
        self.began.append(time.monotonic())
        return super().configure_train(*given, **named)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, each of one message to each client; the seconds of each are in the folder `out`."""
    config = context.run_config
    clients, rounds, out = int(config["clients"]), int(config["rounds"]), Path(str(config["out"]))
    strategy = Timed(1.0, 0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy.began = []
    strategy.start(grid, ArrayRecord({"x": Array(np.zeros(1, np.float32))}), rounds)
    times = [*strategy.began, time.monotonic()]
    seconds = [after - before for before, after in pairwise(times)]
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps({"seconds": seconds}))


@client.train()
def train(message: Message, context: Context) -> Message:
    """The array as it came."""
    arrays = next(iter(message.content.array_records.values()))
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
