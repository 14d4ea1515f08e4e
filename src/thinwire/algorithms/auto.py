"""FedAvg for a budget of bytes: codec, split and catch-up are chosen from one update that was measured.

``Auto`` is no method itself. It looks at what a short rehearsal measured (:class:`Measured`) and makes a
:class:`Choice`, which is written out as ``Averaged(FedAvg(up=..., down=...))``. The runner rehearses when a run begins
and once more after ten rounds (:mod:`thinwire.federated.auto_run`).

What is minimised is a squared distance of models (:mod:`.choice`), by which error feedback is analysed: Stich,
Karimireddy, "The Error-Feedback Framework", JMLR 21, 2020. Splits and codecs are compared as in rate-distortion theory:
Shoham, Gersho, "Efficient Bit Allocation for an Arbitrary Set of Quantizers", IEEE Trans. ASSP, 1988.

Differences from the papers: Stich and Karimireddy have one message and workers that all take part; here there are two,
and clients are away for some rounds. Shoham and Gersho allocate bits to the parts of one signal and search all
allocations; here a small number of splits between two messages is tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import mul
from typing import ClassVar, NamedTuple

from ..config import LATER, Config
from ..errors import require
from ..key import Key
from ..links import EF21, ErrorFeedback, PerClient, Switch
from ..local import LocalSGD, Trainer
from ..ranges import Fraction
from ..wire import length
from .averaged import Averaged
from .base import Algorithm
from .choice import (
    LOSSY,
    NAMES,
    RATHER,
    Choice,
    Measured,
    choose_codecs,
    distance_off,
    fits,
    least_packet,
    links_of,
    residuals,
    square,
    with_bytes,
)
from .detached import Detached
from .fedavg import FedAvg

DEFAULT = 0.01  # of FedAvg's bytes
DECAY = 0.8  # of the served average
FEW = 0.005  # of FedAvg's bytes, below which clients may begin ahead
AHEAD = 0.5  # of what they owe
ALIKE = 0.1  # of what they owe: so much in common, and nobody begins ahead
SPLITS = (1 / 9, 1 / 5, 1 / 3, 1 / 2, 2 / 3)  # shares of the uplink that are tried: 1 : 8 to 2 : 1
MEGABIT = 8e-6  # of a byte
STAYS = "The split stays: no other is better by a twentieth."
QUICKEST = "Of those that are at most a twentieth worse than the best, the fastest for the slowest client is taken."
UNITS = {"budget": "bytes", "bytes": "bytes", "seconds": "s"}


class TooSmall(ValueError):
    """A budget that does not hold the headers of a visit and, in each direction, a single entry."""


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
    - error feedback around the uplink where its codec is a contraction, and clients that begin ahead by ``detach`` of
      what they then owe (:class:`Detached`). None: by a half where the budget is below half a percent of FedAvg's bytes
      and the rehearsal's clients have less than a tenth of what they owe in common; else not at all.

    The starting model is known to clients from the seed, and ``Averaged`` serves an average, neither for a byte. After
    ten rounds the split alone is chosen anew, by updates and movements of then. The same seed makes the same choices.
    A round's record says in ``chosen`` what was chosen, as an expression that can be typed, and why. That of the second
    choice is the whole run's: with ``start="known"`` it trains the same bits, as ``Switch`` changes its links.

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
    detach: Fraction | None = field(default=None, kw_only=True, metadata=LATER)

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
        up, down = links_of(choice)
        for rounds, other in later:
            up, down = (a if a == b else Switch(a, b, rounds) for a, b in zip((up, down), links_of(other), strict=True))
        if not down.absolute:
            down = EF21(down) if choice.stream else PerClient(down)
        method: Algorithm = FedAvg(self.local, up=ErrorFeedback(up) if choice.feedback else up, down=down)
        if choice.ahead:
            method = Detached(method, choice.ahead)
        return Averaged(method, DECAY)

    def choose(self, measured: Measured, key: Key, before: Choice | None = None) -> Verdict:
        """What suits a run that was measured. With ``before`` all but the split stays.

        Raises :class:`TooSmall` for a budget that does not hold a single entry in each direction, and names one that
        does.
        """
        least = least_packet(measured)
        rooms = [room for room in (self._room(measured, share) for share in SPLITS) if min(room) >= least]
        if not rooms and before is None:
            raise TooSmall(self._short(measured))
        if before is None:
            ways = [choose_codecs(measured, *room, key) for room in rooms]
        else:
            ways = [way for way in (with_bytes(before, *room) for room in rooms) if fits(measured, way, key)]
        errors = {
            way: distance_off(measured, way, key) for way in dict.fromkeys([*([before] if before else []), *ways])
        }
        least_off = min(errors.values())
        near = [way for way in errors if errors[way] <= RATHER * least_off]
        fast = measured.rates if self.seconds is None else None  # seconds are spent whole, whatever the split
        if fast is None:
            best = min(near, key=lambda way: errors[way])
        else:
            best = min(near, key=lambda way: way.up.bytes / fast[0] + way.down.bytes / fast[1])
        if before is None and best.feedback:
            best = best._replace(ahead=self._ahead(measured, best, key))
        whole = max(square(measured.movement.flat.double()), 1e-30)
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

    def _ahead(self, measured: Measured, choice: Choice, key: Key) -> float:
        """By which share of what they owe clients begin ahead: what is asked for, else by what the rehearsal says.

        Bytes have to be few, and less than a tenth of what clients owe common to them: of that all others bring their
        own share, and the server's model has moved by it when a client comes back.
        """
        if self.detach is not None:
            return self.detach
        whole, price = self._prices(measured)
        few = whole < FEW * sum(map(mul, price, measured.dense))
        each, common = residuals(measured, choice, key) if few else (0.0, 0.0)
        return AHEAD if few and common < ALIKE * each else 0.0

    def _room(self, measured: Measured, share: float) -> tuple[int, int]:
        """Bytes of a packet up and of one down, where the uplink has this share of what headers leave."""
        whole, price = self._prices(measured)
        left = whole - sum(map(mul, price, measured.fixed))
        most = length(measured.movement.flat)
        up = min(share * left / price[0], most)
        down = min((left - up * price[0]) / price[1], most)
        up = min((left - down * price[1]) / price[0], most)  # what the downlink cannot use
        return int(up), int(down)

    def _short(self, measured: Measured) -> str:
        """Why there is no room, and what would be enough."""
        whole, price = self._prices(measured)
        fixed = sum(map(mul, price, measured.fixed))
        most = (least_packet(measured) + 1) * min(max(price[0] / share, price[1] / (1 - share)) for share in SPLITS)
        name, unit = next((n, u) for n, u in UNITS.items() if getattr(self, n) is not None)
        enough = (fixed + most) * (getattr(self, name) / whole)
        digits = 0 if name == "bytes" else 1 - math.floor(math.log10(enough))
        raised = math.ceil(enough * 10**digits) / 10**digits
        instead = f"raise {name} to {raised:g}"
        if name == "budget" and raised > 1:
            visit = sum(measured.fixed) + 2 * (least_packet(measured) + 1)  # where every reply arrives
            instead = f"FedAvg itself sends little more: give bytes={visit} in place of the budget"
        return (
            f"{self!r}: a visit may take {whole:.3g} {unit}, and its headers and norm statistics take {fixed:.3g} of "
            f"it; {instead}"
        )

    def _budget_text(self, measured: Measured) -> list[str]:
        """The budget of a visit, in a sentence."""
        whole, price = self._prices(measured)
        unit = "s" if self.seconds is not None else "bytes"
        fixed = sum(map(mul, price, measured.fixed))
        mean = "On average a" if price[0] < 1 and self.budget is not None else "A"
        return [
            f"{mean} visit may take {whole:,.6g} {unit}; headers and norm statistics take {fixed:,.6g} of it at most."
        ]


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
        if choice.ahead:
            said.append(f"A client begins ahead by {choice.ahead:g} of what it owes.")
    elif choice.up.codec in LOSSY:
        said.append("No error feedback: the uplink's codec is no contraction.")
    return said
