"""The loop as a strategy of Flower's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thinwire as tw
from blobs import blobs, mlp

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord

from test_serve import Post, _task, post, simulated  # noqa: F401  _task: a fixture of every test
from thinwire.deploy import flower

pytestmark = pytest.mark.timeout(600)


def test_the_strategy_is_the_loop_in_another_shape(tmp_path: Path) -> None:
    method = tw.parse("FedAvg()", {"lr": 0.2, "batch": 8})
    strategy = flower.Strategy(method, mlp, 3, seed=5, poll=0.0, test=blobs((60,))[0])
    result = strategy.start(post("FedAvg()", tmp_path), num_rounds=3)
    expected = simulated("FedAvg()")
    for name, tensor in result.arrays.to_torch_state_dict().items():
        assert torch.equal(tensor, expected.module.state_dict()[name])
    assert result.train_metrics_clientapp[2]["up_bytes"] == 3 * (344 + 93)
    assert result.evaluate_metrics_serverapp[3]["accuracy"] == expected.rounds[2]["accuracy"]


def test_the_strategy_says_what_it_cannot_do() -> None:
    strategy = flower.Strategy(tw.FedAvg(), mlp, 3)
    with pytest.raises(NotImplementedError, match=r"a round here is one piece.*call start\(\)"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), None)
    grid = Post({}, {})
    with pytest.raises(ValueError, match="initial_arrays: both ends make the model under one seed"):
        strategy.start(grid, ArrayRecord())
    with pytest.raises(ValueError, match="clients are told what to do by the method"):
        strategy.start(grid, train_config=ConfigRecord({"lr": 0.1}))
    with pytest.raises(ValueError, match="give test= to the strategy"):
        strategy.start(grid, evaluate_fn=lambda round, arrays: None)
