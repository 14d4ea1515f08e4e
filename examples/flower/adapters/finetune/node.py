"""One client, in its worker: a process that makes the model once, and stays from one call to the next."""

from flwr.app import Context

from finetune.task import method, problem
from thinwire.deploy import flower


def client(context: Context) -> flower.Node:
    """The client of a SuperNode that was started with --node-config 'partition-id=0'."""
    parts = problem(context.run_config)
    task = parts.tasks[int(context.node_config["partition-id"])]
    return flower.Node(method(context.run_config), parts.model, task, flower.folder_of(context))
