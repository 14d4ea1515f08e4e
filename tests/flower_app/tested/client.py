"""One client, which a file may hold up."""

import time
from pathlib import Path

from flwr.app import Context

from tested.parts import method, model, tasks
from thinwire.run import flower
from thinwire.run.node import Node


def client(context: Context) -> Node:
    number, hold = int(context.node_config["partition-id"]), Path(str(context.run_config["hold"]))
    folder = flower.folder_of(context)
    if number == 2 and hold.is_file() and list(folder.rglob("pending.thinwire")):
        hold.with_suffix(".held").touch()
        while hold.exists():
            time.sleep(0.1)
    return Node(method(str(context.run_config["method"])), model, tasks()[number], folder)


app = flower.client_app(client)
