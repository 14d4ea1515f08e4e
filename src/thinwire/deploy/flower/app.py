"""The clients' side: a ClientApp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from ...errors import CombinationError, require
from ...federated.envelope import read_call
from ..client import Node
from .post import pack, unpack

ARRAYS = ("secagg_mod", "secaggplus_mod", "fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
"""Mods of Flower's that work on arrays of floats."""


def client_app(make: Callable[[Context], Node], mods: Sequence[Mod] = ()) -> ClientApp:
    """The ClientApp of a client: ``make`` gives its :class:`Node`, for the context that Flower has of it.

    A client has a name, which it keeps as long as it lives: ``name`` in its SuperNode's
    ``--node-config``, or the ``partition-id`` that is there. Clients are numbered in the
    order of their names. ``mods`` go around it; those that need arrays of floats are refused.
    """
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in ARRAYS:
            raise CombinationError(
                f"{name} works on a client's arrays of floats, and a packet here is an opaque blob whose sum means "
                f"nothing: see docs/decisions/0006-federation.md; for differential privacy at the server there is "
                f"serve(..., privacy=Privacy(clip=1.0, noise=1.0))"
            )
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_to(message, context, lambda: make(context))

    return app


def reply_to(message: Message, context: Context, make: Callable[[], Node]) -> Message:
    """The reply to a message of the server's: to one without a word, the client's name."""
    call = unpack(message.content)
    if not call:
        return Message(pack(name_of(context).encode()), reply_to=message)
    node, mbit = make(), read_call(call).mbit
    answer = node.answer(call)
    # The link may have become slower than it was when it was measured: after a loss it is as good as unknown.
    return Message(pack(answer, 0.0 if node.lost else mbit), reply_to=message)


def name_of(context: Context) -> str:
    """What a client is called."""
    name = str(context.node_config.get("name", context.node_config.get("partition-id", "")))
    require(bool(name), "a client needs a name: flower-supernode --node-config 'name=\"clinic-1\"'")
    return name


def folder_of(context: Context) -> Path:
    """Where a client keeps its state: ``folder`` in its node's configuration, or one of its name in the user's home."""
    folder = context.node_config.get("folder")
    return Path(str(folder)) if folder else Path.home() / ".local" / "state" / "thinwire" / name_of(context)
