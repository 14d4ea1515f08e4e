"""Two lines that make an existing data-parallel script send less.

::

    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    c = compress(model, optimizer, DEF(ratio=64))

What DistributedDataParallel would average stays local, and what is sent is sent after the optimiser's
step (over a ``Hook``: at the end of the backward pass). Everything else of the script stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..errors import CombinationError, require
from ..train.given import refuse_moving
from .at_gradient import AtGradient
from .at_optimizer import AtOptimizer
from .feedback import Feedback, Method
from .handle import Compressed, Named, even, parameters
from .methods import DEF, Hook
from .shards import is_cut, is_wrapped
from .vector import check_real


def compress(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method = DEF(),  # noqa: B008  frozen
    *,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    debug: bool = False,
) -> Compressed:
    """Send what ``method`` sends, in place of whole gradients, from the next step on.

    ``model`` is a ``DistributedDataParallel``, or one that ``fully_shard`` has cut up within a node. For the latter
    give ``group``: the ranks, one a node, that hold the same shard. ``optimizer`` is any of torch's that works on the
    model's parameters, or several that share them, ``[muon, adamw]``. What is sent is then a step of each, after the
    last one. A wrapper without hooks of its own, such as accelerate's, stands for the optimiser in it. ``seed`` is that
    of all random choices and the same on every rank. With ``debug`` ranks make sure before each step that they are at
    the same one, with finite numbers. That takes a message of its own. Over a ``Hook``, whose gradients a GradScaler
    may skip, numbers that are not finite are a warning.

    All ranks call it at the same place. Raises ``ValueError`` (``CombinationError`` among them) for what cannot be
    compressed, and ``OutOfSync`` if ranks ask for different things. Nothing is changed then.
    """
    optimizers = [_bare(one) for one in (optimizer if isinstance(optimizer, Sequence) else [optimizer])]
    require(len(set(optimizers)) == len(optimizers), "an optimiser was given twice: give each once")
    require(
        isinstance(seed, int) and -(2**63) <= seed < 2**63,
        f"compress(seed={seed!r}): a whole number of at most 64 bits, the same on all ranks",
    )
    named = _parameters_to_send(model, optimizers)
    if isinstance(method, Feedback):
        _check_stepped(named, optimizers, method)
        _whole(optimizers, method)
        refuse_moving(model.module if isinstance(model, DistributedDataParallel) else model)
        made: Compressed = AtOptimizer(model, optimizers, method, named, _group(model, method, group), seed, debug)
        if made.group.rank == 0:
            method.warn(made.group.size)
    elif isinstance(method, Hook):
        _dense(model)
        made = AtGradient(model, optimizers, method, named, _group(model, method, group), seed, debug)
    else:
        raise ValueError(f"compress(method={method!r}): a method such as DEF(ratio=64) or Hook(TopK(0.01))")
    made.begin()
    wiring = getattr(model, "_thinwire", None)
    if wiring is not None:
        wiring.compressed = made
        return made
    model._thinwire = wiring = _Wiring(made)  # type: ignore[assignment]
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(wiring, _comm_hook)
    return made


class _Wiring:
    """What a DDP object's one hook looks at, which cannot be taken back. A copy of the object is without it."""

    def __init__(self, compressed: Compressed) -> None:
        self.compressed, self.group = compressed, compressed.group.group

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _comm_hook(wiring, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with its own by identity
    if not wiring.compressed.removed:
        return wiring.compressed.bucket(bucket)
    mean = bucket.buffer().div_(wiring.group.size())
    return dist.all_reduce(mean, group=wiring.group, async_op=True).get_future().then(_only)


def _only(future: Any) -> Tensor:  # the kind of future that C++ gives, of which torch.futures.Future is a subclass
    gradients: list[Tensor] = future.value()
    return gradients[0]


def _bare(optimizer: Any) -> Optimizer:
    """The optimiser whose hooks are called: the one in a wrapper without hooks, such as accelerate's."""
    while not _watchable(optimizer) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    require(
        isinstance(optimizer, Optimizer) and _watchable(optimizer),
        f"compress takes an optimiser of torch's, whose step() can be watched, not {type(optimizer).__name__}: give "
        "the one that it calls",
    )
    inner: Optimizer = optimizer
    return inner


def _watchable(optimizer: Any) -> bool:
    """Whether torch made it: its class may say so of one that only wraps another."""
    return "_optimizer_step_pre_hooks" in getattr(optimizer, "__dict__", {})


def _whole(optimizers: Sequence[Optimizer], method: Feedback) -> None:
    """``CombinationError`` for an optimiser that steps a part of its parameters on each rank."""
    for optimizer in optimizers:
        if any(cls.__name__ == "ZeroRedundancyOptimizer" for cls in type(optimizer).__mro__):
            raise CombinationError(
                f"{type(method).__name__} sends each rank's step of all parameters, and ZeroRedundancyOptimizer steps "
                "each on one rank alone, with that rank's gradient: give every rank the whole optimiser, or take a Hook"
            )


def _parameters_to_send(model: nn.Module, optimizers: Sequence[Optimizer]) -> Named:
    """The parameters that are trained and averaged, by name; ``ValueError`` for what cannot be compressed."""
    if hasattr(model, "_orig_mod"):
        raise CombinationError(
            "a model that torch.compile has wrapped is traced once, and may leave out what compress() does between "
            "steps: compile the module inside, DistributedDataParallel(torch.compile(module))"
        )
    if is_wrapped(model):
        raise CombinationError(
            "FullyShardedDataParallel sends gradients of shards that every rank needs whole: use fully_shard within a "
            "node, and compress across nodes"
        )
    require(
        isinstance(model, DistributedDataParallel) or is_cut(model),
        f"compress takes a DistributedDataParallel model (or one cut up by fully_shard), not {type(model).__name__}: "
        "wrap it first",
    )
    wiring = getattr(model, "_thinwire", None)
    require(
        wiring is None or wiring.compressed.removed,
        "this model is compressed already: call remove() of what compress returned",
    )
    # A copy of a compressed model has the hook in its list, and not where it would be called.
    alone = all(hook is _comm_hook for hook, _ in getattr(model, "_comm_hooks", ()))
    require(alone, "this model has a communication hook of its own, and there can be only one")
    even(model)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    named = {p: name for name, p in inner.named_parameters()}
    for p, name in named.items():
        if hasattr(p, "_in_backward_optimizers"):
            raise CombinationError(
                f"{name!r} is stepped in the backward pass, before its gradient is averaged: take an optimiser whose "
                "step() follows the backward pass"
            )
    optimised = {p for optimizer in optimizers for p in parameters(optimizer)}
    strange = len(optimised - named.keys())
    require(
        not strange,
        f"the optimiser has {strange} parameter(s) that are not the model's: build it from model.parameters()",
    )
    averaged = _averaged_by_ddp(model, inner)
    trained = [(name, p) for p, name in named.items() if p.requires_grad and p in averaged]
    for name, p in trained:
        check_real(name, p)
    known = any(p in optimised for _, p in trained)
    require(known, "the model has no trainable parameters that the optimiser knows: nothing would be sent")
    return trained


def _averaged_by_ddp(model: nn.Module, inner: nn.Module) -> set[nn.Parameter]:
    """The parameters that DistributedDataParallel averages. Those that it was told to ignore stay each rank's own."""
    ignored = getattr(model, "parameters_to_ignore", ())
    # The names are those that it compares: of a parameter of the outermost module, ".name".
    return {
        p
        for place, module in inner.named_modules()
        for name, p in module.named_parameters(recurse=False)
        if f"{place}.{name}" not in ignored
    }


def _check_stepped(named: Named, optimizers: Sequence[Optimizer], method: Feedback) -> None:
    """``ValueError`` unless the optimisers have all parameters that are trained."""
    optimised = {p for optimizer in optimizers for p in parameters(optimizer)}
    lacking = [name for name, p in named if p not in optimised]
    if lacking:
        others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ValueError(
            f"{lacking[0]!r}{others} would be trained, and by no optimiser given to compress(). Under "
            f"{type(method).__name__} gradients stay local, and ranks would drift apart: give it all optimisers, "
            "compress(model, [first, second], ...), or freeze such parameters before DistributedDataParallel"
        )


def _dense(model: nn.Module) -> None:
    """``CombinationError`` for sparse gradients, of which a hook gets no dense part of a bucket."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise CombinationError(
                f"a Hook averages dense gradients, and those of {name!r} are sparse: make it with sparse=False, or "
                "take DEF or one of its kin"
            )


def _group(model: Any, method: Method, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The ranks that speak to one another."""
    if isinstance(model, DistributedDataParallel):
        require(group is None, "group= is for models cut up by fully_shard; a DistributedDataParallel has its own")
        own: dist.ProcessGroup = model.process_group
        return own
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
