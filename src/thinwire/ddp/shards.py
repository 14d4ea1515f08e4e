"""Which models and tensors FSDP has cut up.

To import FSDP takes about as long as to import torch. Whoever has cut something up has imported it already, so its
classes are looked for among the modules that are there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_shard(x: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is one of which each rank holds a part."""
    return _is(x, "torch.distributed.tensor", "DTensor")


def is_cut(model: nn.Module) -> bool:
    """Whether a model was cut up by ``fully_shard``."""
    return _is(model, "torch.distributed.fsdp", "FSDPModule")


def is_wrapped(model: nn.Module) -> bool:
    """Whether a model is a ``FullyShardedDataParallel``."""
    return _is(model, "torch.distributed.fsdp", "FullyShardedDataParallel")


def local(x: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return x.to_local() if is_shard(x) else x


def _is(x: object, module: str, name: str) -> bool:
    there = sys.modules.get(module)
    return there is not None and isinstance(x, getattr(there, name))
