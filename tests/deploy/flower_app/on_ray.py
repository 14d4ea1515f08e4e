"""Runs on Flower's own simulation: ``on_ray.py FOLDER NODES NAME METHOD ...``, three rounds of each in FOLDER/NAME."""

import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from tested.parts import SEED, method, model, tasks

from thinwire.deploy import flower


def run(folder: Path, nodes: int, expression: str) -> None:
    """So many nodes, each of which is a call of an actor of Ray's."""
    server, dealt = ServerApp(), tasks(nodes)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        flower.serve(grid, method(expression), model, nodes, 3, seed=SEED, test=dealt[0], out=folder)

    def node(context: Context) -> flower.Node:
        client = int(context.node_config["partition-id"])
        return flower.Node(method(expression), model, dealt[client], folder / f"client-{client}")

    run_simulation(server, flower.client_app(node), nodes, backend_config={"client_resources": {"num_cpus": 1}})


if __name__ == "__main__":
    for name, expression in zip(sys.argv[3::2], sys.argv[4::2], strict=True):
        run(Path(sys.argv[1]) / name, int(sys.argv[2]), expression)
