"""Losses and metrics whose examples count unequally (ignored targets, ratios, micro-batches); inputs of any type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import thinwire as tw
from pipelines import sgd
from thinwire.pipeline import BPK, GPipe, OneFOneB, simulate_pipeline
from thinwire.task import as_task

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3
SOME = Y.masked_fill(torch.arange(24) % 4 < 3, -100)  # one in four counts
WORDS = torch.randint(0, 5, (20, 7), generator=torch.Generator().manual_seed(1))
RAGGED = WORDS.masked_fill(torch.arange(7) >= 1 + torch.arange(20)[:, None] % 7, -100)  # texts of 1 to 7 words


class Lines(nn.Module):
    """A linear layer that always begins alike; ``texts``: of words, a score of each of five for every word."""

    def __init__(self, texts: bool = False) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.table = nn.Parameter(torch.randn(5, 5, generator=g)) if texts else None
        self.weight = nn.Parameter(torch.randn(5 if texts else 3, 5 if texts else 6, generator=g))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x if self.table is None else self.table[x], self.weight)


def torchs(logits: Tensor, targets: Tensor, ignored: int = -100) -> Tensor:
    """The loss as torch has it: the mean over all that counts."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=ignored)


@pytest.mark.parametrize("ignored", [-100, 0, 7])
@pytest.mark.parametrize("plan", ["each", "together", None])
@pytest.mark.parametrize("texts", [False, True])
def test_targets_that_do_not_count_weigh_nothing(texts: bool, plan: Any, ignored: int) -> None:
    x, y = (WORDS, RAGGED) if texts else (X, SOME)
    y = y.masked_fill(y == -100, ignored) if ignored else y.masked_fill(y == -100, 0)
    options = {} if ignored == -100 else {"ignore_index": ignored}
    half = torch.arange(len(x)) < len(x) // 2
    tasks = [tw.Supervised(x, y, part, **options) for part in (half, ~half)]
    local = tw.LocalSGD(0.5, batch=None, steps=1)
    test = tw.Supervised(x, y, **options)
    run = tw.simulate(tw.FedAvg(local), lambda: Lines(texts), tasks, 1, plan=plan, test=test)
    slopes, losses = [], []
    for part in (half, ~half):
        module = Lines(texts)
        loss = torchs(module(x[part]), y[part], ignored)
        loss.backward()  # type: ignore[no-untyped-call]
        slopes.append(module.weight.grad)
        losses.append(float(loss.detach()))
    expected = Lines(texts).weight - 0.5 * torch.stack(slopes).mean(0)  # type: ignore[arg-type]
    torch.testing.assert_close(run.module.weight, expected)
    assert run.rounds[-1]["train_loss"] == pytest.approx(sum(losses) / 2, rel=1e-5)
    with torch.no_grad():
        logits = run.module(x)
    assert run.rounds[-1]["test_loss"] == pytest.approx(float(torchs(logits, y, ignored)), rel=1e-5)
    right = (logits.argmax(-1) == y)[y != ignored]
    assert run.rounds[-1]["accuracy"] == pytest.approx(float(right.float().mean()), rel=1e-6)


def test_a_model_that_is_always_right_has_accuracy_1() -> None:
    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(50.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * F.one_hot(x, 5)

    run = tw.simulate(tw.FedAvg(), Right, [(WORDS, RAGGED)], 1, test=(WORDS, RAGGED))
    assert run.rounds[-1]["accuracy"] == 1.0
    assert run.rounds[-1]["test_loss"] == pytest.approx(0, abs=1e-6)


def test_a_batch_in_which_nothing_counts_moves_nothing() -> None:
    run = tw.simulate(tw.FedAvg(tw.LocalSGD(0.5)), Lines, [(X, torch.full((24,), -100))], 1, plan="each")
    assert torch.equal(run.module.weight, Lines().weight)  # type: ignore[arg-type]
    assert run.rounds[-1]["train_loss"] == 0.0


def test_a_method_that_needs_a_class_for_every_example_refuses_targets_that_do_not_count() -> None:
    with pytest.raises(ValueError, match="FedNTD needs a class for every example"):
        tw.simulate(tw.FedNTD(), Lines, [(X, SOME)], 1)


class Judged:
    """A task that is judged by what it is told."""

    def __init__(self, judge: Any, lose: Any = None) -> None:
        self.judge, self.lose = judge, lose

    def __len__(self) -> int:
        return 150  # two batches of an evaluation, of 100 and 50

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return X[indices % 24], Y[indices % 24]

    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        losses = F.cross_entropy(module(batch[0]), batch[1], reduction="none")
        return losses if self.lose is None else self.lose(losses)

    def metrics(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        return {"judged": self.judge(torch.ones(len(batch[0])))}


def judged(judge: Any, lose: Any = None) -> float:
    task: Any = Judged(judge, lose)
    value: float = tw.simulate(tw.FedAvg(), Lines, [task], 1, test=task).rounds[-1]["judged"]
    return value


@pytest.mark.parametrize(
    ("judge", "gives"),
    [
        (lambda ones: ones.mean(), r"\[\]"),
        (lambda ones: float(ones.mean()), "float"),
        (lambda ones: ones.mean().view(1), r"\[1\]"),
        (lambda ones: torch.stack([ones, ones], 1), r"\[100, 2\]"),
        (lambda ones: ones[:-1], r"\[99\]"),
        (lambda ones: ones.tolist(), "list"),
    ],
)
def test_a_metric_that_is_a_mean_already_is_refused(judge: Any, gives: str) -> None:
    with pytest.raises(ValueError, match=f"metric 'judged' of Judged gives {gives} for 100 examples"):
        judged(judge)


def test_a_metric_may_be_a_ratio_and_is_added_up_over_the_whole_test() -> None:
    # 100 examples of 3 in 4 tokens each, then 50: (300 + 150) / (400 + 200), however the test is cut.
    assert judged(lambda ones: tw.Ratio(3 * ones, 4 * ones)) == pytest.approx(0.75)
    # A total of a batch beside one of another weight: (100 x 1 + 50 x 2) / (100 + 50).
    weighed = judged(lambda ones: tw.Ratio(ones.sum() * (1 if len(ones) == 100 else 2), torch.tensor(float(len(ones)))))
    assert weighed == pytest.approx(200 / 150)
    assert judged(lambda ones: tw.Perplexity(ones, 2 * ones)) == pytest.approx(math.exp(0.5))
    with pytest.raises(ValueError, match="metric 'judged' of Judged is a ratio of unlike parts"):
        judged(lambda ones: tw.Ratio(ones, ones[:2]))


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (lambda losses: losses.mean(), "must give one value an example"),
        (lambda losses: losses.repeat(2), "gives 4 for 2 examples"),
        (lambda losses: torch.stack([losses, losses], 1), "must give one value an example"),
        (lambda losses: tw.Ratio(losses, 1.0), "a ratio of unlike parts"),
    ],
)
def test_a_loss_of_another_shape_is_refused(lose: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"Judged.loss.*{message}"):
        judged(lambda ones: ones, lose)


def test_a_loss_that_is_a_ratio_trains_every_method_as_its_plain_mean_where_all_count_alike() -> None:
    for method in (
        tw.FedAvg(),
        tw.SCAFFOLD(),
        tw.FedProx(mu=0.1),
        tw.FedDyn(),
        tw.FedGen(head=None) if False else tw.FedACG(),
    ):
        plain, ratio = (
            tw.simulate(method, Lines, [Judged(lambda ones: ones, lose)], 2).params.flat  # type: ignore[list-item]
            for lose in (None, lambda losses: tw.Ratio(5 * losses, torch.full_like(losses, 5.0)))
        )
        torch.testing.assert_close(plain, ratio, rtol=1e-5, atol=1e-6)


# -- micro-batches --------------------------------------------------------------------------------


def parts() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Embedding(5, 8), nn.Tanh()), nn.Linear(8, 5)]


def losses_of(schedule: Any, loss: Any, y: Tensor) -> list[float]:
    options = {} if loss is None else {"loss": loss}
    return simulate_pipeline(parts(), sgd, schedule, [(WORDS, y)] * 4, **options)[1]


LOSSES: dict[str, Any] = {
    "the default": None,
    "torch's mean": torchs,
    "an object of torch's": lambda out, y: nn.CrossEntropyLoss()(out.flatten(0, 1), y.flatten()),
    "values": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(y.shape),
    "a ratio": lambda out, y: tw.Ratio(
        F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).sum(1), (y != -100).sum(1)
    ),
}


@pytest.mark.parametrize("pieces", [2, 4, 10])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("targets", ["ragged", "all but a part"])
def test_micro_batches_train_what_the_whole_batch_trains(loss: str, pieces: int, targets: str) -> None:
    y = RAGGED if targets == "ragged" else WORDS.masked_fill(torch.arange(20)[:, None] < 12, -100)
    whole = losses_of(BPK(), LOSSES[loss], y)
    for schedule in (GPipe(pieces), OneFOneB(pieces)):
        assert losses_of(schedule, LOSSES[loss], y) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: torchs(out, y, ignored=0),
        lambda out, y: torchs(out, y) * len(y),
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), weight=torch.tensor([1.0, 9.0, 1.0, 1.0, 1.0])),
    ],
    ids=["another ignored class", "a sum", "weights of classes"],
)
def test_a_loss_that_is_no_mean_of_its_parts_is_refused_with_micro_batches(loss: Any) -> None:
    assert len(losses_of(BPK(), loss, WORDS)) == 4
    with pytest.raises(tw.errors.CombinationError, match="from its two halves: it is no mean over examples"):
        losses_of(GPipe(2), loss, WORDS)


# -- what a task is made of -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "indices",
    [
        [3, 1, 4],
        (3, 1, 4),
        np.array([3, 1, 4]),
        np.array([3, 1, 4], np.uint8),
        torch.tensor([3, 1, 4], dtype=torch.int32),
        torch.tensor([3, 1, -20]),
    ],
    ids=["list", "tuple", "array", "bytes", "int32", "from the end"],
)
def test_positions_may_be_written_as_one_likes(indices: Any) -> None:
    x, y = tw.Supervised(X, Y, indices).batch(torch.arange(3))
    assert torch.equal(x, X[[3, 1, 4]])
    assert y.tolist() == [0, 1, 1]
    assert len(tw.Supervised(X, Y, range(5))) == 5
    mask = torch.zeros(24, dtype=torch.bool).index_fill(0, torch.tensor([1, 3]), True)
    for given in (mask, mask.numpy(), mask.tolist()):
        assert tw.Supervised(X, Y, given).batch(torch.arange(2))[1].tolist() == [1, 0]  # type: ignore[arg-type]
    trained = tw.simulate(tw.FedAvg(), Lines, [tw.Supervised(X, Y, indices)], 1).params.flat
    assert torch.equal(trained, tw.simulate(tw.FedAvg(), Lines, [(X[[3, 1, 4]], Y[[3, 1, 4]])], 1).params.flat)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([24], "go from 24 to 24: there are 24 examples, at 0 to 23"),
        ([-25], "go from -25 to -25"),
        ([0.5], "positions are whole numbers, or a mask"),
        ([[1, 2]], r"indices are of shape \[1, 2\]"),
        ([True] * 23, "indices of 23 truth values for 24 examples"),
        (3, r"indices are of shape \[\]"),
    ],
)
def test_positions_that_there_are_not_are_refused(indices: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tw.Supervised(X, Y, indices)


@pytest.mark.parametrize("plan", ["each", "together"])
@pytest.mark.parametrize("labels", [np.int32, np.uint8, np.int64, torch.int32, torch.uint8, torch.int16])
def test_arrays_and_labels_of_any_width_are_trained_as_tensors_are(labels: Any, plan: Any) -> None:
    parts = torch.arange(24).split(12)
    plain = tw.simulate(tw.FedAvg(), Lines, [tw.Supervised(X, Y, part) for part in parts], 2, plan=plan)
    if isinstance(labels, torch.dtype):
        x, y = X.double(), Y.to(labels)
    else:
        x, y = X.numpy().astype(np.float64), Y.numpy().astype(labels)
    tasks = [tw.Supervised(x, y, part) for part in parts]  # type: ignore[arg-type]
    other = tw.simulate(tw.FedAvg(), Lines, tasks, 2, plan=plan, test=tasks[0])
    torch.testing.assert_close(other.params.flat, plain.params.flat, rtol=1e-5, atol=1e-7)
    assert other.rounds[-1]["accuracy"] >= 0


def test_pairs_have_to_be_pairs() -> None:
    with pytest.raises(ValueError, match="24 inputs and 3 targets are no pairs"):
        tw.Supervised(X, Y[:3])


def test_a_data_set_of_dicts_is_told_which_page_has_the_task_to_write() -> None:
    data = [{"input_ids": torch.zeros(3), "labels": 0}] * 4
    with pytest.raises(ValueError, match=r"client 1: its examples are dicts \(input_ids, labels\).*own-task.md"):
        as_task(data, "client 1")
