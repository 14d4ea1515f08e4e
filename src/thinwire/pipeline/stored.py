"""Activations as differences to those of the epoch before, by example.

Wang et al., "Fine-tuning Language Models over Slow Networks using Activation Compression with Guarantees" (AQ-SGD),
NeurIPS 2022, arXiv:2206.01299, Algorithm 1.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import Config
from ..errors import CombinationError, OutOfSync, WireError, require
from ..key import Key
from ..links import QSGD, Link
from ..params import Layout, Params
from ..wire import Packet

__all__ = ["AQSGD", "Store"]

NAMED = 8  # bytes of the digest of a batch's examples


@dataclass(frozen=True)
class AQSGD(Config):
    """What an example's activation has changed since it was sent last, by ``link``; the first time as it is.

    m(example) <- m(example) + link(activation - m(example)), at both ends, and m is what the next part computes with.
    Both ends keep the last ``examples`` examples that came, oldest out first, of ``4 * size of an activation`` bytes
    each. An example that is not kept is sent whole, with 32-bit floats. ``step(x, y, examples=...)`` says which
    examples a batch has, and each message has a digest of their numbers, 8 bytes. Raises ``ValueError`` for fewer than
    1 example, and ``CombinationError`` for a link with a memory of its own.

    A frame between processes is as large as a message of differences. Whole examples make a message larger, and what
    does not fit follows in a message of its own, for which a slow link takes a round trip more.

    Differences from the paper: the memory is bounded, and in main memory. m is of whole examples, without the paper's
    choice to keep m itself in few bits. The paper's bits are those of ``QSGD(levels, norm="max")``.
    """

    paper = "Wang et al., NeurIPS 2022, arXiv:2206.01299"
    example = "AQSGD(QSGD(7))"

    link: Link = QSGD(7, norm="max")
    examples: int = 1 << 16

    def __post_init__(self) -> None:
        require(self.examples >= 1, f"{self!r}: at least 1 example is kept")
        if remembers(self.link):
            raise CombinationError(f"{self!r}: AQSGD remembers itself; take a link without a memory")


def remembers(link: Link) -> bool:
    """True for a link whose ends have a memory of earlier messages."""
    sender = link.open(Params.of([("x", torch.zeros(2, 2, dtype=torch.float32, device="cpu"))]))[0]
    return link.memory or sender is not None


def digest_of(examples: list[int]) -> Tensor:
    """A digest of a batch's examples, in their order: at ends that name others, differences would be of others too."""
    digest = hashlib.blake2b(
        torch.tensor(examples, dtype=torch.int64, device="cpu").numpy().tobytes(), digest_size=NAMED
    ).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


class Store:
    """The examples that one end remembers. Both see the same examples in the same order, and so hold the same ones."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: OrderedDict[int, Tensor] = OrderedDict()

    def knows(self, examples: list[int]) -> bool:
        """True where all of them are held: their activations are sent as differences alone."""
        return all(example in self.held for example in examples)

    def differences(self, link: Link, x: Tensor, key: Key) -> Packet:
        """A packet of the size of those in which no example is whole. Nothing changes."""
        return [x[:0].contiguous(), link.send(Params.of([("x", x)]), None, key)[0], digest_of([])]

    def send(self, link: Link, x: Tensor, examples: list[int], key: Key) -> Packet:
        """A batch of activations, [b, ...], as a packet: whole examples, and the differences of the others."""
        known = torch.tensor([example in self.held for example in examples], device="cpu")
        packet: list[Packet] = [x[~known].contiguous(), None, digest_of(examples)]
        fresh = x[~known]
        if known.any():
            before = torch.stack([self.held[e] for e, k in zip(examples, known.tolist(), strict=True) if k])
            params = Params.of([("x", x[known] - before)])
            packet[1] = link.send(params, None, key)[0]
            after = before + link.recv(packet[1], params.layout, None, key)[0].flat.view_as(before)
        else:
            after = x[:0]
        self._keep(examples, known, fresh, after)
        return packet

    def recv(self, link: Link, packet: Packet, examples: list[int], key: Key) -> Tensor:
        """The activations that :meth:`send` was given, as both ends see them."""
        if not (isinstance(packet, list) and len(packet) == 3 and isinstance(packet[0], Tensor)):
            raise WireError("a packet of another shape: whole examples, differences and a digest expected")
        if not (isinstance(packet[2], Tensor) and torch.equal(packet[2], digest_of(examples))):
            raise OutOfSync(
                "the part before names other examples of this batch, or in another order: step(x, y, examples=...) "
                "has the same numbers on every rank"
            )
        known = torch.tensor([example in self.held for example in examples], device="cpu")
        fresh, shape = packet[0], packet[0].shape[1:]
        if len(fresh) != int((~known).sum()):
            raise WireError(f"{len(fresh)} whole examples, where {int((~known).sum())} are new: the ends differ")
        after = torch.zeros(0, *shape, dtype=torch.float32, device="cpu")
        if known.any():
            before = torch.stack([self.held[e] for e, k in zip(examples, known.tolist(), strict=True) if k])
            layout = Layout.of([("x", before)])
            after = before + link.recv(packet[1], layout, None, key)[0].flat.view_as(before)
        self._keep(examples, known, fresh, after)
        whole = fresh.new_zeros(len(examples), *shape)
        whole[~known] = fresh
        whole[known] = after
        return whole

    def _keep(self, examples: list[int], known: Tensor, fresh: Tensor, after: Tensor) -> None:
        """The examples as they are now at the end of the memory; the oldest leave it."""
        kept, was = iter(after), iter(fresh)
        for example, there in zip(examples, known.tolist(), strict=True):
            self.held.pop(example, None)
            self.held[example] = next(kept if there else was).clone()
        while len(self.held) > self.most:
            self.held.popitem(last=False)
