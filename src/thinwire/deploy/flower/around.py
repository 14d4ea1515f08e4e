"""A mod around a Flower client that is there already: its train function stays as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from torch import nn

from ...algorithms.base import Algorithm
from ...errors import CombinationError, require
from ...federated.client import ClientState, Reply, Round
from ...federated.messages import Form
from ...federated.privacy import Privacy
from ...federated.stream import View
from ...key import Key
from ...local import Local, LocalSGD, Trained
from ...train.slot import Slot
from ..client import Node
from .app import Handler, Mod, answer_of, folder_of, reply_to

ARRAYS, CONFIG = "arrays", "config"  # the names of the records in Flower's own strategies


def mod(algorithm: Algorithm, model: nn.Module | Callable[[], nn.Module], *, privacy: Privacy | None = None) -> Mod:
    """Two added lines for a ClientApp that trains in its own way::

        from thinwire.deploy import flower
        app = ClientApp(mods=[flower.mod(FedAvg(up=TopK(0.01)), Net)])

    Its train function gets an ArrayRecord ``arrays`` (the model's ``state_dict``) and a
    ConfigRecord ``config`` (``server-round`` and ``lr``), and answers with ``arrays`` and a
    MetricRecord with ``num-examples`` and, if it likes, ``train_loss`` and ``num-steps``, as
    for Flower's own strategies. A method that bends local steps (SCAFFOLD, FedProx, ...) is
    refused: for these a client gives its task to :func:`client_app`. ``privacy`` is what the client itself sees to
    below a secure sum, as of a :class:`~thinwire.deploy.client.Node`.
    """

    def around(message: Message, context: Context, call_next: Handler) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            return call_next(message, context)
        folder = folder_of(context)

        def answer(call: bytes) -> tuple[bytes, float]:
            return answer_of(Theirs(algorithm, model, folder, message, context, call_next, privacy), call)

        return reply_to(message, context, answer)

    return around


class Theirs(Node):
    """A client whose training is somebody else's function."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module | Callable[[], nn.Module],
        folder: Path,
        message: Message,
        context: Context,
        call_next: Handler,
        privacy: Privacy | None,
    ) -> None:
        self.unseen = Unseen()
        super().__init__(algorithm, model, self.unseen, folder, privacy=privacy)
        self.message, self.context, self.call_next = message, context, call_next

    def probe(self, slot: Slot) -> None:
        """The module says which buffers move: there is nothing here to train on."""
        slot.probe()

    def round(self, slot: Slot, form: Form, view: View, own: ClientState, key: Key) -> Reply:
        """The client's half of the method, where each request for training goes to their function."""
        began = time.perf_counter()
        round = Round(self.algorithm, form, self.unseen, view, own, key)
        slot.load_buffers(round.buffers)
        while round.request is not None:
            round.take(self.train(slot, round.request, key))
        return round.reply(slot.buffers(), time.perf_counter() - began)

    def train(self, slot: Slot, request: Local, key: Key) -> Trained:
        """What their function makes of a model."""
        bent = [name for name, value in zip(request._fields[2:], request[2:], strict=True) if value]
        trainer = request.trainer
        bent += [name for name in ("prox", "momentum", "warmup", "clip", "keep") if getattr(trainer, name, None)]
        bent += [] if isinstance(trainer, LocalSGD) else [type(trainer).__name__]
        bent += ["parameters that are rounded copies of wider ones"] if slot.rounded else []
        if bent:
            raise CombinationError(
                f"{self.algorithm!r} asks for more than plain training ({', '.join(bent)}), which a train function of "
                f"one's own does not do: give a task to flower.client_app(...)"
            )
        slot.load(request.x)
        config = ConfigRecord({"server-round": key.round, "lr": trainer.rate(key)})
        arrays = ArrayRecord({name: value.cpu() for name, value in slot.module.state_dict().items()})
        content = self.message.content
        self.message.content = RecordDict({ARRAYS: arrays, CONFIG: config})
        try:
            reply = self.call_next(self.message, self.context)
        finally:
            self.message.content = content
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        metrics: Mapping[str, Any] = next(iter(reply.content.metric_records.values()), MetricRecord())
        require("num-examples" in metrics, "the train function must answer with a metric num-examples")
        require(len(reply.content.array_records) == 1, "the train function must answer with the model's arrays")
        values = next(iter(reply.content.array_records.values())).to_torch_state_dict()
        for name in slot.still:
            require(
                name not in values or torch.equal(values[name].to(slot.first[name]), slot.first[name].cpu()),
                f"the train function moved buffer {name!r}, which is taken for one that stays and would be lost: write "
                f"to it in the forward pass of the module's own class",
            )
        slot.module.load_state_dict(values)
        self.unseen.examples = int(metrics["num-examples"])
        steps = int(metrics.get("num-steps", trainer.num_steps(self.unseen.examples)))
        loss, rates = float(metrics.get("train_loss", 0.0)), trainer.rate(key) * steps
        return Trained(slot.params(), steps, loss, rates=rates)


class Unseen:
    """The task of a client whose examples are in a function of its own."""

    examples = 1  # until it has said how many there are

    def __len__(self) -> int:
        return self.examples

    def batch(self, *_: Any) -> NoReturn:
        raise CombinationError("this method looks at examples, which only the train function has")

    loss = metrics = batch
