"""Small models of linear layers, fastText, and networks of convolutions, trained in C, one client after the other.

A small model stays in the processor's cache, and of a vocabulary a step touches the words of its texts alone.
What torch spends on such a client is overhead (its steps taken singly) or memory traffic (many
models side by side); the arithmetic is the smallest part. Convolutions (:mod:`thinwire.train.convnet`) come before
linear layers, and of them arithmetic is most: C leaves out what a pool makes zero. The loops are ``tw_chains`` in
``kernels/native``; the numbers are those of :mod:`thinwire.train.one` to rounding.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..algorithms.fedpara import factors
from ..errors import NonFinite
from ..kernels import native
from ..key import Key
from ..local import Local, LocalSGD, Memory, Trained, Trainer
from ..losses import cross_entropy
from ..models.fasttext import FILL, FastText
from ..models.resnet import ResNet
from ..params import Layout, Params
from ..task import Supervised
from .batches import order
from .convnet import Convolutions, Front, Rooms, convolutions, stages_of
from .one import explain_divergence

AFTER = {nn.Identity: 0, nn.ReLU: 1, nn.Tanh: 2, nn.Sigmoid: 3}
AT_ONCE = 5  # clients in C before the next are made ready: what they gave is then still in the cache
PARTS = ("examples", "convolutions", "linear layers", "back through linear layers", "back through convolutions", "bend")
"""The parts of a step in C. Those on the way back move the weights too, unless a step of SGD is bent."""


class ChainLayer(NamedTuple):
    """A linear layer, and where its numbers lie in the model."""

    inputs: int
    outputs: int
    weight: int  # X1 where the weights are a product
    bias: int  # -1: none
    after: int = AFTER[nn.Identity]
    rank: int = 0  # of the factors of a product (FedPara); 0: the weights are themselves in the model
    y1: int = -1
    x2: int = -1
    y2: int = -1

    @property
    def size(self) -> int:
        """Entries in the model."""
        weights = 2 * self.rank * (self.inputs + self.outputs) if self.rank else self.inputs * self.outputs
        return weights + (self.outputs if self.bias >= 0 else 0)


class WordTable(ctypes.Structure):
    """A vocabulary whose words' vectors are rows of the model; of 0 words where examples are rows of numbers."""

    _fields_ = (("place", ctypes.c_int64), ("vocabulary", ctypes.c_int64))


class Chain(NamedTuple):
    """The layers of a model as C takes them, :class:`ChainLayer` by layer."""

    layers: list[ChainLayer]
    flattens: bool  # whether it begins by making rows of its inputs
    words: WordTable  # whose mean is what the first layer takes
    convs: Convolutions  # whose outputs it takes where there are any

    @property
    def texts(self) -> bool:
        """Whether examples are ids of words. A step of plain SGD then costs the same, however large the model is."""
        return bool(self.words.vocabulary)

    def takes(self, task: Supervised) -> bool:
        """Whether the loops know this task: rows of floats, pictures or texts, classes, cross-entropy."""
        x, y, shape = task.inputs, task.targets, task.inputs.shape
        rows = shape[1:].numel() == self.layers[0].inputs and (x.ndim == 2 or self.flattens)
        if self.convs:
            rows = x.ndim == 4 and self.convs.features(*x.shape[1:]) == self.layers[0].inputs
        known = x.dtype == torch.float32 or (x.dtype == torch.uint8 and x.ndim == 4)
        if self.texts:
            rows, known = x.ndim == 2, x.dtype == torch.int64
        there = all(t.device.type == "cpu" and t.is_contiguous() and len(t) for t in (x, y))
        if not (rows and known and there and y.dtype == torch.int64 and y.ndim == 1 and task.loss_of is cross_entropy):
            return False
        low, high = torch.aminmax(y)
        return task.counts_all and int(low) >= 0 and int(high) < self.layers[-1].outputs

    def trains(self, trainer: Trainer) -> bool:
        """Whether the loops know this trainer: SGD, one learning rate for all steps, gradients as they are."""
        return type(trainer) is LocalSGD and not trainer.warmup and trainer.clip is None


class Examples(native.Struct):
    """Where the examples of a task that :meth:`Chain.takes` lie in memory, those of all clients."""

    _fields_ = (
        ("floats", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("plane", ctypes.c_int64),
        ("targets", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )

    def __init__(self, task: Supervised) -> None:
        x, targets = task.inputs, task.targets
        self.count = len(x)
        if x.dtype == torch.int64:
            self.point(words=x, targets=targets)
            self.length = x.shape[1]
            return
        if x.dtype == torch.float32:
            self.point(floats=x, targets=targets)
            return
        every = torch.arange(256, dtype=torch.uint8, device="cpu").view(-1, 1, 1, 1).expand(-1, x.shape[1], 1, 1)
        table = task.normalised(every).view(256, -1).t().contiguous()  # [channels, 256]
        self.point(bytes=x, table=table, targets=targets)
        self.plane = x.shape[2] * x.shape[3]


class _Client(native.Struct):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "begun", "own", "places")),
        *((name, ctypes.c_int64) for name in ("steps", "size")),
        *((name, ctypes.c_void_p) for name in ("anchor", "offset", "mask", "part", "velocity")),
        *((name, ctypes.c_float) for name in ("lr", "decay", "prox", "momentum")),
        ("loss", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("seen", "finite")),
        ("spent", ctypes.c_void_p),
        ("statistics", ctypes.c_void_p),
        ("room", ctypes.c_void_p),
        ("most", ctypes.c_int64),
    )


def chain(module: nn.Module, layout: Layout) -> Chain | None:
    """The module as the loops take it, if they know it and were compiled; else None.

    They know linear layers, fastText, and convolutions with linear layers behind them.
    """
    if native.library() is None or any(map(_bent, module.modules())):
        return None
    layers: list[ChainLayer] = []
    flattens, words = False, WordTable()
    stages = list(_stages(module))
    convs, count = convolutions(stages, layout)
    own = convs.size
    for name, stage in stages[count:]:
        if type(stage) is FastText and not (layers or flattens or convs):
            table = layout.spans.get(f"{name}words.weight")
            if table is None or not _plain(stage.words):
                return None
            words, own = WordTable(table[0], stage.words.num_embeddings), table[1]
            name, stage = f"{name}dense.", stage.dense
        if isinstance(stage, nn.Linear):
            layer = _layer(name, stage, layout)
            if layer is None:
                return None
            layers.append(layer)
        elif type(stage) in AFTER and layers and layers[-1].after == AFTER[nn.Identity]:
            layers[-1] = layers[-1]._replace(after=AFTER[type(stage)])
        elif type(stage) is nn.Flatten and stage.start_dim == 1 and stage.end_dim == -1 and not layers:
            flattens = True
        else:
            return None
    whole = sum(size for _, size, _ in layout.spans.values())
    if not layers or (convs and not (flattens or convs.means)) or whole != own + sum(layer.size for layer in layers):
        return None
    return Chain(layers, flattens, words, convs)


def _bent(module: nn.Module) -> bool:
    """Whether more is done in a module's passes, or to its gradients, than its class says."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    own = [(p._backward_hooks, p._post_accumulate_grad_hooks) for p in module.parameters(recurse=False)]
    return "forward" in vars(module) or any(hooks) or any(map(any, own))


def _plain(words: nn.Module) -> bool:
    """Whether a table of words is looked up as fastText makes it."""
    if type(words) is not nn.Embedding or words.padding_idx != FILL:
        return False
    return words.max_norm is None and not words.scale_grad_by_freq and not words.sparse


def _layer(name: str, stage: nn.Linear, layout: Layout) -> ChainLayer | None:
    """A linear layer as C takes it, dense or a product; None where it is frozen, used twice, or of another kind."""
    weights, rank = [f"{name}weight"], 0
    if type(stage) is not nn.Linear:
        names = factors(stage)
        if names is None:
            return None
        weights, rank = [f"{name}{factor}" for factor in names], stage.get_parameter(names[0]).shape[1]
    places = [layout.spans[part][0] for part in weights if part in layout.spans]
    bias = layout.spans.get(f"{name}bias")
    if len(places) < len(weights) or (bias is None) != (stage.bias is None):
        return None
    after, at = AFTER[nn.Identity], -1 if bias is None else bias[0]
    return ChainLayer(stage.in_features, stage.out_features, places[0], at, after, rank, *places[1:])


def train_chains(
    chain: Chain,
    tasks: Sequence[Supervised],
    requests: Sequence[Local],
    keys: Sequence[Key],
    spent: Tensor | None = None,
    statistics: Tensor | None = None,
    rooms: Rooms | None = None,
) -> Iterator[Trained]:
    """:func:`thinwire.train.one.train` of clients whose task ``chain`` takes, one after the other.

    The seconds of each of :data:`PARTS` are added to ``spent``, 64-bit floats. ``statistics`` are the running means and
    variances of norms, 32-bit floats, which move: of one client, then. ``rooms`` has memory for convolutions, which the
    next client of the same worker needs again. Raises :class:`NonFinite`, and ``IndexError`` for an example or a word
    that is not there.
    """
    lib = native.library()
    assert lib is not None
    native.keep_memory()
    examples, rooms = Examples(tasks[0]), rooms or Rooms()
    front = Front(chain.convs, tasks[0].inputs.shape[1:]) if chain.convs else None
    layers = (ctypes.c_int64 * (len(ChainLayer._fields) * len(chain.layers)))(
        *(n for layer in chain.layers for n in layer)
    )
    shared = ctypes.byref(chain.words), front and ctypes.byref(front), layers, len(chain.layers), ctypes.byref(examples)
    everyone = list(zip(tasks, requests, keys, strict=True))
    for start in range(0, len(everyone), AT_ONCE):
        some = everyone[start : start + AT_ONCE]
        made = [_client(*one, spent, statistics) for one in some]
        if front is not None:
            room = rooms.at_least(front, max(client.size for client in made))
            for client in made:
                client.most = room.most
                client.point(room=room.floats)
        clients = native.row(made)
        status = lib.tw_chains(clients, len(made), requests[0].x.layout.size, *shared)
        if status == -2:
            raise IndexError(f"a text has a word that is not one of the model's {chain.words.vocabulary}, 0 and up")
        if status == -3:
            raise IndexError(f"an index of a client is not one of the {examples.count} examples")
        native.check(status)
        for (task, request, key), client, owners in zip(some, clients, clients.owners, strict=True):
            trainer, layout, loss = request.trainer, request.x.layout, client.loss / client.seen
            if not (client.finite and math.isfinite(loss)):
                raise NonFinite(explain_divergence(task, trainer, loss, key))
            before = 0 if request.memory is None else request.memory.steps
            vectors = (Params(layout, owners["velocity"]),) if "velocity" in owners else ()
            ended = Memory(vectors, before + client.steps)
            yield Trained(Params(layout, owners["w"]), client.steps, loss, ended, trainer.rate(key) * client.steps)


def _client(task: Supervised, request: Local, key: Key, spent: Tensor | None, statistics: Tensor | None) -> _Client:
    """A client as C takes it, whose model and velocity are memory of its own."""
    trainer, x, begun = request.trainer, request.x, request.memory or request.trainer.begin(request.x.layout)
    places = order(task, request, key, key.generator("batches"))
    steps, size = places.shape
    client = _Client(steps=steps, size=size, lr=trainer.rate(key), decay=trainer.weight_decay, prox=trainer.prox)
    own = task.indices
    if own is not None:
        own = (own if own.dtype == torch.int64 else own.long()).contiguous()
    client.point(w=torch.empty_like(x.flat), begun=x.flat.contiguous(), own=own, places=places)
    if spent is not None or statistics is not None:
        client.point(spent=spent, statistics=statistics)
    if begun.vectors:
        client.momentum = trainer.momentum  # type: ignore[attr-defined]  # who has a vector has one
        client.point(velocity=begun.vectors[0].flat.clone())
    if trainer.prox:
        client.point(anchor=(request.anchor or x).flat.contiguous())
    if request.shift is not None:
        client.point(part=request.shift.flat / steps)
    if request.offset is not None:
        client.point(offset=request.offset.flat.contiguous())
    if request.mask is not None:
        client.point(mask=request.mask.flat.contiguous())
    return client


def _stages(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is ResNet:
        yield from ((f"{prefix}{name}", stage) for name, stage in stages_of(module))
        return
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, child in module._modules.items():  # named_children would say a layer used twice but once
        assert child is not None
        yield from _stages(child, f"{prefix}{name}.")
