"""What methods ask of ``local``, the trainer of their clients."""

from __future__ import annotations

from ..errors import CombinationError, require
from ..local import LocalSGD
from .base import Algorithm


def own_pull(algorithm: Algorithm, field: str) -> None:
    """Raise ``ValueError`` where a method's ``local`` has a ``prox``: the method's own ``field`` sets the pull."""
    name, local = type(algorithm).__name__, algorithm.local
    require(not local.prox, f"{name}(local={local!r}): {name} pulls by its own {field}; leave prox at 0")


def plain_steps(algorithm: Algorithm, otherwise: str = "") -> None:
    """Raise :class:`CombinationError` for a ``local`` other than SGD without momentum.

    The method computes a client's mean gradient as (x - y) / (sum of learning rates), which holds for plain SGD alone.
    ``otherwise`` is what the user may write instead.
    """
    said, local = f"{type(algorithm).__name__} reads the mean gradient off the distance a client went", algorithm.local
    if not isinstance(local, LocalSGD):
        raise CombinationError(
            f"{said}, and a step of {type(local).__name__} is no multiple of a gradient: use LocalSGD{otherwise}"
        )
    if local.momentum:
        raise CombinationError(f"{said}, which local momentum={local.momentum} stretches: use momentum=0{otherwise}")
