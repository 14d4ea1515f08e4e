"""FedGen: a generator of features, trained at the server, teaches clients what they have no data of.

Zhu, Hong, Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning",
ICML 2021, arXiv:2105.10056, Algorithm 1.

The server trains a generator G(y, e). From a label y and noise e it makes features that the model's head
takes for that label. The server sends G to clients, which is billed, and clients train their head on its
features too.

Differences from the paper: the head is the model's last linear layer. The generator is trained on the logits of the
mean head, weighted as ``weights`` says. For a linear head these are the mean of the clients' logits, which is what the
paper trains it on, and no head has to be sent beside the update. p(y) is counted over the replies of the round.
Clients are taught from the second round on, when there are counts and the generator has been trained (as in the
authors' code). The generator is trained by thinwire's Adam. There is no term for the diversity of what it makes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import check, require
from ..key import Key
from ..local import Local, LocalSGD, Loss, Net, Trainer
from ..losses import per_example, wide_enough
from ..optimizers import Adam, Optimizer
from ..params import Layout, Params
from ..ranges import Count, NonNegative
from ..task import Batch, Task, labels
from ..wire import State
from .base import Algorithm, Client, Message, Start, Sum
from .features import last_linear, layer

BATCH = 32  # features a step of the generator's training
CHUNK = 1000  # examples looked at together for their labels
MOST = 1 << 40  # of a label that are believed, whatever clients say


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    generator: Params
    opt: State  # of the generator's training
    labels: Tensor  # [classes] int64: how often each was counted in the last round


class Broadcast(NamedTuple):
    """What everyone is sent."""

    x: Params
    generator: Params
    labels: Tensor


class Reply(NamedTuple):
    """What a client sends back."""

    update: Params
    labels: Sum[Tensor]  # [classes] int64: c_k, how many examples it has of each


@dataclass(frozen=True)
class Taught(Loss):
    """l + weight * the head's cross-entropy on as many generated features."""

    generator: Params
    labels: Tensor
    weight: float
    head: str

    def __call__(self, net: Net, task: Task, batch: Batch) -> Float[Tensor, " b"]:
        losses = per_example(task.loss(net.module, batch))
        drawn, features = generate(self.generator, self.labels, len(losses), net.generator)
        device, head = losses.device, net.module.get_submodule(self.head)
        scores = wide_enough(head(features.to(device, next(head.parameters()).dtype)))
        return losses + self.weight * F.cross_entropy(scores, drawn.to(device), reduction="none")


@dataclass(frozen=True)
class FedGen(Algorithm):
    """Clients train on their data and, ``weight`` times, their head on features that the server's generator makes.

    After every round the generator takes ``steps`` steps of ``teacher``. Its inputs are ``noise`` random
    numbers and a label, it has one layer of ``hidden`` units, and its outputs are the head's inputs.
    ``head`` names the last layer, an ``nn.Linear`` with one output a class; None takes the one that was
    defined last. For tasks whose batches are (inputs, targets) with whole numbers as targets. Raises
    ``ValueError`` for a model without such a head, and for a negative ``weight`` or a size below 1.
    """

    paper = "Zhu, Hong, Zhou, ICML 2021, arXiv:2105.10056"

    local: Trainer = LocalSGD()
    weight: NonNegative = 1.0
    head: str | None = None
    hidden: Count = 128
    noise: Count = 32
    steps: Count = 50
    teacher: Optimizer = Adam(0.005)

    def prepare(self, module: nn.Module) -> nn.Module:
        name = last_linear(module) if self.head is None else self.head
        require(name is not None, "FedGen(): the model has no nn.Linear to be its head")
        assert name is not None
        part = layer(module, name, f"FedGen(head={self.head!r})")
        require(
            isinstance(part, nn.Linear) and part.weight.requires_grad,
            f"FedGen(head={self.head!r}): the head is a linear layer that is trained, this is {type(part).__name__}",
        )
        layout = Layout.of((n, p) for n, p in module.named_parameters() if p.requires_grad)
        require(
            self._head(layout) == name,
            f"FedGen(): the last kernel of the model, {self._head(layout)!r}, is not its last linear layer: name the "
            f"head, e.g. head={name!r}",
        )
        return module

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        classes, features = x[_name(self._head(x.layout), "weight")].shape
        generator = fresh(self.noise, self.hidden, classes, features, key).to(x.layout.dtype)
        counts = torch.zeros(classes, dtype=torch.int64, device="cpu")
        server = Server(x, generator, self.teacher.init(generator), counts)
        return Start(server, Broadcast(x.zeros(), generator.zeros(), counts), None, Reply(x.zeros(), counts))

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x, server.generator, server.labels)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        loss = None
        if int(view.labels.sum()):
            loss = Taught(view.generator, view.labels, self.weight, self._head(view.x.layout))
        y = yield Local(view.x, self.local, loss=loss)
        return Reply(y.x - view.x, count_classes(task, len(view.labels))), state

    def admit(self, view: State, reply: Message, examples: int, clip: float | None) -> Message:
        believed = bool(((reply.labels >= 0) & (reply.labels <= examples)).all())  # so that no sum wraps round
        check(believed and int(reply.labels.sum()) <= examples, f"labels of {examples} examples")
        return reply

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        x, counts = server.x + mean.update, mean.labels.clamp(0, MOST).to(torch.int64)
        if not counts.any():
            return server._replace(x=x, labels=counts)
        name = self._head(x.layout)
        weight, bias = x[_name(name, "weight")], dict(x.items()).get(_name(name, "bias"))
        generator, opt, draws = server.generator, server.opt, key.generator("generator")
        for _ in range(self.steps):
            flat = generator.flat.detach().requires_grad_()
            drawn, features = generate(Params(generator.layout, flat), counts, BATCH, draws)
            F.cross_entropy(F.linear(features, weight, bias), drawn).backward()  # type: ignore[no-untyped-call]
            assert flat.grad is not None
            generator, opt = self.teacher.step(generator, Params(generator.layout, -flat.grad), opt)
        return Server(x, generator, opt, counts)

    def _head(self, layout: Layout) -> str:
        """The head's name: as given, or the module of the model's last kernel that is a matrix."""
        if self.head is not None:
            return self.head
        pairs = zip(layout.names, layout.shapes, strict=True)
        kernels = [name for name, shape in pairs if len(shape) == 2 and name.rpartition(".")[2] == "weight"]
        require(bool(kernels), "FedGen(): the model has no trained linear layer to be its head")
        return kernels[-1].rpartition(".")[0]


def _name(head: str, part: str) -> str:
    return f"{head}.{part}" if head else part


def fresh(noise: int, hidden: int, classes: int, features: int, key: Key) -> Params:
    """A generator before its training: two layers, initialised as torch's linear layers are."""
    sizes, draws, named = ((hidden, noise + classes), (features, hidden)), key.generator("generator"), []
    for i, (rows, columns) in enumerate(sizes):
        for name, shape in ((f"layer{i}.weight", (rows, columns)), (f"layer{i}.bias", (rows,))):
            values = torch.rand(shape, generator=draws, dtype=torch.float32, device="cpu")
            named.append((name, (values * 2 - 1) / math.sqrt(columns)))
    return Params.of(named)


def generate(
    generator: Params, counts: Int64[Tensor, " c"], num: int, draws: torch.Generator
) -> tuple[Int64[Tensor, " n"], Float[Tensor, "n f"]]:
    """Labels as often as they were counted, and features for them."""
    classes = len(counts)
    drawn = torch.multinomial(counts.double(), num, replacement=True, generator=draws)
    noise = generator["layer0.weight"].shape[1] - classes
    inputs = torch.cat(
        [
            torch.randn(num, noise, generator=draws, dtype=torch.float32, device="cpu"),
            F.one_hot(drawn, classes).float(),
        ],
        1,
    )
    inputs = inputs.to(generator.flat.dtype)
    inside = F.relu(F.linear(inputs, generator["layer0.weight"], generator["layer0.bias"]))
    return drawn, F.linear(inside, generator["layer1.weight"], generator["layer1.bias"])


def count_classes(task: Task, classes: int) -> Int64[Tensor, " c"]:
    """How many targets of each class a client has."""
    total = torch.zeros(classes, dtype=torch.int64, device="cpu")
    for start in range(0, len(task), CHUNK):
        batch = task.batch(torch.arange(start, min(start + CHUNK, len(task)), device="cpu"))
        targets = labels(batch, "FedGen").flatten()
        require(
            int(targets.min()) >= 0 and int(targets.max()) < classes,
            f"FedGen: a target of {int(targets.max())} for a head of {classes} outputs: name the model's last layer",
        )
        total += torch.bincount(targets, minlength=classes)
    return total
