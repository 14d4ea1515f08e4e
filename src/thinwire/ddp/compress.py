"""Two lines that make an existing data-parallel script send less.

::

    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    c = compress(model, optimizer, DEF(ratio=64))

What DistributedDataParallel would average stays local, and what is sent is sent after the optimiser's
step (over a ``Hook``: at the end of the backward pass). Everything else of the script stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..errors import CombinationError, require
from .gradient import AtGradient
from .methods import DEF, Feedback, Hook, Method
from .optimizer import AtOptimizer
from .training import Compressed, Named


def compress(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method = DEF(),  # noqa: B008  frozen
    *,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    debug: bool = False,
) -> Compressed:
    """Send what ``method`` sends, in place of whole gradients, from the next step on.

    ``model`` is a ``DistributedDataParallel``, or one that ``fully_shard`` has cut up within a node: then
    ``group`` has the ranks, one a node, that hold the same shard. ``optimizer`` is any of torch's that works on
    the model's parameters. ``seed`` is that of all random choices and the same on every rank. With ``debug`` ranks
    make sure before each step that they are at the same one, with finite numbers, which takes a message of its own.

    Everyone calls it at the same place. Raises ``ValueError`` (``CombinationError`` among them) for what cannot
    be compressed, and ``OutOfSync`` where ranks ask for different things, before anything is changed.
    """
    named = _trained(model, optimizer)
    if isinstance(method, Feedback):
        made: Compressed = AtOptimizer(model, optimizer, method, named, _group(model, method, group), seed, debug)
    elif isinstance(method, Hook):
        made = AtGradient(model, optimizer, method, named, _group(model, method, group), seed, debug)
    else:
        raise ValueError(f"compress(method={method!r}): a method such as DEF(ratio=64) or Hook(TopK(0.01))")
    wiring = getattr(model, "_thinwire", None)
    if wiring is not None:
        wiring.compressed = made
        return made
    model._thinwire = wiring = _Wiring(made)  # type: ignore[assignment]
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(wiring, _comm_hook)
    return made


class _Wiring:
    """What a DDP object's one hook looks at, which cannot be taken back."""

    def __init__(self, compressed: Compressed) -> None:
        self.compressed = compressed


def _comm_hook(wiring, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with its own by identity
    if not wiring.compressed.removed:
        return wiring.compressed.bucket(bucket)
    group = wiring.compressed.group.group
    mean = bucket.buffer().div_(group.size())
    return dist.all_reduce(mean, group=group, async_op=True).get_future().then(_only)


def _only(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    return future.value()[0]


def _trained(model: nn.Module, optimizer: Optimizer) -> Named:
    """The parameters that are trained, by name; ``ValueError`` for what cannot be compressed."""
    if isinstance(model, FullyShardedDataParallel):
        raise CombinationError(
            "FullyShardedDataParallel sends gradients of shards that every rank needs whole: use fully_shard within a "
            "node, and compress across nodes"
        )
    require(
        isinstance(model, DistributedDataParallel | FSDPModule),
        f"compress takes a DistributedDataParallel model (or one cut up by fully_shard), not {type(model).__name__}: "
        "wrap it first",
    )
    wiring = getattr(model, "_thinwire", None)
    require(
        wiring is None or wiring.compressed.removed,
        "this model is compressed already: call remove() of what compress returned",
    )
    alone = wiring is not None or not getattr(model, "_comm_hooks", None)
    require(alone, "this model has a communication hook of its own, and there can be only one")
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    named = {p: name for name, p in inner.named_parameters()}
    optimised = {p for group in optimizer.param_groups for p in group["params"]}
    strange = len(optimised - named.keys())
    require(
        not strange,
        f"the optimiser has {strange} parameter(s) that are not the model's: build it from model.parameters()",
    )
    trained = [(name, p) for p, name in named.items() if p.requires_grad]
    known = any(p in optimised for _, p in trained)
    require(known, "the model has no trainable parameters that the optimiser knows: nothing would be sent")
    return trained


def _group(model: Any, method: Method, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The ranks that speak to one another."""
    if isinstance(model, DistributedDataParallel):
        require(group is None, "group= is for models cut up by fully_shard; a DistributedDataParallel has its own")
        found: dist.ProcessGroup = model.process_group
        return found
    if isinstance(method, Hook):
        raise CombinationError(
            "a Hook stands where DistributedDataParallel averages: over fully_shard take DEF or one of its kin"
        )
    if group is None:
        raise ValueError("fully_shard: give group=, the ranks (one a node) that hold the same shard as this one")
    mesh = next(p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh"))
    if mesh.ndim != 1:
        raise CombinationError(
            f"this model's mesh has {mesh.ndim} dimensions, and FSDP averages over one of them itself: "
            "fully_shard over the ranks of a node alone"
        )
    return group
