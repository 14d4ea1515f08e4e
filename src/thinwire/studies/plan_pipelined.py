"""How long a batch of pipelined training takes under each schedule, before it is trained: ``thinwire pipeline plan``.

Parts are measured, messages encoded, and the rest is the law (:mod:`thinwire.pipeline.law`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import models
from ..data import IID
from ..errors import require
from ..key import Key
from ..models import MODELS
from ..pipeline import BPK, DDG, DNI, DSP, FR, GPipe, OneFOneB, PipeDream, PipeDream2BW, split
from ..pipeline.plan import Bytes, Profile, cut_into, least, measure, memory, messages, seconds
from ..pipeline.rates import largest_error, momentum_rate, sgd_rate
from ..pipeline.schedule import Schedule
from ..pipeline.split import places
from ..problem import standard
from ..ranges import Count, Latency, LinkRate, check_ranges, of_option
from ..train.device import unusable, usable
from ..train.slot import make_module
from .cells import draw
from .pipelined import schedule

SEED = 0  # of a model and a batch that are only measured


@dataclass(frozen=True)
class Candidate:
    """A schedule. ``seconds`` are of a batch; ``memory`` is bytes, a number a part, as ``staleness`` is batches.

    ``rates`` are the largest learning rates that Theorems 1.4.1 (SGD) and 1.4.2 (momentum .9) of the thesis allow, as
    shares of backpropagation's (:mod:`thinwire.pipeline.rates`). None for schedules that the theorems are not about:
    those whose gradients are stale and not of the parameters as they are.
    """

    schedule: str
    staleness: tuple[int, ...]
    seconds: float
    bytes: int  # of a batch, over all boundaries, both directions
    memory: tuple[int, ...]
    rates: tuple[float, float] | None = None


@dataclass(frozen=True)
class PipelinePlan:
    """The measurements, and what comes of them.

    ``error`` is M of the thesis' Assumption 1.4.3 on the batch: the largest norm of an error gradient between parts, in
    units of the loss by those of an activation.

    ``least`` is the DSP with the least delays that hide the links, ``limit`` what a batch waits for then.
    """

    model: str
    parts: Count
    batch: Count
    mbit: LinkRate
    latency: Latency
    cut: tuple[int, ...]
    profile: Profile
    ahead: tuple[int, ...]  # bytes of a batch's activations at each boundary, as they are
    rows: tuple[Candidate, ...]
    least: str
    limit: str
    error: float = 0.0

    def values(self) -> dict[str, Any]:
        """For JSON; each row has how many times as fast as plain model parallelism, GPipe and 1F1B it is."""
        values = asdict(self)
        for row in values["rows"]:
            row["faster_than"] = {name: of.seconds / row["seconds"] for name, of in self.baselines().items()}
        return values

    def baselines(self) -> dict[str, Candidate]:
        """The schedules that others are compared with."""
        return {
            row.schedule: row for row in self.rows if row.schedule.partition("(")[0] in ("BPK", "GPipe", "OneFOneB")
        }


def plan(
    schedules: Sequence[str] = (),
    use: Sequence[str] = (),
    *,
    data: str = "digits",
    model: str | None = None,
    data_dir: str | None = None,
    shape: tuple[int, ...] = (),
    classes: int = 10,
    parts: int = 3,
    batch: int = 64,
    cut: tuple[int, ...] = (),
    micro: int = 4,
    mbit: float = 100.0,
    latency: float = 0.01,
    device: str = "cpu",
) -> PipelinePlan:
    """Measure a model's parts, and reckon with links of ``mbit`` Mbit/s each way and ``latency`` seconds one way.

    The model is one of thinwire's, for examples of ``data``, or of ``shape`` and ``classes``. ``schedules`` are shown
    besides those that always are: BPK, GPipe, 1F1B and PipeDream-2BW with ``micro`` micro-batches, FR, DDG, PipeDream
    and the least DSP that hides the links, of each kind of links that a schedule has. Raises ``ValueError`` for what
    cannot be.
    """
    check_ranges(PipelinePlan, {"parts": parts, "batch": batch, "mbit": mbit, "latency": latency}, of_option)
    require(micro > 0, f"--micro {micro}: it must be at least 1")
    require(batch % micro == 0, f"--micro {micro}: a batch of {batch} is not so many micro-batches of equal size")
    require(len(cut) in (0, parts - 1), f"--cut {','.join(map(str, cut))}: {parts} parts begin at {parts - 1} places")
    require(usable(device), f"--device {device}: {unusable(device)}")
    typed = [schedule(text, use) for text in schedules]
    for one in typed:
        one.check(parts)
        cut_into(batch, one)
    module, x, y = _of_shape(model, shape, classes, batch) if shape else _of_data(data, model, data_dir, batch)
    module = module.to(device)
    stages = split(module, parts, at=cut) if cut else split(module, parts, sample=x, mbit=mbit)
    rehearsal = MeasuredParts(stages, x, y, measure(stages, x, y), mbit, latency, largest_error(stages, x, y))
    always = [BPK(), GPipe(micro), OneFOneB(micro), FR(), FR(barrier=True), DDG(), PipeDream()]
    if micro >= parts - 1:
        always.append(PipeDream2BW(micro))
    least = rehearsal.least(BPK())
    shown = dict.fromkeys([*always, least, *typed, *map(rehearsal.least, typed)])
    return PipelinePlan(
        model=model or f"the model of {data}",
        parts=parts,
        batch=batch,
        mbit=mbit,
        latency=latency,
        cut=places(stages),
        profile=rehearsal.profile,
        ahead=rehearsal.messages(BPK())[0],
        rows=tuple(map(rehearsal.row, shown)),
        least=repr(least),
        limit=rehearsal.limit(least),
        error=rehearsal.error,
    )


@dataclass(frozen=True)
class MeasuredParts:
    """A model's parts, measured with a batch, and the links between them: made once, and asked of each schedule.

    ``mbit`` and ``latency`` are those of :func:`plan`.
    """

    stages: Sequence[nn.Module]
    x: Tensor
    y: Tensor
    profile: Profile
    mbit: float
    latency: float
    error: float  # M, as in PipelinePlan
    sizes: dict[tuple[object, object, int], Bytes] = field(default_factory=dict)  # by what :meth:`messages` hang on

    def messages(self, schedule: Schedule) -> Bytes:
        """The bytes of a batch's messages, which are encoded once for all schedules with the same links."""
        key = (schedule.activations, schedule.gradients, schedule.pieces)
        if key not in self.sizes:
            self.sizes[key] = messages(self.stages, schedule, self.x, self.y)
        return self.sizes[key]

    def seconds(self, schedule: Schedule) -> float:
        """Seconds of a batch by the law."""
        times = self.profile.forward, self.profile.backward
        return seconds(schedule, *times, self.messages(schedule), self.mbit, self.latency)

    def least(self, like: Schedule) -> DSP:
        """The DSP with the least delays that hide the links, over those of a schedule."""
        plain = BPK(activations=like.activations, gradients=like.gradients)
        times = self.profile.forward, self.profile.backward
        delays = least(*times, self.messages(plain), self.mbit, self.latency)
        return replace(delays, activations=like.activations, gradients=like.gradients)

    def row(self, schedule: Schedule) -> Candidate:
        """All that a table has of a schedule."""
        sizes = self.messages(schedule)
        total, kept = sum(sum(way) for way in sizes), memory(schedule, self.profile, sizes)
        parts, stale = len(self.stages), schedule.staleness(len(self.stages))
        about = parts, max(stale), self.error
        proved = max(stale) == 0 or (schedule.keeps == "input" and not isinstance(schedule, DNI))
        rates = (sgd_rate(*about), momentum_rate(*about)) if proved else None
        return Candidate(repr(schedule), stale, self.seconds(schedule), total, kept, rates)

    def limit(self, schedule: DSP) -> str:
        """The part or the link that a batch waits for."""
        forward, backward, last = self.profile.forward, self.profile.backward, len(self.stages) - 1
        busy = {
            f"the link between parts {k} and {k + 1} ({way})": size * 8 / (self.mbit * 1e6)
            for way, each in zip(("activations", "error gradients"), self.messages(schedule), strict=True)
            for k, size in enumerate(each)
        }
        name = max(busy, key=lambda link: busy[link], default="")
        if name and busy[name] >= self.seconds(schedule) * (1 - 1e-9):
            return name
        replay = [forward[k] if schedule.m[k] and k < last else 0.0 for k in range(last + 1)]
        own = [f + b + r for f, b, r in zip(forward, backward, replay, strict=True)]
        return f"part {own.index(max(own))}"


def _of_data(data: str, model: str | None, data_dir: str | None, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A model and the first examples of a data set."""
    problem = standard(data, model, 1, IID(), SEED, data_dir=data_dir)
    there = len(problem.tasks[0])
    require(batch <= there, f"--batch {batch}: {data} has {there} examples")
    assert not isinstance(problem.model, nn.Module)
    x, y = problem.tasks[0].batch(torch.arange(batch))
    return make_module(problem.model, SEED), x, y


def _of_shape(model: str | None, shape: tuple[int, ...], classes: int, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A model and random examples of a shape."""
    require(model is not None, "--shape needs --model: there is no data set that says which suits it")
    assert model is not None
    require(min(shape) > 0, f"--shape {','.join(map(str, shape))}: numbers above 0")
    require(classes > 1, f"--classes {classes}: at least 2")
    build = lambda: models.build(model, shape, classes, vocabulary=classes if len(shape) == 1 else None)  # noqa: E731
    module = make_module(build, SEED)
    g = Key(SEED).generator("planned")
    takes = inspect.signature(MODELS[model]).parameters
    x = torch.randint(classes, (batch, *shape), generator=g) if "vocabulary" in takes else torch.randn(batch, *shape)
    y = torch.randint(classes, (batch, *(shape if "context" in takes else ())), generator=g)
    return module, x, y


def show(plan: PipelinePlan) -> None:
    """Two tables on the terminal: the parts, and the schedules."""
    profile = plan.profile
    lines = [
        [
            f"part {k}",
            f"{profile.forward[k]:.4g}",
            f"{profile.backward[k]:.4g}",
            f"{profile.weights[k] / 1e6:.2f}",
            f"{plan.ahead[k] / 1e6:.3f}" if k < plan.parts - 1 else "-",
        ]
        for k in range(plan.parts)
    ]
    title = f"{plan.model}, batches of {plan.batch}, links of {plan.mbit:g} Mbit/s and {plan.latency:g} s one way"
    places = ",".join(map(str, plan.cut))
    caption = f"The same parts again: --cut {places}" if places else ""
    draw(title, ["", "s forward", "s back", "MB of parameters", "MB sent ahead"], lines, (), caption)
    known = plan.baselines()
    head = ["schedule", "staleness", "rate of BP's", "s a batch", *(f"x {name}" for name in known)]
    head += ["MB a batch", "MB kept by part"]
    # DNI computes more than its parts do.
    bounds = {row.schedule: ("≥ ", "≤ ") if row.schedule.startswith("DNI(") else ("", "") for row in plan.rows}
    table = [
        [
            row.schedule,
            ", ".join(map(str, row.staleness)),
            "-" if row.rates is None else ", ".join(f"{rate:.2g}" for rate in row.rates),
            f"{bounds[row.schedule][0]}{row.seconds:.4g}",
            *(f"{bounds[row.schedule][1]}{of.seconds / row.seconds:.2f}" for of in known.values()),
            f"{row.bytes / 1e6:.2f}",
            ", ".join(f"{size / 1e6:.1f}" for size in row.memory),
        ]
        for row in plan.rows
    ]
    said = (
        f"{plan.least} has the least delays that hide the links: a batch then takes what {plan.limit} needs. "
        "Seconds are by the law, with one thread a part; 'x' is how many times as fast. Kept are at most so many bytes "
        "of activations that wait for their backward pass, of stashed parameters, and of messages that are sent or "
        "waited for; the model and the optimiser's state come on top. \"rate of BP's\" are the largest learning rates "
        "by those of backpropagation for which convergence is proved, with SGD and with momentum .9 (the thesis on "
        f"DSP, Theorems 1.4.1 and 1.4.2, with M = {plan.error:.2g} on this batch); larger ones may do."
    )
    if any(row.schedule.startswith("DNI(") for row in plan.rows):
        said += " DNI's auxiliary networks take more seconds (≥), and memory."
    draw("", head, table, ("staleness", "MB a batch"), said)
