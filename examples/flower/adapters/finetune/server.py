"""The ServerApp: rounds until there are enough, and their bytes beside those of 32-bit floats."""

import logging
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from finetune.task import dense, method, problem
from thinwire.deploy import flower

app = ServerApp()


def show(record: dict[str, Any]) -> None:
    """A line a round."""
    tested = ", ".join(f"{name} {record[name]:.3f}" for name in ("perplexity", "accuracy") if name in record)
    print(
        f"round {record['round']}: {tested}, {record['up_bytes']:,} bytes up, {record['down_bytes']:,} down", flush=True
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; what comes of it lies in the folder `out`, the adapter in `out`/adapter."""
    logging.basicConfig(level=logging.WARNING)
    config = context.run_config
    parts = problem(config)
    result = flower.serve(
        grid,
        method(config),
        parts.model,
        int(config["clients"]),
        int(config["rounds"]),
        sample=int(config["sample"]),
        deadline=float(config["deadline"]),
        seed=int(config["seed"]),
        start="known",
        test=parts.test,
        out=str(config["out"]) or None,
        poll=float(config["poll"]),
        on_round=show,
    )
    sent, recipe = result.bytes_up + result.bytes_down, dense(result.params.layout.size, config)
    print(f"{sent:,} bytes; as 32-bit floats {recipe:,}: {sent / recipe:.2%}", flush=True)
