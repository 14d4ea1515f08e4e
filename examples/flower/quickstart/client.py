"""The ClientApp: one SuperNode is one client."""

from flwr.app import Context

from quickstart.task import method, problem
from thinwire.run import flower
from thinwire.run.node import Node


def client(context: Context) -> Node:
    """The client of a SuperNode that was started with --node-config 'partition-id=0'."""
    parts = problem(context.run_config)
    task = parts.tasks[int(context.node_config["partition-id"])]
    return Node(method(context.run_config), parts.model, task, flower.folder_of(context))


app = flower.client_app(client)
