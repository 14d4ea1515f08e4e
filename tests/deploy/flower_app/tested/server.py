"""The server, which notes its process, its log and the most memory that it has had."""

import logging
import os
import resource
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import thinwire as tw
from tested.parts import SEED, method, model, tasks
from thinwire.deploy import flower

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, out = context.run_config, Path(str(context.run_config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("thinwire").addHandler(logging.FileHandler(out / "log"))

    def peak(record: object) -> None:
        with open(out / "peaks", "a") as file:
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, file=file)

    (out / "pid").write_text(str(os.getpid()))
    clients, rounds = int(config["clients"]), int(config["rounds"])
    options: dict[str, Any] = {
        "deadline": float(config["deadline"]),
        "seed": SEED,
        "test": tasks()[0],
        "poll": 1.0,
        "on_round": peak,
        "start": str(config["start"]),
    }
    if int(config["buffer"]):
        options["buffer"] = tw.Buffered(int(config["buffer"]))
    if config["aggregate"]:
        options["aggregate"] = tw.parse(str(config["aggregate"]))
    if int(config["expel"]):
        options["expel"] = int(config["expel"])
    wide = partial(model, int(config["width"]), bool(config["norm"]), int(config["depth"]))
    flower.serve(grid, method(str(config["method"])), wide, clients, rounds, out=out, **options)
