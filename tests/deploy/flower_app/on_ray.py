"""Runs on Flower's own simulation: ``on_ray.py FOLDER NAME METHOD ...``, three rounds of each in FOLDER/NAME."""

import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from tested.parts import SEED, method, model, tasks

from thinwire.deploy import flower


def run(folder: Path, expression: str) -> None:
    """Three nodes, each an actor of Ray's."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        flower.serve(grid, method(expression), model, 3, 3, seed=SEED, test=tasks()[0], out=folder)

    def node(context: Context) -> flower.Node:
        client = int(context.node_config["partition-id"])
        return flower.Node(method(expression), model, tasks()[client], folder / f"client-{client}")

    run_simulation(server, flower.client_app(node), 3, backend_config={"client_resources": {"num_cpus": 1}})


if __name__ == "__main__":
    for name, expression in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        run(Path(sys.argv[1]) / name, expression)
