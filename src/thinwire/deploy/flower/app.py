"""The clients' side: a ClientApp. Nothing here imports torch before a client is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ...errors import CombinationError, require
from .awake import IDLE
from .post import pack, unpack
from .transfer import reply

if TYPE_CHECKING:
    from ..client import Node

Handler = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Handler], Message]
"""What Flower puts around a ClientApp's function: it is given the function too."""

ARRAYS = ("secagg_mod", "secaggplus_mod", "fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
"""Mods of Flower's that work on arrays of floats."""


def client_app(
    make: str | Callable[[Context], Node], mods: Sequence[Mod] = (), *, idle: int | float = 900.0
) -> ClientApp:
    """The ClientApp of a client: ``make`` gives its :class:`Node`, for the context that Flower has of it.

    ``make`` is best the name of a function, ``"quickstart.node:client"``: it is then called in a resident worker
    (:mod:`thinwire.deploy.flower.resident`), which holds model and data from one call to the next and ends after
    ``idle`` seconds without one. Then neither the function's module nor torch is imported by the processes that Flower
    starts, if the module of the ClientApp imports neither. The context that it is given has an empty ``state``. A
    function itself is called in Flower's process, for each call anew.

    A client has a name, which it keeps as long as it lives: ``name`` in its SuperNode's
    ``--node-config``, or the ``partition-id`` that is there. Clients are numbered in the
    order of their names. ``mods`` go around it; those that need arrays of floats are refused.
    """
    require(idle > 0, f"idle={idle}: seconds until a worker without work ends are positive")
    fits = not isinstance(make, str) or all(part.strip() for part in make.partition(":"))
    require(fits, f"make={make!r}: name the client's function as 'module:function'")
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
        if not isinstance(make, str):
            return reply_to(message, context, lambda call: answer_of(make(context), call))

        from .resident import ask

        return reply_to(message, context, lambda call: ask(folder_of(context), make, context, call, float(idle)))

    return app


def reply_to(message: Message, context: Context, answer: Callable[[bytes], tuple[bytes, float]]) -> Message:
    """The reply to a message of the server's: to an empty blob the client's name, to one without a blob the same.

    ``answer`` gives the answer to a call, and the rate in Mbit/s by which it is cut. What is large comes and goes in
    chunks (:mod:`thinwire.deploy.flower.transfer`).
    """
    if not message.content:
        time.sleep(IDLE)
        return Message(RecordDict(), reply_to=message)
    data = unpack(message.content)
    if not data:
        return Message(pack(name_of(context).encode()), reply_to=message)
    return Message(pack(*reply(data, folder_of(context) / ".chunks", answer)), reply_to=message)


def answer_of(node: Node, call: bytes) -> tuple[bytes, float]:
    """A client's answer to a call, and the rate by which it is cut.

    The link may have become slower than it was when it was measured: after a loss it is as good as unknown.
    """
    answer = node.answer(call)
    return answer, 0.0 if node.lost else node.mbit


def name_of(context: Context) -> str:
    """What a client is called."""
    name = str(context.node_config.get("name", context.node_config.get("partition-id", "")))
    require(bool(name), "a client needs a name: flower-supernode --node-config 'name=\"clinic-1\"'")
    return name


def folder_of(context: Context) -> Path:
    """Where a client keeps its state: ``folder`` in its node's configuration, or one of its name in the user's home."""
    folder = context.node_config.get("folder")
    return Path(str(folder)) if folder else Path.home() / ".local" / "state" / "thinwire" / name_of(context)
