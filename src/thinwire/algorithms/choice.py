"""The codecs of :class:`Auto` for so many bytes each way, and how far models are then off, by what was rehearsed.

What is minimised is a squared distance: of the model that a client trains from, to the one that it would train from if
nothing were lost on the way. Two things lie between them: what clients have kept back of their updates, and what this
client has not been told. It is the quantity by which error feedback is analysed: Stich, Karimireddy, "The
Error-Feedback Framework", JMLR 21, 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..key import Key
from ..links import Budget, Dense, Half, Link, TransformCoding
from ..links.allocation import least as single_entry
from ..links.budget import least as every_layer
from ..params import Params
from ..wire import length

LEAST = 64  # bytes of a packet at least: what a single entry takes where no layer is very large
RATHER = 1.05  # times the least error that a codec of less computing may leave
EXACT = 1e-6  # share of the squared length that may be missing from what is as good as whole

CODECS: dict[str, Callable[[int], Link]] = {  # those of less computing first
    "dense": lambda bytes: Dense(),
    "half": lambda bytes: Half(),
    "budget": Budget,
    "transform": TransformCoding,
}
NAMES = {"dense": "Dense", "half": "Half", "budget": "Budget", "transform": "TransformCoding"}
LOSSY = ("budget", "transform")


class Measured(NamedTuple):
    """What a rehearsal measured, and what is known of the run."""

    changes: list[Params]  # of some clients, in one round
    movement: Params  # of the server's model while a client is away
    clients: int
    sample: int  # clients in a round
    dense: tuple[int, int]  # bytes of FedAvg's reply and broadcast, headers included
    fixed: tuple[int, int]  # bytes of a reply and of a call beside their packets, at most: headers, norm statistics
    rates: tuple[float, float] | None  # Mbit/s up and down of the slowest client; None: no network was given
    replies: float  # share of calls that are answered
    lost: bool  # whether calls or replies may be lost, or come too late


class Coding(NamedTuple):
    """One direction: a key of ``CODECS``, and the bytes of a packet."""

    codec: str
    bytes: int


class Choice(NamedTuple):
    """What was chosen, as plain values that a checkpoint can hold."""

    up: Coding
    down: Coding
    feedback: bool  # whether clients keep what was not sent
    stream: bool  # whether one stream of broadcasts serves all; else each client is coded for alone
    ahead: float = 0.0  # with feedback, by which share of what they owe clients begin ahead


def links_of(choice: Choice) -> tuple[Link, Link]:
    """The codecs of a choice, up and down."""
    return CODECS[choice.up.codec](choice.up.bytes), CODECS[choice.down.codec](choice.down.bytes)


def choose_codecs(measured: Measured, up: int, down: int, key: Key) -> Choice:
    """What is best at so many bytes up and down."""
    best_up = best_codec(up, measured.changes, key, False)
    best_down = best_codec(down, [measured.movement], key, True)
    feedback = best_up.codec in LOSSY and CODECS[best_up.codec](up).contraction
    stream = measured.sample == measured.clients and not measured.lost
    return Choice(best_up, best_down, feedback, stream)


def with_bytes(choice: Choice, up: int, down: int) -> Choice:
    """The same choice with other bytes."""
    return choice._replace(up=choice.up._replace(bytes=up), down=choice.down._replace(bytes=down))


def fits(measured: Measured, choice: Choice, key: Key) -> bool:
    """Whether its codecs keep to the bytes: a lossy one that can begin does, others by the length that they have."""
    ways = ((choice.up, measured.changes[0]), (choice.down, measured.movement))
    if not all(_begins(way.codec, way.bytes, x) for way, x in ways):
        return False
    fixed = [(CODECS[way.codec](way.bytes), x, way.bytes) for way, x in ways if way.codec not in LOSSY]
    return all(length(link.send(x, link.open(x)[0], key)[0]) <= bytes for link, x, bytes in fixed)


def _begins(codec: str, bytes: int, x: Params) -> bool:
    """Whether so many bytes hold any numbers of these layers, as those of later rounds, at their cheapest."""
    return codec != "budget" or bytes >= every_layer(x.layout)


def best_codec(bytes: int, messages: Sequence[Params], key: Key, absolute: bool) -> Coding:
    """The codec of so many bytes that leaves the least error, or one of less computing that is about as good.

    With ``absolute`` a codec has to keep values as they are, or to be a contraction, so that a link can go around it
    that sends differences.
    """
    errors = dict[str, float]()
    for name, codec in CODECS.items():
        link = codec(bytes)
        if absolute and not (link.absolute or link.contraction):
            continue
        if not _begins(name, bytes, messages[0]):
            continue
        sent = [link.send(x, link.open(x)[0], key) for x in messages]
        if all(length(packet) <= bytes for packet, _, _ in sent):
            errors[name] = sum(
                square(x.flat.double() - seen.flat.double()) for x, (_, seen, _) in zip(messages, sent, strict=True)
            )
    least, energy = min(errors.values()), sum(square(x.flat.double()) for x in messages)
    enough = max(RATHER * least, EXACT * energy)
    return Coding(next(name for name, error in errors.items() if error <= enough), bytes)


def distance_off(measured: Measured, choice: Choice, key: Key) -> float:
    """How far the model that clients train from is off on average, as a squared length.

    The server's model lacks what all clients have kept back, each a share of a round's mean. What these residuals have
    nothing of in common adds up by squares; what they have in common, as the clients of the rehearsal show it, adds up
    whole. Views lack what broadcasts have left out. Those of a round are off in directions of their own, so their mean
    is off by about what a single message leaves, though each is off by more. What is lost by an uplink without error
    feedback is counted likewise.
    """
    _, down = links_of(choice)
    each, common = residuals(measured, choice, key)
    model = measured.clients / measured.sample**2 * (each - common) + (measured.clients / measured.sample) ** 2 * common
    left_out = measured.movement - _view_of(down, measured.movement, key)
    return model + square(left_out.flat.double())


def residuals(measured: Measured, choice: Choice, key: Key) -> tuple[float, float]:
    """The squared length of what a client has kept back after two visits, and of what clients have in common of it."""
    up, _ = links_of(choice)
    kept = [_loss_after_two(up, x, key.at(str(n))).flat.double() for n, x in enumerate(measured.changes)]
    each, common = sum(map(square, kept)) / len(kept), 0.0
    if len(kept) > 1:
        common = min(max(0.0, (len(kept) * square(_mean(kept)) - each) / (len(kept) - 1)), each)
    return each, common


def _loss_after_two(link: Link, x: Params, key: Key) -> Params:
    """What has not arrived after two visits with ``x``, the second of which also brings what the first has left."""
    left = x - _view_of(link, x, key)
    both = x + left
    return both - _view_of(link, both, key.at("again"))


def least_packet(measured: Measured) -> int:
    """The bytes of a packet, at least: those of a single entry. A whole model may be fewer."""
    layout = measured.movement.layout
    return min(max(LEAST, single_entry(layout)), length(measured.movement.flat))


def _view_of(link: Link, x: Params, key: Key) -> Params:
    """What the other side sees of ``x``, sent as a first message."""
    _, seen, _ = link.send(x, link.open(x)[0], key)
    return seen


def _mean(x: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(x)).mean(0)


def square(x: Tensor) -> float:
    """The squared length of a vector."""
    return float(torch.dot(x, x))
