"""The clients' side: a ClientApp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...errors import require
from ..node import Node
from .blob import packed, unpacked


def client_app(make: Callable[[Context], Node]) -> ClientApp:
    """The ClientApp of a client: ``make`` gives its :class:`Node`, for the context that Flower has of it.

    A client has a name, which it keeps as long as it lives: ``name`` in its SuperNode's
    ``--node-config``, or the ``partition-id`` that is there. Clients are numbered in the
    order of their names.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return replied(message, context, lambda: make(context))

    return app


def replied(message: Message, context: Context, make: Callable[[], Node]) -> Message:
    """The reply to a message of the server's: to one without a word, the client's name."""
    call = unpacked(message.content)
    return Message(packed(make().answer(call) if call else name_of(context).encode()), reply_to=message)


def name_of(context: Context) -> str:
    """What a client is called."""
    name = str(context.node_config.get("name", context.node_config.get("partition-id", "")))
    require(bool(name), "a client needs a name: flower-supernode --node-config 'name=\"clinic-1\"'")
    return name


def folder_of(context: Context) -> Path:
    """Where a client keeps its state: ``folder`` in its node's configuration, or one of its name in the user's home."""
    folder = context.node_config.get("folder")
    return Path(str(folder)) if folder else Path.home() / ".local" / "state" / "thinwire" / name_of(context)
