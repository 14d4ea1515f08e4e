"""FedPM: masks are right on average and near their entropy in bytes; the server counts them as worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire import STC, FedPM, LocalAdam, Supervised
from thinwire.algorithms.fedpm import Reply, _draw

NET = [("w", torch.tensor([[0.3, -0.1], [-2.0, 0.5]])), ("b", torch.tensor([0.7, 0.0]))]


def theta(*values: float) -> tw.Params:
    return tw.Params.of([("w", torch.tensor(values).view(2, 2))])


def test_kernels_hold_one_magnitude_with_the_signs_of_the_start_and_vectors_stay() -> None:
    start = FedPM().init(tw.Params.of(NET), 3, tw.Key(0))
    # Kaiming's deviation for two inputs is sqrt(2 / 2) = 1
    assert start.server.base["w"].tolist() == [[1, -1], [-1, 1]]
    assert start.server.base["b"].tolist() == pytest.approx([0.7, 0.0])
    assert start.server.theta.flat.tolist() == [0.5] * 4


def test_the_server_counts_masks_since_the_last_reset() -> None:
    method = FedPM(reset=2, shown="threshold")
    start = method.init(tw.Params.of(NET), 3, tw.Key(0))
    state, found = start.server, []
    for mean in (theta(0, 1, 0.5, 1), theta(1, 1, 0, 0.5), theta(0.5, 0, 0, 1)):
        state = method.server(state, None, Reply(mean), tw.Key(0))
        found.append(state.theta.flat.tolist())
    # the second is the mean of two rounds; with the third the count begins anew
    assert found == [[0, 1, 0.5, 1], [0.5, 1, 0.25, 0.75], [0.5, 0, 0, 1]]
    # weights 1, -1, -1, 1 where theta is at least one half
    assert method.model(state)["w"].tolist() == [[1, 0], [0, 1]]


def test_the_mean_of_masks_is_theta() -> None:
    values = torch.tensor([0.0, 1.0, 0.1, 0.5, 0.93])
    mean = sum(_draw(tw.Params.of([("w", values)]), tw.Key(seed)).flat for seed in range(4_000)) / 4_000
    assert mean[:2].tolist() == [0, 1]
    assert (mean - values).abs().max() < 5 * 0.5 / math.sqrt(4_000)  # five standard errors


@pytest.mark.parametrize(("p", "entropy"), [(0.5, 1.0), (0.1, 0.469), (0.02, 0.1414)])
def test_a_mask_takes_its_entropy_and_a_few_bytes_and_loses_nothing(p: float, entropy: float) -> None:
    # -(p log2 p + (1 - p) log2 (1 - p)) bits an entry
    mask = _draw(tw.Params.of([("w", torch.full((100, 300), p))]), tw.Key(3))
    packet, seen, _ = STC(1.0).send(mask, None, tw.Key(0))
    assert seen.flat.equal(mask.flat)
    assert len(tw.dumps(packet)) < 1.05 * entropy * 30_000 / 8 + 60


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def task() -> Supervised:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=g)
    return Supervised(x, (x[:, 0] * x[:, 1] > 0).long())


@pytest.mark.parametrize("start", ["sent", "known"])
@pytest.mark.parametrize("down", ["EF21(Dense())", "{'theta': EF21(Dense())}"])
def test_links_with_a_memory_open_at_a_first_broadcast_that_has_no_probabilities(start: Any, down: str) -> None:
    # EF21 around a link that loses nothing: theta has few values, and their sums are exact but for rounding.
    plain, own = (
        tw.simulate(tw.parse(f"FedPM(down={each})"), net, [task()] * 3, 4, sample=2, start=start, workers=1)
        for each in ("Dense()", down)
    )
    assert torch.allclose(own.params.flat, plain.params.flat, atol=1e-5)


def test_a_model_of_short_floats_is_trained_in_them() -> None:
    short = Supervised(task().inputs.bfloat16(), task().targets)
    run = tw.simulate(FedPM(), lambda: net().bfloat16(), [short] * 2, 2, workers=1)
    assert {x.dtype for x in run.module.parameters()} == {torch.bfloat16}
    assert run.rounds[1]["train_loss"] > 0


def test_masks_alone_learn_what_random_weights_cannot() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
    run = tw.simulate(FedPM(LocalAdam(0.1, batch=16, epochs=5)), model, [task()] * 2, 12, start="known", test=task())
    assert run.accuracy is not None
    assert run.accuracy > 0.8
    weights = run.module[0].weight  # type: ignore[index]
    assert weights.abs().unique().tolist() == pytest.approx([0, math.sqrt(2 / 6)])
    # a mask has 512 entries: 64 bytes and what surrounds them, 24 replies
    assert run.bytes_up < 24 * (64 + 170)


def test_a_layer_that_stands_at_two_places_has_one_mask() -> None:
    # As where its weights are tied in two layers, which are one in the same way.
    def twice(tied: bool) -> nn.Module:
        one = nn.Linear(4, 4, bias=False)
        other = one if not tied else nn.Linear(4, 4, bias=False)
        other.weight = one.weight
        with torch.no_grad():
            one.weight.copy_(torch.linspace(-1, 1, 16).view(4, 4))
        return nn.Sequential(one, nn.Tanh(), other)

    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    runs = [tw.simulate(tw.FedPM(), twice(tied), [(x, x.argmax(1))] * 2, 2) for tied in (True, False)]
    assert runs[0].params.flat.equal(runs[1].params.flat)
    assert [r["train_loss"] for r in runs[0].rounds] == [r["train_loss"] for r in runs[1].rounds]
