"""Pipelined training under several schedules on one problem: ``thinwire pipeline run``.

In one process parts are simulated one after the other. Under ``torchrun`` each rank has a part, and all numbers are the
same, bit for bit.
"""

from __future__ import annotations

import copy
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import complete
from ..ddp.worker import batches
from ..errors import ExpressionError, nearest, require
from ..expression import parse, vocabulary
from ..key import Key
from ..pipeline import AQSGD, BPK, Pipeline, Simulation, pipeline, split
from ..pipeline.plan import cut_into, measure
from ..pipeline.schedule import SCHEDULES, Schedule
from ..pipeline.split import places
from ..problem import Problem
from ..ranges import AboveZero, Count, Decay, Latency, LinkRate
from ..run.ranks import device_of_rank, rank, share, size
from ..train.muon import Muon
from ..train.slot import make_module
from ..wire import State
from .axes import BOTH, WALL, Axis, clock
from .cells import (
    Column,
    Row,
    average,
    join_words,
    loss_text,
    mean_of_last,
    megabytes_text,
    percent_text,
    seconds_text,
)
from .expressions import of_another_kind, own
from .pipelined_run import LAST, PipelinedRun
from .read import Arm, Record, RecordedRun, description
from .steps import StepStudy
from .study import Numbers, Study, StudyRun, option_field

EACH = ("seconds for each part", "0.02,0.03,0.02", float)  # of forward and backward
MEASURED = ("cut", "forward", "backward")  # when a study begins, unless they are given
BOUNDARIES = 4  # each of which has a column


def schedule(text: str, use: Sequence[str] = ()) -> Schedule:
    """A schedule from its expression; inside it names are those of links: ``FR(activations=Half())``.

    ``1F1B(4)`` is ``OneFOneB(4)``, because a name does not begin with a digit. ``use`` are modules of the user's own.
    """
    text = re.sub(r"^\s*1F1B\b", "OneFOneB", text)
    names: dict[str, type] = {**vocabulary(), **SCHEDULES, "AQSGD": AQSGD, **own(use)}
    outer = text.partition("(")[0].strip()
    if other := of_another_kind(Pipelined.kind, outer, names):
        raise ExpressionError(other + (f"; here are {', '.join(SCHEDULES)}" if outer in names else ""))
    if outer not in names or not issubclass(names[outer], Schedule):
        known = f"known are {', '.join(SCHEDULES)}"
        link = f"; a link is one of a schedule's, as in BPK(activations={text.strip()})" if outer in names else ""
        raise ExpressionError(f"no schedule {outer!r}{nearest(outer, SCHEDULES)}; {known}{link}")
    made: Schedule = parse(text, names=names)
    return made


def _sgd(study: Pipelined, parameters: Iterable[nn.Parameter], plain: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, study.lr, study.momentum, weight_decay=study.weight_decay)


def _adamw(study: Pipelined, parameters: Iterable[nn.Parameter], plain: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.AdamW(parameters, study.lr, (study.momentum, 0.999), weight_decay=study.weight_decay)


def _nadam(study: Pipelined, parameters: Iterable[nn.Parameter], plain: Iterable[nn.Parameter]) -> Optimizer:
    betas, decay = (study.momentum, 0.999), study.weight_decay
    return torch.optim.NAdam(parameters, study.lr, betas, weight_decay=decay, decoupled_weight_decay=True)


def _muon(study: Pipelined, parameters: Iterable[nn.Parameter], plain: Iterable[nn.Parameter]) -> Optimizer:
    return Muon(parameters, study.lr, study.momentum, study.weight_decay, plain)


OPTIMIZERS = {"SGD": _sgd, "AdamW": _adamw, "NAdam": _nadam, "Muon": _muon}


@dataclass(frozen=True)
class Pipelined(StepStudy):
    """A study of schedules of pipelined training.

    - ``parts``: of the model. ``cut`` has the place, in its chain of modules, at which each part but the first begins;
      without it the model is measured when the study begins, and what was found stays with the study.
    - ``optimizer``: SGD, AdamW, NAdam or Muon (:class:`~thinwire.train.muon.Muon`, whose ``plain`` parameters are
      embeddings and the last dense layer). ``momentum`` is SGD's and Muon's, and the first beta of the others.
    - ``autocast``: "bfloat16" trains, evaluates and measures within ``torch.autocast``. Parameters stay in 32 bits, and
      what parts hand on is as narrow as their last layer makes it.
    - ``rates``: a factor of the learning rate for each part. ``clip``: the largest norm of a part's gradient.
    - ``mbit``, ``latency``: of each link between parts, in Mbit/s each way and seconds one way. The model is cut for
      this rate where no ``cut`` is given. Simulated seconds are those of the law, with the bytes that were sent, and
      with ``forward`` and ``backward``, the seconds that a batch takes at each part. Without these two they are
      measured when the study begins, and stay with it.
    - ``record``: "staleness" adds what :mod:`thinwire.pipeline.watch` measures to each record, by part. ``moved`` is
      how far parameters moved between the forward pass of a batch and the step that its gradient makes, the mean since
      the record before, and ``weights`` their own length. In one process, of the last batch also ``difference``, the
      distance of the gradient from that of backpropagation through all parts as they are, and ``gradient``, the length
      of that one. ``part_parameters`` counts what each part trains. It changes no result. Each part keeps a copy of its
      parameters for each batch on its way.
    """

    kind: ClassVar[str] = "pipelined"
    may_change: ClassVar[tuple[str, ...]] = (*StepStudy.may_change, "record")
    example: ClassVar[str] = "DSP((1, 1, 0), (4, 2, 0))"
    noun: ClassVar[str] = "a schedule of pipelined training"
    outermost: ClassVar[Mapping[str, type]] = SCHEDULES
    asks: ClassVar[tuple[str, str]] = "schedules", 'Schedules, e.g. "BPK()" "DSP((1,1,0),(4,2,0))" "1F1B(4)".'
    out: ClassVar[str] = "runs/pipeline"
    lists: ClassVar[Mapping[str, Numbers]] = {
        "cut": Numbers(
            "places in the chain",
            "4,9",
            int,
            "The places in the chain of modules where parts begin, e.g. 4,9 (default: by measured seconds).",
        ),
        "rates": Numbers(
            "a factor for each part", "0.5,0.7,1", float, "A factor of the rate for each part, e.g. 0.5,0.7,1."
        ),
        "forward": Numbers(*EACH, "Seconds of a batch at each part, forward, e.g. 0.02,0.03,0.02 (else measured)."),
        "backward": Numbers(*EACH, "Seconds of a batch at each part, back (else measured)."),
        **StepStudy.lists,
    }

    batch: Count = option_field(64, "Examples of a batch.")
    momentum: Decay = option_field(0.9, "Of SGD and Muon; the first beta of AdamW and NAdam.")
    parts: Count = option_field(3, "Parts that the model is cut into.")
    optimizer: str = option_field("SGD", f"{', '.join(OPTIMIZERS)}.")
    clip: AboveZero | None = option_field(None, "The largest norm of a part's gradient; larger ones are scaled down.")
    mbit: LinkRate = option_field(
        100.0, "Rate of a link between parts, Mbit/s each way: for simulated seconds and the cut."
    )
    latency: Latency = option_field(0.01, "Seconds that a message takes besides, one way.")
    autocast: str | None = option_field(None, "bfloat16: compute in it, with 32-bit parameters.")
    record: Literal["staleness"] | None = option_field(
        None, "What records have besides: staleness (how far parts move while a batch is on its way)."
    )
    rates: tuple[float, ...] = ()
    cut: tuple[int, ...] = ()
    forward: tuple[float, ...] = ()
    backward: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.parts
        known = self.optimizer in OPTIMIZERS
        near = nearest(self.optimizer, OPTIMIZERS)
        require(known, f"--optimizer {self.optimizer}{near}: it is one of {', '.join(OPTIMIZERS)}")
        known = self.autocast in (None, "bfloat16")
        require(known, f"--autocast {self.autocast}: bfloat16, or leave it out (float16 needs a loss that is scaled)")
        for name, values in (("rates", self.rates), ("forward", self.forward), ("backward", self.backward)):
            shown = ",".join(f"{value:g}" for value in values)
            fits = len(values) in (0, parts) and all(0 <= value < math.inf for value in values)
            require(fits, f"--{name} {shown}: a number for each of the {parts} parts, not negative")
        require(bool(self.forward) == bool(self.backward), "--forward and --backward: give both, or none")
        shown = ",".join(map(str, self.cut))
        require(len(self.cut) in (0, parts - 1), f"--cut {shown}: {parts} parts begin at {parts - 1} places after 0")
        for method in self.parse_methods():
            method.check(parts)
            cut_into(self.batch, method)
        require(
            size() in (1, parts),
            f"--parts {parts}: each part is a process under torchrun, and there are {size()}; start {parts} "
            f"(--nproc-per-node {parts}), or one without torchrun",
        )

    @staticmethod
    def method(text: str, use: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> Schedule:
        return schedule(text, use)

    def stages(self, problem: Problem, seed: int, sample: Tensor | None = None) -> list[nn.Sequential]:
        """The parts of a model that begins. ``sample`` is measured with where no ``cut`` is known."""
        given = problem.model
        module = copy.deepcopy(given) if isinstance(given, nn.Module) else make_module(given, seed)
        module = module.to(device_of_rank(self.device))
        if self.cut or self.parts == 1:
            return split(module, self.parts, at=self.cut)
        return split(module, self.parts, sample=sample, mbit=self.mbit)

    def as_measured(self, problem: Problem) -> Pipelined:
        """The same study with what is measured when it begins: where the model is cut, and the seconds of its parts.

        Of several ranks rank 0's seconds count.
        """
        x, y = next(self.draw_batches(problem, self.seeds[0]))[:2]
        with self.narrow():
            stages = self.stages(problem, self.seeds[0], x)
        study = replace(self, cut=places(stages))
        if self.forward:
            return study

        def measure_parts() -> State:
            if rank() != 0:  # a neighbour that computes would be measured too
                return []
            with self.narrow():
                profile = measure(stages, x, y)
            return [[float(f"{each:.4g}") for each in way] for way in (profile.forward, profile.backward)]

        forward, backward = share(measure_parts)[0]
        return replace(study, forward=tuple(forward), backward=tuple(backward))

    def rehearse(self, method: Schedule, problem: Problem) -> None:
        study = self if self.forward else self.as_measured(problem)
        stages = study.stages(problem, self.seeds[0])
        Simulation(stages, study.optimizers(stages), method)

    def as_begun(self, out: Path, problems: dict[int, Problem]) -> Study:
        if self.forward and (self.cut or self.parts == 1):
            return self
        begun, first = description(out) if (out / "study.json").exists() else {}, self.seeds[0]
        if begun.get("forward") and all(begun.get(f) == v for f, v in self.values().items() if f not in MEASURED):
            return Pipelined.of(begun, out / "study.json")
        if first not in problems:
            problems[first] = self.problem(first)
        return self.as_measured(problems[first])

    def optimizers(self, stages: Sequence[nn.Module]) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
        """A function that makes a part's optimiser."""
        modules = [module for stage in stages for module in stage.modules()]
        dense = [module for module in modules if isinstance(module, nn.Linear)][-1:]
        apart = [*(module for module in modules if isinstance(module, nn.Embedding)), *dense]
        plain = [p for module in apart for p in module.parameters()]
        return lambda parameters: OPTIMIZERS[self.optimizer](self, parameters, plain)

    def factor(self, step: int, part: int) -> float:
        """The factor of the learning rate at a step of a part."""
        return self.rate(step) * (self.rates[part] if self.rates else 1.0)

    def narrow(self) -> AbstractContextManager[Any]:
        """Within it models compute as ``autocast`` says."""
        kind = torch.device(self.device).type
        return nullcontext() if self.autocast is None else torch.autocast(kind, getattr(torch, self.autocast))

    def draw_batches(self, problem: Problem, seed: int, begin: int = 0) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """Inputs, targets and the numbers of the examples of each batch, from batch ``begin`` on.

        What is left of an epoch after as many whole batches as there are is not used.
        """
        task = problem.tasks[0]
        for step, (rows,) in enumerate(islice(batches(len(task), 1, self.batch, seed), begin, None), begin):
            x, y = task.batch(rows, Key(seed, step, 0, "pipeline").generator("augment"))
            yield x, y, rows.tolist()

    def training(self, method: Schedule, seed: int, stages: Sequence[nn.Module]) -> Simulation | Pipeline:
        """A training that begins: all parts, or under ``torchrun`` that of this rank."""
        options: dict[str, Any] = {"seed": seed, "rate": self.factor, "clip": self.clip}
        if size() == 1:
            return Simulation(stages, self.optimizers(stages), method, **options)
        group = dist.new_group(list(range(size())), backend="gloo")  # whose connections a failure may close
        return pipeline(stages, self.optimizers(stages), method, **options, group=group)

    def start(self, job: StudyRun) -> PipelinedRun:
        return PipelinedRun(self, job)

    def title(self, about: Record) -> str:
        return f"{self.task or self.data}, {self.parts} parts, batches of {self.batch}, {self.steps} steps"

    def about(self, job: StudyRun) -> Record:
        return {**super().about(job), "staleness": list(job.method.staleness(self.parts))}

    # -- what table, curves and report show ------------------------------------

    axes: ClassVar[Mapping[str, Axis]] = {
        "bytes_total": Axis(BOTH, "MB sent between parts, both directions"),
        "seconds": Axis(clock, "seconds by the law"),
        "wall_seconds": Axis(WALL, "wall-clock seconds of this training"),
    }
    ways: ClassVar[Mapping[str, str]] = {"up_bytes": "activations, ahead", "down_bytes": "error gradients, back"}
    ways_said: ClassVar[str] = "All bytes between parts, in the mean over seeds."
    last: ClassVar[int] = LAST
    least: ClassVar[tuple[str, ...]] = (
        *("s here", "best", "test loss", "total / BPK", "s by the law", "MB back", "MB ahead"),
        *(f"MB {part}-{part + 1}" for part in reversed(range(BOUNDARIES))),
    )
    notes: ClassVar[Mapping[str, str]] = {
        "loss": f"Accuracy and losses are means of the last {LAST} evaluations.",
        "staleness": "Staleness: batches between a batch's forward pass and the step that it leads to, part by part.",
        "MB ahead": "MB (10^6 bytes) ahead are activations, MB back error gradients, of what was really serialised, "
        "headers included.",
        "MB 0-1": "'0-1' is the boundary between parts 0 and 1, ahead + back.",
        "s by the law": "Seconds by the law are those of the parts' measured times and of the links' rate and latency. "
        "DNI's auxiliary networks take more (≥).",
        "x BPK": "'x BPK': how many times as fast as plain model parallelism.",
    }

    @staticmethod
    def plain(expression: str) -> bool:
        return expression == complete(BPK())

    @staticmethod
    def row(arm: Arm) -> Row:
        about = arm.runs[0].about
        by = {f"bytes_{way}": _by_boundary(arm, f"{way}_bytes") for way in ("forward", "backward")}
        clocks = [run.rounds[-1]["clock"] if run.rounds else 0.0 for run in arm.runs]
        return {
            "train_loss": average(mean_of_last(run, "train_loss", LAST) for run in arm.runs),
            "test_loss": average(mean_of_last(run, "test_loss", LAST) for run in arm.runs),
            **by,
            "staleness": about["staleness"],
            "clock": statistics.fmean(clocks),
            "seconds_per_batch": statistics.fmean(
                c / max(1, run.length) for c, run in zip(clocks, arm.runs, strict=True)
            ),
        }

    @staticmethod
    def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
        boundaries = max(len(row["bytes_forward"]) for row in rows)

        def between(part: int) -> Column:
            def cell(row: Row) -> str:
                ways = [row[f"bytes_{way}"] for way in ("forward", "backward")]
                return " + ".join(megabytes_text(way[part]) for way in ways) if part < len(ways[0]) else "-"

            return f"MB {part}-{part + 1}", cell

        return (
            ("loss", lambda row: loss_text(row["train_loss"])),
            ("test loss", lambda row: loss_text(row["test_loss"])),
            ("staleness", lambda row: ", ".join(map(str, row["staleness"]))),
            *(between(part) for part in range(boundaries) if boundaries <= BOUNDARIES),
            ("MB ahead", lambda row: megabytes_text(row["bytes_up"])),
            ("MB back", lambda row: megabytes_text(row["bytes_down"])),
            ("total / BPK", lambda row: percent_text(row["share_total"])),
            ("s a batch", lambda row: _sign("≥", row) + f"{row['seconds_per_batch']:.4g}"),
            ("s by the law", lambda row: _sign("≥", row) + seconds_text(row["clock"])),
            ("x BPK", lambda row: _sign("≤", row) + f"{row['times_as_fast']:.2f}" if row["times_as_fast"] else "-"),
            ("s here", lambda row: seconds_text(row["seconds"])),
        )

    @staticmethod
    def words(about: Record, study: Record) -> list[tuple[str, str | None]]:
        own = [f"{f + b:.3g}" for f, b in zip(about["forward"], about["backward"], strict=True)]
        decay = ", ".join(f"{100 * share:g} %" for share in about.get("decay") or ())
        rates = join_words([f"{factor:g}" for factor in about["rates"]]) if about.get("rates") else None
        more = f", weight decay {about['weight_decay']:g}" if about.get("weight_decay") else ""
        begin = join_words([str(place) for place in about["cut"]]) if about["cut"] else None
        return [
            ("Parts", f"{about['parts']}" + (f"; from the second on they begin at module {begin}" if begin else "")),
            ("Steps", f"{about['steps']:,}, of {about['batch']} examples"),
            ("Optimiser", f"{about['optimizer']}, learning rate {about['lr']:g}, momentum {about['momentum']:g}{more}"),
            ("Rates", f"{rates} times that, by part" if rates else None),
            ("Clipping", f"gradients of a part to a norm of {about['clip']:g}" if about.get("clip") else None),
            ("Decay", f"to a tenth of the rate after {decay} of the steps" if decay else None),
            ("Links", f"{about['mbit']:g} Mbit/s each way, {about['latency']:g} s one way"),
            ("Seconds", f"a batch takes parts {join_words(own)} s forward and back"),
        ]

    @staticmethod
    def scale(runs: Sequence[RecordedRun], study: Record) -> list[str]:
        about = runs[0].about
        return [f"{about['parts']} parts", f"batches of {about['batch']}", f"{about['steps']} steps"]


def _by_boundary(arm: Arm, name: str) -> list[float]:
    """The mean over seeds of a sum over lines, of each boundary between parts."""
    sums = [[sum(each) for each in zip(*(r[name] for r in run.rounds), strict=True)] for run in arm.runs]
    return [statistics.fmean(each) for each in zip(*sums, strict=True)]


def _sign(sign: str, row: Row) -> str:
    """Before seconds that leave out what a schedule computes besides its parts."""
    return f"{sign} " if row["expression"].startswith("DNI(") else ""
