"""FedAvg for a budget of bytes: codec, split and catch-up are chosen from one update that was measured.

``Auto`` is no method itself. It looks at what a short rehearsal measured (:class:`Measured`) and makes a
:class:`Choice`, which is written out as ``Averaged(FedAvg(up=..., down=...))``. The runner rehearses when a run begins
and once more after ten rounds (:mod:`thinwire.federated.auto_run`).

What is minimised is a squared distance: of the model that a client trains from, to the one that it would train from if
nothing were lost on the way. Two things lie between them: what clients have kept back of their updates, and what this
client has not been told. It is the quantity by which error feedback is analysed: Stich, Karimireddy, "The
Error-Feedback Framework", JMLR 21, 2020. Splits and codecs are compared as in rate-distortion theory: Shoham, Gersho,
"Efficient Bit Allocation for an Arbitrary Set of Quantizers", IEEE Trans. ASSP, 1988.

Differences from the papers: Stich and Karimireddy have one message and workers that all take part; here there are two,
and clients are away for some rounds. Shoham and Gersho allocate bits to the parts of one signal and search all
allocations; here a small number of splits between two messages is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..config import LATER, Config
from ..errors import require
from ..key import Key
from ..links import EF21, Budget, Dense, ErrorFeedback, Half, Link, PerClient, Switch, TransformCoding
from ..links.allocation import least as single_entry
from ..links.budget import least as every_layer
from ..local import LocalSGD, Trainer
from ..params import Params
from ..ranges import Fraction
from ..wire import length
from .averaged import Averaged
from .base import Algorithm
from .detached import Detached
from .fedavg import FedAvg

DEFAULT = 0.01  # of FedAvg's bytes
DECAY = 0.8  # of the served average
SPLITS = (1 / 9, 1 / 5, 1 / 3, 1 / 2, 2 / 3)  # shares of the uplink that are tried: 1 : 8 to 2 : 1
LEAST = 64  # bytes of a packet at least: what a single entry takes where no layer is very large
RATHER = 1.05  # times the least error that a codec of less computing may leave
EXACT = 1e-6  # share of the squared length that may be missing from what is as good as whole
MEGABIT = 8e-6  # of a byte
STAYS = "The split stays: no other is better by a twentieth."
QUICKEST = "Of those that are at most a twentieth worse than the best, the fastest for the slowest client is taken."
UNITS = {"budget": "bytes", "bytes": "bytes", "seconds": "s"}

CODECS: dict[str, Callable[[int], Link]] = {  # those of less computing first
    "dense": lambda bytes: Dense(),
    "half": lambda bytes: Half(),
    "budget": Budget,
    "transform": TransformCoding,
}
NAMES = {"dense": "Dense", "half": "Half", "budget": "Budget", "transform": "TransformCoding"}
LOSSY = ("budget", "transform")


class TooSmall(ValueError):
    """A budget that does not hold the headers of a visit and, in each direction, a single entry."""


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


class Verdict(NamedTuple):
    """A choice, and why in sentences."""

    choice: Choice
    why: list[str]


@dataclass(frozen=True)
class Auto(Config):
    """The method that a budget is best spent on, chosen by the run itself: :class:`FedAvg` with coded messages.

    ``budget`` is a share of the bytes that :class:`FedAvg` sends at equal rounds, up and down together. It is 0.01
    where nothing else is given. In place of it: ``bytes`` a client and visit, up and down together, or ``seconds`` of
    transfer a visit at the rates of the slowest client of the run's ``Network``. Headers, norm statistics and first
    contacts count in it. With dropouts the bytes of lost replies are saved in both, so the share holds on average.
    ``local`` is how clients train, as in every method.

    ``simulate`` and ``thinwire run`` take it where they take a method. Before round 1 a cohort of at most four clients
    trains one round. Nothing of that crosses a network. From their updates these are chosen:

    - how the budget is split between up and down, of five splits: so that the models from which clients train are off
      by as little as can be. With a ``Network`` it is the fastest one for the slowest client, of those that are at most
      a twentieth worse than the best;
    - the codec of each direction: ``TransformCoding``, ``Budget``, ``Half`` or ``Dense``, with the least error, or
      with less computing where that costs less than a twentieth of error more;
    - one stream of broadcasts where all clients take part in every round, else ``PerClient``;
    - error feedback around the uplink where its codec is a contraction.

    The starting model is known to clients from the seed, and ``Averaged`` serves an average, neither for a byte. After
    ten rounds the split alone is chosen anew, by updates and movements of then. The same seed makes the same choices.
    A round's record says in ``chosen`` what was chosen, as an expression that can be typed, and why. That of the second
    choice is the whole run's: with ``start="known"`` it trains the same bits, as ``Switch`` changes its links.

    With ``detach``, where there is error feedback, clients begin ahead by this share of what they owe:
    :class:`Detached`.

    Raises ``ValueError`` where more than one of the three is given, one is not positive, or ``budget`` is above 1.
    """

    paper = "Shoham, Gersho, IEEE Trans. ASSP, 1988"
    example: ClassVar[str] = "Auto(0.01)"
    warm_up: ClassVar[int] = 0
    """Rounds before the method begins to do what it is for."""
    warms: ClassVar[str] = ""

    budget: float | None = None
    local: Trainer = LocalSGD()
    bytes: int | None = field(default=None, kw_only=True)
    seconds: float | None = field(default=None, kw_only=True)
    detach: Fraction = field(default=0.0, kw_only=True, metadata=LATER)

    def __post_init__(self) -> None:
        given = [value for value in (self.budget, self.bytes, self.seconds) if value is not None]
        require(len(given) < 2, f"{self!r}: give one of budget (a share), bytes (a visit) and seconds (a visit)")
        require(all(value > 0 for value in given), f"{self!r}: a budget must be positive")
        require(self.budget is None or self.budget <= 1, f"{self!r}: budget is a share of FedAvg's bytes, at most 1")
        if not given:
            object.__setattr__(self, "budget", DEFAULT)

    def plain(self) -> FedAvg:
        """What the budget is a share of, and what rehearses."""
        return FedAvg(self.local)

    def method(self, choice: Choice, *later: tuple[int, Choice]) -> Algorithm:
        """A choice as the method that it is; ``later`` is after how many rounds its bytes are those of another one."""
        up, down = _links(choice)
        for rounds, other in later:
            up, down = (a if a == b else Switch(a, b, rounds) for a, b in zip((up, down), _links(other), strict=True))
        if not down.absolute:
            down = EF21(down) if choice.stream else PerClient(down)
        method: Algorithm = FedAvg(self.local, up=ErrorFeedback(up) if choice.feedback else up, down=down)
        if choice.feedback and self.detach:
            method = Detached(method, self.detach)
        return Averaged(method, DECAY)

    def choose(self, measured: Measured, key: Key, before: Choice | None = None) -> Verdict:
        """What suits a run that was measured. With ``before`` all but the split stays.

        Raises :class:`TooSmall` for a budget that does not hold a single entry in each direction, and names one that
        does.
        """
        least = _least(measured)
        rooms = [room for room in (self._room(measured, share) for share in SPLITS) if min(room) >= least]
        if not rooms and before is None:
            raise TooSmall(self._short(measured))
        if before is None:
            ways = [_way(measured, *room, key) for room in rooms]
        else:
            ways = [way for way in (_with_bytes(before, *room) for room in rooms) if _fits(measured, way, key)]
        errors = {way: _off(measured, way, key) for way in dict.fromkeys([*([before] if before else []), *ways])}
        least_off = min(errors.values())
        near = [way for way in errors if errors[way] <= RATHER * least_off]
        fast = measured.rates if self.seconds is None else None  # seconds are spent whole, whatever the split
        if fast is None:
            best = min(near, key=lambda way: errors[way])
        else:
            best = min(near, key=lambda way: way.up.bytes / fast[0] + way.down.bytes / fast[1])
        whole = max(_square(measured.movement.flat.double()), 1e-30)
        tried = ", ".join(
            f"{way.up.bytes:,} + {way.down.bytes:,}: {error / whole:.2%}" for way, error in errors.items()
        )
        shares = (
            f"Bytes up + down of a visit, and how far clients' models are then off, as a share of the squared length "
            f"by which the model moves between two visits: {tried}."
        )
        if before is not None and before in near:
            return Verdict(before, [shares, STAYS])
        why = [shares] if fast is None or len(near) == 1 else [shares, QUICKEST]
        return Verdict(best, why if before else [*self._budget_text(measured), *why, *_reasons(measured, best)])

    # -- the room that there is -----------------------------------------------

    def _prices(self, measured: Measured) -> tuple[float, tuple[float, float]]:
        """What a visit may cost, and what a byte up and a byte down cost.

        A share of FedAvg's bytes is one of those that arrive, and so are the bytes that count in it: a reply's cost
        less where some are lost.
        """
        if self.seconds is not None:
            require(
                measured.rates is not None,
                f"{self!r}: seconds need the rates of links; give the run a network, such as Network(mbit=1)",
            )
            assert measured.rates is not None
            return self.seconds, (MEGABIT / measured.rates[0], MEGABIT / measured.rates[1])
        if self.bytes is not None:
            return float(self.bytes), (1.0, 1.0)
        assert self.budget is not None
        up, down = measured.dense
        return self.budget * (measured.replies * up + down), (measured.replies, 1.0)

    def _room(self, measured: Measured, share: float) -> tuple[int, int]:
        """Bytes of a packet up and of one down, where the uplink has this share of what headers leave."""
        whole, price = self._prices(measured)
        left = whole - sum(map(_times, price, measured.fixed))
        most = length(measured.movement.flat)
        up = min(share * left / price[0], most)
        down = min((left - up * price[0]) / price[1], most)
        up = min((left - down * price[1]) / price[0], most)  # what the downlink cannot use
        return int(up), int(down)

    def _short(self, measured: Measured) -> str:
        """Why there is no room, and what would be enough."""
        whole, price = self._prices(measured)
        fixed = sum(map(_times, price, measured.fixed))
        most = (_least(measured) + 1) * min(max(price[0] / share, price[1] / (1 - share)) for share in SPLITS)
        name, unit = next((n, u) for n, u in UNITS.items() if getattr(self, n) is not None)
        enough = (fixed + most) * (getattr(self, name) / whole)
        digits = 0 if name == "bytes" else 1 - math.floor(math.log10(enough))
        raised = math.ceil(enough * 10**digits) / 10**digits
        instead = f"raise {name} to {raised:g}"
        if name == "budget" and raised > 1:
            visit = sum(measured.fixed) + 2 * (_least(measured) + 1)  # where every reply arrives
            instead = f"FedAvg itself sends little more: give bytes={visit} in place of the budget"
        return (
            f"{self!r}: a visit may take {whole:.3g} {unit}, and its headers and norm statistics take {fixed:.3g} of "
            f"it; {instead}"
        )

    def _budget_text(self, measured: Measured) -> list[str]:
        """The budget of a visit, in a sentence."""
        whole, price = self._prices(measured)
        unit = "s" if self.seconds is not None else "bytes"
        fixed = sum(map(_times, price, measured.fixed))
        mean = "On average a" if price[0] < 1 and self.budget is not None else "A"
        return [
            f"{mean} visit may take {whole:,.6g} {unit}; headers and norm statistics take {fixed:,.6g} of it at most."
        ]


# -- how far models are off -------------------------------------------------------


def _links(choice: Choice) -> tuple[Link, Link]:
    """The codecs of a choice, up and down."""
    up, down = (CODECS[way.codec](way.bytes) for way in (choice.up, choice.down))
    return up, down


def _way(measured: Measured, up: int, down: int, key: Key) -> Choice:
    """What is best at so many bytes up and down."""
    best_up = _best(up, measured.changes, key, False)
    best_down = _best(down, [measured.movement], key, True)
    feedback = best_up.codec in LOSSY and CODECS[best_up.codec](up).contraction
    return Choice(best_up, best_down, feedback, measured.sample == measured.clients and not measured.lost)


def _with_bytes(choice: Choice, up: int, down: int) -> Choice:
    """The same choice with other bytes."""
    return choice._replace(up=choice.up._replace(bytes=up), down=choice.down._replace(bytes=down))


def _fits(measured: Measured, choice: Choice, key: Key) -> bool:
    """Whether its codecs keep to the bytes: a lossy one that can begin does, others by the length that they have."""
    ways = ((choice.up, measured.changes[0]), (choice.down, measured.movement))
    if not all(_begins(way.codec, way.bytes, x) for way, x in ways):
        return False
    fixed = [(CODECS[way.codec](way.bytes), x, way.bytes) for way, x in ways if way.codec not in LOSSY]
    return all(length(link.send(x, link.open(x)[0], key)[0]) <= bytes for link, x, bytes in fixed)


def _begins(codec: str, bytes: int, x: Params) -> bool:
    """Whether so many bytes hold any numbers of these layers, as those of later rounds, at their cheapest."""
    return codec != "budget" or bytes >= every_layer(x.layout)


def _best(bytes: int, messages: Sequence[Params], key: Key, absolute: bool) -> Coding:
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
                _square(x.flat.double() - seen.flat.double()) for x, (_, seen, _) in zip(messages, sent, strict=True)
            )
    least, energy = min(errors.values()), sum(_square(x.flat.double()) for x in messages)
    enough = max(RATHER * least, EXACT * energy)
    return Coding(next(name for name, error in errors.items() if error <= enough), bytes)


def _off(measured: Measured, choice: Choice, key: Key) -> float:
    """How far the model that clients train from is off on average, as a squared length.

    The server's model lacks what all clients have kept back, each a share of a round's mean. What these residuals have
    nothing of in common adds up by squares; what they have in common, as the clients of the rehearsal show it, adds up
    whole. Views lack what broadcasts have left out. Those of a round are off in directions of their own, so their mean
    is off by about what a single message leaves, though each is off by more. What is lost by an uplink without error
    feedback is counted likewise.
    """
    up, down = _links(choice)
    kept = [_loss_after_two(up, x, key.at(str(n))).flat.double() for n, x in enumerate(measured.changes)]
    each, common = sum(map(_square, kept)) / len(kept), 0.0
    if len(kept) > 1:
        common = min(max(0.0, (len(kept) * _square(_mean(kept)) - each) / (len(kept) - 1)), each)
    model = measured.clients / measured.sample**2 * (each - common) + (measured.clients / measured.sample) ** 2 * common
    left_out = measured.movement - _view_of(down, measured.movement, key)
    return model + _square(left_out.flat.double())


def _loss_after_two(link: Link, x: Params, key: Key) -> Params:
    """What has not arrived after two visits with ``x``, the second of which also brings what the first has left."""
    left = x - _view_of(link, x, key)
    both = x + left
    return both - _view_of(link, both, key.at("again"))


def _reasons(measured: Measured, choice: Choice) -> list[str]:
    """Why a choice has what it has beside its bytes, in sentences."""
    away = measured.clients / measured.sample
    said = [
        f"At these bytes {NAMES[choice.up.codec]} is best for updates and {NAMES[choice.down.codec]} for models. A "
        f"codec of less computing is preferred where it costs at most a twentieth of error."
    ]
    if choice.down.codec not in LOSSY:
        said.append("The broadcast is the model itself, so nobody has to catch up.")
    elif choice.stream:
        said.append("All clients take part in every round and none is lost, so one stream serves them all.")
    else:
        said.append(f"A client is away for {away:.3g} rounds on average: each absence is coded as one difference.")
    if choice.feedback:
        said.append("Error feedback: what a client has left out it adds to its next update.")
    elif choice.up.codec in LOSSY:
        said.append("No error feedback: the uplink's codec is no contraction.")
    return said


def _least(measured: Measured) -> int:
    """The bytes of a packet, at least: those of a single entry. A whole model may be fewer."""
    layout = measured.movement.layout
    return min(max(LEAST, single_entry(layout)), length(measured.movement.flat))


def _times(price: float, bytes: int) -> float:
    return price * bytes


def _view_of(link: Link, x: Params, key: Key) -> Params:
    """What the other side sees of ``x``, sent as a first message."""
    _, seen, _ = link.send(x, link.open(x)[0], key)
    return seen


def _mean(x: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(x)).mean(0)


def _square(x: Tensor) -> float:
    return float(torch.dot(x, x))
