"""What was read back into the types that it had: a template says its Params, tuples, dtypes and shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .errors import WireError
from .params import Params

Packet = Any  # tensors, numbers, strings, None, lists and dicts of these
State = Any  # the same, plus Params, bytes (of any number), and tuples and NamedTuples of these


class Several(list[Any]):
    """A list in a state whose length may change; each of its items is like ``like``."""

    def __init__(self, items: Iterable[Any], like: Any) -> None:
        super().__init__(items)
        self.like = like


def restore(packet: Packet, like: State) -> State:
    """``packet`` with the types of the template ``like``: its Params, tuples, dtypes and shapes.

    Every tensor is a fresh contiguous copy on the template's device. Raises
    :class:`WireError`, naming the place, where the packet is of another shape.
    """
    conform(packet, like, "state")
    return _restore(packet, like)


def conform(packet: Packet, like: State, where: str = "packet") -> None:
    """Raise :class:`WireError`, naming the place, unless ``packet`` could be restored into ``like``."""
    if isinstance(like, Params):
        like = like.flat
    if isinstance(like, Tensor):
        if not isinstance(packet, Tensor) or packet.dtype != like.dtype or packet.shape != like.shape:
            raise WireError(f"{where}: {_describe(like)} expected, {_describe(packet)} found")
    elif isinstance(like, bytes):
        vector = isinstance(packet, Tensor) and packet.dtype == torch.uint8 and packet.ndim == 1
        if not vector and not isinstance(packet, bytes):
            raise WireError(f"{where}: bytes expected, {_describe(packet)} found")
    elif isinstance(like, Several):
        if not isinstance(packet, list):
            raise WireError(f"{where}: a list expected, {_describe(packet)} found")
        for number, part in enumerate(packet):
            conform(part, like.like, f"{where}.{number}")
    elif isinstance(like, list | tuple):
        if not isinstance(packet, list) or len(packet) != len(like):
            raise WireError(f"{where}: {len(like)} items expected, {_describe(packet)} found")
        for part, one, name in zip(packet, like, getattr(like, "_fields", range(len(like))), strict=True):
            conform(part, one, f"{where}.{name}")
    elif isinstance(like, dict):
        if not isinstance(packet, dict) or packet.keys() != like.keys():
            raise WireError(f"{where}: the keys {list(like)} expected, {_describe(packet)} found")
        for key in like:
            conform(packet[key], like[key], f"{where}.{key}")
    elif type(packet) is not type(like):
        raise WireError(f"{where}: {_describe(like)} expected, {_describe(packet)} found")


def clone(x: State) -> State:
    """A copy of a state in memory of its own, contiguous and aligned."""
    return _restore(x, x)


def _restore(packet: Any, like: Any) -> Any:
    if isinstance(like, Params):
        return Params(like.layout, _restore(packet.flat if isinstance(packet, Params) else packet, like.flat))
    if isinstance(like, Tensor):
        return packet.to(like.device, copy=True, memory_format=torch.contiguous_format)
    if isinstance(like, bytes):
        return packet if isinstance(packet, bytes) else packet.numpy().tobytes()
    if isinstance(like, Several):
        return Several([_restore(part, like.like) for part in packet], like.like)
    if isinstance(like, list | tuple):
        items = [_restore(part, one) for part, one in zip(packet, like, strict=True)]
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    return {key: _restore(packet[key], like[key]) for key in like} if isinstance(like, dict) else packet


def _describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    return f"{len(x)} items" if isinstance(x, list | dict) else type(x).__name__
