"""The ServerApp: rounds until there are enough."""

import logging
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from quickstart.task import method, problem
from thinwire.deploy import flower

app = ServerApp()


def show(record: dict[str, Any]) -> None:
    """A line a round."""
    accuracy = f"{record['accuracy']:.1%}" if "accuracy" in record else ""
    answers = record["clients"] - record["lost_replies"]
    up, down = record["up_bytes"], record["down_bytes"]
    print(f"round {record['round']}: {accuracy}, {answers} answers, {up:,} bytes up, {down:,} down", flush=True)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; what comes of it lies in the folder `out`."""
    logging.basicConfig(level=logging.WARNING)
    config = context.run_config
    parts = problem(config)
    flower.serve(
        grid,
        method(config),
        parts.model,
        int(config["clients"]),
        int(config["rounds"]),
        sample=int(config["sample"]),
        take=int(config["take"]),
        deadline=float(config["deadline"]),
        mbit=float(config["mbit"]) or None,
        seed=int(config["seed"]),
        start=config["start"],
        test=parts.test,
        out=str(config["out"]) or None,
        poll=float(config["poll"]),
        on_round=show,
    )
