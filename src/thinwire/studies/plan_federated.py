"""A plan of federated training over slow links: what methods would cost, and reach at first. ``thinwire plan``.

Bytes and seconds of a whole run are predicted (:mod:`thinwire.studies.predict`). Accuracy is that of a rehearsal: a
few rounds that are really trained.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

from ..algorithms import LUAR, Algorithm, Auto, FedAvg
from ..algorithms.auto import DEFAULT, TooSmall
from ..errors import CombinationError, NonFinite, require
from ..federated.result import Result
from ..federated.setting import Setting
from ..key import Key
from ..links import EF21, LBGM, STC, ErrorFeedback, Half, Link, PerClient, TransformCoding
from ..local import Trainer
from ..params import Params
from ..problem import Problem
from ..ranges import Mbit, check_ranges, of_option
from ..ranges import Range as Values
from .cells import draw
from .federated import Federated
from .predict import ABOUT, Range, Rehearsal, range_text, transfer_text

CLOSE = 0.02  # of accuracy: what a rehearsal of a few rounds cannot tell apart


@dataclass(frozen=True)
class Reached:
    """The first evaluation of a rehearsal that is at the target: what it had cost by then."""

    rounds: int
    bytes: int  # up and down
    seconds: float


@dataclass(frozen=True)
class Alternative:
    """An alternative: ``bytes`` and ``seconds`` are predicted for all rounds, lowest and highest.

    ``accuracy`` is that of the trained model at the end of the rehearsal, 0 to 1 (of segmented pictures the Dice
    coefficient), ``served`` that of a served average, which begins to pay after more rounds than a rehearsal has. None
    where there is no test set, or where training diverged.
    """

    name: str
    expression: str
    bytes_up: Range
    bytes_down: Range
    seconds: Range
    accuracy: float | None
    served: float | None
    reached: Reached | None
    why: tuple[str, ...] = ()  # of what was chosen by a measurement


@dataclass(frozen=True)
class FederatedPlan:
    """The alternatives, the one that is proposed, why, and the command that trains it."""

    rounds: int
    clients: int
    sample: int
    mbit: Mbit
    mbit_up: Mbit
    target: Annotated[float, Values(lambda x: 0 < x <= 1, "an accuracy above 0 and at most 1")] | None
    rehearsed: int
    rows: tuple[Alternative, ...]
    best: str
    why: str
    command: str
    refused: str = ""  # why what Auto(0.01) chooses is not among the rows

    def values(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def plan(
    study: Federated,
    problem: Problem,
    *,
    auto: Auto,
    local: Trainer | None = None,
    mbit: float = 1.0,
    mbit_up: float | None = None,
    target: float | None = None,
    rehearse: int = 3,
    typed: Sequence[str] = (),
) -> FederatedPlan:
    """Alternatives for a run on links of ``mbit`` Mbit/s to each client and ``mbit_up`` from it.

    The methods of ``study`` are shown after those that always are: FedAvg, FedAvg with 16-bit floats, STC both ways,
    LUAR, LBGM, TransformCoding as a stream and per client, and what ``auto`` chooses. Both forms of TransformCoding
    get the bytes that ``auto`` chose. What an :class:`Auto` among the methods of ``study`` chooses is a row as well.
    Clients of these rows train by ``local``, in place of ``auto``'s own trainer where it is given: adapters need
    :class:`~thinwire.local.LocalAdamW`, as SGD hardly moves them. The methods of ``study`` keep the trainer that they
    have.
    All of them start from a model that clients know. Each is trained for ``rehearse`` rounds. Where a hundredth does
    not hold even the headers, as of a tiny model, the row of ``auto`` is left out, and ``refused`` says what to give.
    TransformCoding then gets the bytes of the first other :class:`Auto`, if there is one. Another budget that is too
    small is an error.

    Of those that are at the ``target`` in their rehearsal the one with the least seconds to it is proposed. Where none
    is, the one with the least seconds for all rounds, of those at most two points below the best accuracy. ``typed``
    are the options of the command that is proposed. Raises ``ValueError`` for what cannot be.
    """
    check_ranges(FederatedPlan, {"mbit": mbit, "mbit_up": mbit_up, "target": target}, of_option)
    require(rehearse > 0, f"--rehearse {rehearse}: it must be at least 1 round")
    given = [method for method in study.parse_methods() if method != auto]
    auto = auto if local is None else replace(auto, local=local)
    up, sample, seed = mbit_up or mbit, study.setting.cohort(len(problem.tasks)), study.setting.seed
    rehearsal = Rehearsal(problem, study.rounds, sample, mbit, seed, "known", up)
    setting = replace(study.setting, start="known")
    alternatives, refused = _alternatives(given, auto, rehearsal, setting)

    def row(one: _Alternative) -> Alternative:
        prediction = rehearsal.predict(one.method)
        try:
            result = rehearsal.train(one.method, rehearse, setting)
        except NonFinite:
            result = None
        curve = [] if result is None else _curve(result)
        served = [] if result is None else _curve(result, "served_")
        return Alternative(
            name=one.name,
            expression=repr(one.method),
            bytes_up=prediction.bytes_up,
            bytes_down=prediction.bytes_down,
            seconds=prediction.seconds,
            accuracy=curve[-1] if curve else None,
            served=served[-1] if served else None,
            reached=_at_target(result, curve, target),
            why=one.why,
        )

    rows = tuple(map(row, alternatives))
    best, reason = _best(rows, target, rehearse)
    command = ["thinwire", "run", best.expression, "--start", "known", *typed]
    return FederatedPlan(
        rounds=study.rounds,
        clients=len(problem.tasks),
        sample=sample,
        mbit=mbit,
        mbit_up=up,
        target=target,
        rehearsed=rehearse,
        rows=rows,
        best=best.expression,
        why=reason,
        command=shlex.join(command),
        refused=refused,
    )


class _Alternative(NamedTuple):
    """A method that is a row, its name there, and why it was chosen, where a measurement chose it."""

    method: Algorithm
    name: str
    why: tuple[str, ...] = ()


def _alternatives(
    given: Sequence[Algorithm | Auto], auto: Auto, rehearsal: Rehearsal, setting: Setting
) -> tuple[list[_Alternative], str]:
    """All rows to be, in their order, and why what ``auto`` chooses is not among them, if it is not."""
    coded, refused = None, ""
    chosen: dict[Algorithm, _Alternative] = {}
    for each in dict.fromkeys([auto, *(method for method in given if isinstance(method, Auto))]):
        try:
            run = rehearsal.choose(each, setting)
        except TooSmall as error:  # headers alone are more: the model is tiny
            if each != auto or auto.budget != DEFAULT:  # which was asked for
                raise
            refused = str(error)
            continue
        method, first = run.algorithm, run.choices[0]
        coded = coded or (first.choice.up.bytes, first.choice.down.bytes)
        before = chosen.get(method)
        same = [before.name.partition(": ")[0]] if before else []
        why = before.why if before else tuple(first.why)
        chosen[method] = _Alternative(method, f"{' and '.join([*same, _short(each)])}: {method!r}", why)
    plain = [*_always(auto.local, rehearsal, coded), *(method for method in given if isinstance(method, Algorithm))]
    named = {method: _Alternative(method, repr(method)) for method in plain}
    return list((named | chosen).values()), refused


def _always(local: Trainer, rehearsal: Rehearsal, coded: tuple[int, int] | None) -> list[Algorithm]:
    """The alternatives of every plan that go with the problem's model."""

    def fedavg(up: Link, down: Link) -> FedAvg:
        return FedAvg(local, up=up, down=down)

    first: list[Algorithm] = [
        FedAvg(local),
        fedavg(Half(), Half()),
        fedavg(ErrorFeedback(STC(0.01)), EF21(STC(0.01))),
    ]
    last: list[Algorithm] = [FedAvg(local, up=LBGM(threshold=0.2))]
    if coded is not None:
        up, down = map(TransformCoding, coded)
        last += [fedavg(ErrorFeedback(up), each) for each in (EF21(down), PerClient(down))]
    x = Params.trainable(rehearsal.module)
    for recycle in (len(x.names) // 4, 1):  # about half of the kernels, where each has a bias
        luar = LUAR(FedAvg(local), recycle=max(1, recycle))
        with contextlib.suppress(CombinationError, ValueError):  # a model of one layer has none to recycle
            luar.init(x, 1, Key(rehearsal.seed))
            return [*first, luar, *last]
    return [*first, *last]


def _short(auto: Auto) -> str:
    """The expression without local training, which all alternatives share."""
    return repr(replace(auto, local=Auto().local))


def _curve(result: Result, of: str = "") -> list[float]:
    """The accuracy of each round; of segmented pictures the Dice coefficient."""
    names = (f"{of}accuracy", f"{of}dice")
    name = next((name for name in names if any(r.get(name) is not None for r in result.rounds)), None)
    return [] if name is None else [r[name] or 0.0 for r in result.rounds]


def _at_target(result: Result | None, curve: Sequence[float], target: float | None) -> Reached | None:
    number = next((n for n, value in enumerate(curve, 1) if target is not None and value >= target), None)
    if result is None or number is None:
        return None
    sent = sum(r["up_bytes"] + r["down_bytes"] for r in result.rounds[:number])
    return Reached(number, sent, result.rounds[number - 1]["clock"])


def _best(rows: Sequence[Alternative], target: float | None, rehearse: int) -> tuple[Alternative, str]:
    """The row that is proposed, and why."""
    there = [(row.reached.seconds, row) for row in rows if row.reached is not None]
    if there:
        seconds, best = min(there, key=lambda pair: (pair[0], not pair[1].why))
        assert best.reached is not None
        return (
            best,
            f"It is at {target:.1%} first: after {best.reached.rounds} rounds and {seconds:,.1f} s of transfer.",
        )
    known = [row.accuracy for row in rows if row.accuracy is not None]
    close = [row for row in rows if not known or (row.accuracy is not None and row.accuracy >= max(known) - CLOSE)]
    best = min(close, key=lambda row: (row.seconds[1], not row.why))
    missed = "" if target is None else f"None is at {target:.1%} after {rehearse} rounds: --rehearse takes more. "
    if not known:
        return best, "There is no test set, so it is the one with the least seconds of transfer."
    if len(known) > 1 and max(known) == min(known) < 1:
        missed += f"All are at {known[0]:.1%}, so the rehearsal tells nothing: --rehearse takes more rounds, and "
        missed += "--local another trainer, which adapters need: LocalAdamW(0.001). "
    within = f"at most {100 * CLOSE:g} points below the best accuracy after {rehearse} rounds"
    return best, f"{missed}It has the least seconds of transfer of those that are {within}."


def show(plan: FederatedPlan) -> None:
    """The table on the terminal, why, and the command."""
    lines = [
        [
            row.name,
            range_text(row.bytes_up, megabytes),
            range_text(row.bytes_down, megabytes),
            range_text(row.seconds, transfer_text(row.seconds)),
            "-" if row.accuracy is None else f"{row.accuracy:.1%}",
            *([] if plan.target is None else [_to(row.reached)]),
        ]
        for row in plan.rows
    ]
    rate = f"{plan.mbit:g} Mbit/s down, {plan.mbit_up:g} up"
    title = f"{plan.rounds} rounds of {plan.sample} of {plan.clients} clients, links of {rate}: transfer alone"
    head = ["method", "MB up", "MB down", "seconds", f"after {plan.rehearsed} rounds"]
    head += [] if plan.target is None else [f"to {plan.target:.1%}"]
    trained = f"Accuracy is that of {plan.rehearsed} rounds, really trained."
    note = f"Bytes and seconds are predicted for all rounds. {ABOUT} {trained}"
    draw(title, head, lines, (), note)
    for row in plan.rows:
        for sentence in row.why:
            print(f"  {sentence}")
    if plan.refused:
        print(f"  Left out: {plan.refused}")
    print(f"\n{plan.best}\n{plan.why}\n\n{plan.command}")


def megabytes(x: float) -> str:
    """Bytes as megabytes, of 10^6 bytes."""
    return f"{x / 1e6:,.3f}"


def _to(reached: Reached | None) -> str:
    if reached is None:
        return "-"
    return f"{reached.rounds} rounds, {megabytes(reached.bytes)} MB, {reached.seconds:,.1f} s"
