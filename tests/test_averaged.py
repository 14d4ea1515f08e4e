"""A served average: by hand, beside the trained model, and through a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import thinwire as tw
from thinwire import Averaged, FedAvg, LocalSGD

LOCAL = LocalSGD(0.1, batch=None, steps=2)


def tasks(seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(12, 5, generator=g), torch.randint(0, 3, (12,), generator=g)) for _ in range(4)]


def test_the_average_is_the_one_worked_out_by_hand() -> None:
    # x = 1, 3, 7 after rounds 1 to 3 with decay 1/2: 1; 1 + (3 - 1) (1/2)/(3/4) = 7/3; 7/3 + (7 - 7/3) (1/2)/(7/8) = 5
    method = Averaged(FedAvg(), 0.5)
    state = method.init(tw.Params.of([("a", torch.tensor([0.0]))]), 1, tw.Key(0)).server
    found = []
    for step in (1.0, 2.0, 4.0):
        mean = (
            FedAvg()
            .init(state.average, 1, tw.Key(0))
            .reply._replace(update=tw.Params.of([("a", torch.tensor([step]))]))
        )
        state = method.server(state, None, mean, tw.Key(0))
        found.append((method.model(state).flat.item(), method.served(state).flat.item()))
    assert found == [(1.0, 1.0), (3.0, pytest.approx(7 / 3)), (7.0, pytest.approx(5.0))]


def test_training_and_bytes_are_the_inner_methods_and_the_average_is_evaluated_and_saved_beside_it(
    tmp_path: Path,
) -> None:
    own = {"test": tasks(9)[0], "sample": 2, "workers": 1}
    plain = tw.simulate(FedAvg(LOCAL), nn.Linear(5, 3), tasks(), 3, **own)
    both = tw.simulate(Averaged(FedAvg(LOCAL), 0.5), nn.Linear(5, 3), tasks(), 3, out=tmp_path, **own)
    assert plain.served is None
    for before, after in zip(plain.rounds, both.rounds, strict=True):
        assert {"served_loss", "served_accuracy"} <= set(after) - set(before)
        assert before["up_bytes"] + before["down_bytes"] == after["up_bytes"] + after["down_bytes"]
    assert both.rounds[0]["served_loss"] == both.rounds[0]["test_loss"]
    assert both.rounds[2]["served_loss"] != both.rounds[2]["test_loss"]
    assert both.served is not None
    saved = load_file(tmp_path / "served.safetensors")
    assert saved["weight"].equal(both.served.state_dict()["weight"])
    assert not saved["weight"].equal(load_file(tmp_path / "model.safetensors")["weight"])


def test_a_wrapper_around_it_serves_the_average_too() -> None:
    for method in (tw.LUAR(Averaged(FedAvg(LOCAL)), recycle=0), Averaged(tw.LUAR(FedAvg(LOCAL), recycle=0))):
        result = tw.simulate(method, nn.Linear(5, 3), tasks(), 2, workers=1)
        assert result.served is not None
        assert not result.served.weight.equal(result.module.weight)  # type: ignore[arg-type]


def test_a_decay_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Averaged\(decay=1.0\): decay must be at least 0 and below 1"):
        Averaged(FedAvg(), 1.0)
