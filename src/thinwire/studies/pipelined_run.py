"""One run of a study of pipelined training: all parts in this process, or under ``torchrun`` that of this rank."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..config import complete
from ..pipeline import Pipeline, Simulation
from ..pipeline.plan import seconds
from ..pipeline.stage import Stage
from ..pipeline.watch import Watch, backpropagate, difference, due, lemma, mean_moved, parameters, size
from ..run.folder import Folder
from ..run.loop import Record, Run, finite
from ..run.ranks import rank, share
from ..task import Supervised
from ..train.evaluation import mean_metrics, portions, tally
from ..version import code_version
from ..wire import Packet, State
from .study import StudyRun

if TYPE_CHECKING:
    from .pipelined import Pipelined

LAST = 5  # evaluations, whose mean is the accuracy
STALE = (  # by part
    *("moved", "weights", "difference", "gradient", "part_parameters"),
    *("forward_difference", "forward_gradient", "ways"),
)
AT_ONCE = 500  # examples of a test that go through the parts together


class PipelinedRun(Run[dict[str, Tensor]]):
    """A training of a study between two evaluations. Its result is the model's ``state_dict()``, on every rank.

    Batches are trained when the next evaluation is due, because ranks tell one another of an error only then.
    """

    def __init__(self, study: Pipelined, job: StudyRun) -> None:
        self.study, self.job, self.number, self.records = study, job, 0, list[Record]()
        with ExitStack() as stack:
            stack.enter_context(study.narrow())
            self.stages = study.stages(job.problem, job.seed)
            self.training = study.training(job.method, job.seed, self.stages)
            behind = job.method.delays(study.parts)[0]
            for stage in self.training.stages.values():
                stage.watch = None if study.record is None else Watch(behind)
            self._begin()
            self.held = stack.pop_all()

    def close(self) -> None:
        self.held.close()

    def _begin(self) -> None:
        self.batches, self.waiting = self.study.draw_batches(self.job.problem, self.job.seed, self.number), 0

    def step(self, evaluate: bool = True) -> Record | None:
        """Count a batch. Where it is to evaluate, train with all that were counted, and return the record."""
        self.number, self.waiting = self.number + 1, self.waiting + 1
        if not evaluate:
            return None
        study, count, began = self.study, self.waiting, time.monotonic()
        by_rank = share(self._advance)
        sent = [each for _, parts, _ in by_rank for each in parts]  # in the order of parts
        stale = [each for _, _, parts in by_rank for each in parts]
        tested = share(lambda: _test(self.training, self.job.problem.test))[-1]  # the last part's
        losses, clock = by_rank[-1][0], self.records[-1]["clock"] if self.records else 0.0
        ahead, back = [a for a, _ in sent[:-1]], [b for _, b in sent[1:]]
        each = [bytes_ / count for bytes_ in ahead], [bytes_ / count for bytes_ in back]
        record = {
            "step": self.number,
            "train_loss": statistics.fmean(losses) if losses else None,
            "up_bytes": sum(ahead),
            "down_bytes": sum(back),
            "forward_bytes": ahead,
            "backward_bytes": back,
            **tested,
            **dict(zip(STALE, map(list, zip(*stale, strict=True)), strict=False)),
            "clock": clock
            + count * seconds(self.job.method, study.forward, study.backward, each, study.mbit, study.latency),
            "seconds": time.monotonic() - began,
        }
        self.records.append(record)
        self.waiting = 0
        return record

    def _advance(self) -> State:
        """Train with the batches that wait: the losses, the bytes of each part here, ahead and back, and its staleness.

        After the last step of the study what is on its way comes to its end too.
        """
        training, count = self.training, self.waiting
        before = {part: (own.forward_sent, own.backward_sent) for part, own in training.ledger.items()}
        losses = [training.step(x, y, examples) for x, y, examples in islice(self.batches, count - 1)]
        plain = self._plain_gradients()
        losses += [training.step(x, y, examples) for x, y, examples in islice(self.batches, 1)]
        stale = [
            [mean_moved(stage), size(stage), *_against(stage, plain), parameters(stage), *self._lemma(stage.part)]
            for stage in training.stages.values()
            if stage.watch is not None
        ]
        if self.number == self.study.steps:
            losses.append(training.drain())
        sent = [
            [own.forward_sent - before[part][0], own.backward_sent - before[part][1]]
            for part, own in training.ledger.items()
        ]
        return [[float(loss) for loss in losses if loss is not None], sent, stale]

    def _plain_gradients(self) -> dict[int, tuple[int, Tensor]]:
        """Of each part that is about to make a step: its batch, and the gradient by backpropagation. In one process."""
        training, study = self.training, self.study
        if study.record is None or not isinstance(training, Simulation):
            return {}
        stages = [training.stages[part] for part in range(study.parts)]
        by_part = {part: batch for part, stage in enumerate(stages) if (batch := due(stage)) is not None}
        pairs = {k: next(study.draw_batches(self.job.problem, self.job.seed, k))[:2] for k in set(by_part.values())}
        return {part: (batch, backpropagate(stages, part, batch, *pairs[batch])) for part, batch in by_part.items()}

    def _lemma(self, part: int) -> list[float | None]:
        """Lemma 1.4.1 for the last step of a part, as in :class:`~thinwire.pipeline.watch.Lemma`. In one process."""
        training, study, ratios = self.training, self.study, None
        own = training.stages[part].watch
        if isinstance(training, Simulation) and own is not None and own.gradient is not None:
            stages = [training.stages[k] for k in range(study.parts)]
            pair = next(study.draw_batches(self.job.problem, self.job.seed, own.gradient[0]))[:2]
            ratios = lemma(stages, part, *pair)
        return [None] * 3 if ratios is None else list(ratios)

    # -- to disk and back -------------------------------------------------------

    def fingerprint(self) -> Record:
        return self.study.about(self.job)

    def state(self) -> State:
        """All ranks' parts, on every rank."""
        training = self.training
        parts = training.state_dict() if isinstance(training, Simulation) else share(training.state_dict)
        return {"step": self.number, "records": list(self.records), "parts": parts}

    def restore(self, packet: Packet) -> None:
        parts = packet["parts"]
        self.training.load_state_dict(parts if isinstance(self.training, Simulation) else parts[rank()])
        self.number, self.records = int(packet["step"]), list(packet["records"])
        self._begin()

    def result(self) -> dict[str, Tensor]:
        if isinstance(self.training, Pipeline):
            return self.training.whole_state_dict()
        return {name: tensor.cpu() for stage in self.stages for name, tensor in stage.state_dict().items()}

    def write(self, folder: Folder, result: dict[str, Tensor]) -> None:
        held = [most for each in share(lambda: list(self.training.held.values())) for most in each]
        records, expression = self.records, complete(self.job.method)
        measured = [line["accuracy"] for line in records if line.get("accuracy") is not None]
        ways = {way: [line[f"{way}_bytes"] for line in records] for way in ("forward", "backward")}
        folder.model(result, {"expression": expression, "seed": str(self.job.seed)})
        folder.summary(
            {
                **self.fingerprint(),
                "expression": expression,
                "version": code_version(),
                "parameters": sum(p.numel() for stage in self.stages for p in stage.parameters() if p.requires_grad),
                "accuracy": statistics.fmean(measured[-LAST:]) if measured else None,
                "best_accuracy": max(measured, default=None),
                "test_loss": records[-1].get("test_loss"),
                "train_loss": records[-1]["train_loss"],
                "bytes_up": sum(line["up_bytes"] for line in records),
                "bytes_down": sum(line["down_bytes"] for line in records),
                **{f"bytes_{way}": [sum(each) for each in zip(*lines, strict=True)] for way, lines in ways.items()},
                "held": held,
                "clock": records[-1]["clock"],
                "seconds": sum(line["seconds"] for line in records),
            }
        )


def _against(stage: Stage, plain: Mapping[int, tuple[int, Tensor]]) -> list[float | None]:
    """How far the last gradient of a part is from that of backpropagation, and the length of that one."""
    if stage.part not in plain:
        return [None, None]
    batch, by = plain[stage.part]
    return [difference(stage, batch, by), float(by.double().norm())]


class _Computed(nn.Module):
    """A model whose outputs are there already, for a task's metrics."""

    def __init__(self, out: Tensor) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Tensor) -> Tensor:
        return self.out


def _test(training: Simulation | Pipeline, test: Supervised) -> dict[str, float | None]:
    """Means over the test, at the last part; nothing elsewhere. What is on its way stays there."""
    parts = []
    for first, last in portions(0, len(test), AT_ONCE):
        x, y = test.batch(torch.arange(first, last, device="cpu"))
        out = training.predict(x)
        if out is not None:
            parts.append(tally(test, _Computed(out), (x, y.to(out.device)), last - first))
    return {f"test_{name}" if name == "loss" else name: finite(mean) for name, mean in mean_metrics(parts).items()}
