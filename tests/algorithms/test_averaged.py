"""A served average: by hand, beside the trained model, on a deployment, and read back from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire import Averaged, FedAvg, LocalSGD
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.report.table import markdown, rows
from thinwire.run.folder import Folder
from thinwire.studies.read import arms

LOCAL = LocalSGD(0.1, batch=None, steps=2)


def tasks(seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(12, 16, generator=g), torch.randint(0, 3, (12,), generator=g)) for _ in range(4)]


def model() -> nn.Module:
    return nn.Linear(16, 8)


def test_the_average_is_the_one_worked_out_by_hand() -> None:
    # x = 1, 3, 7 after rounds 1 to 3 with decay 1/2: 1; 1 + (3 - 1) (1/2)/(3/4) = 7/3; 7/3 + (7 - 7/3) (1/2)/(7/8) = 5
    method = Averaged(FedAvg(), 0.5)
    start = method.init(tw.Params.of([("a", torch.tensor([0.0]))]), 1, tw.Key(0))
    state, found = start.server, []
    for step in (1.0, 2.0, 4.0):
        mean = start.reply._replace(update=tw.Params.of([("a", torch.tensor([step]))]))
        state = method.server(state, None, mean, tw.Key(0))
        average = method.served(state)
        assert average is not None
        found.append((method.model(state).flat.item(), average.flat.item()))
    assert found == [(1.0, 1.0), (3.0, pytest.approx(7 / 3)), (7.0, pytest.approx(5.0))]


def test_an_average_of_one_round_is_the_trained_model_bit_for_bit() -> None:
    method, g = Averaged(FedAvg(), 0.0), torch.Generator().manual_seed(0)
    start = method.init(tw.Params.of([("a", torch.randn(100, generator=g))]), 1, tw.Key(0))
    state = start.server
    for _ in range(4):
        mean = start.reply._replace(update=tw.Params.of([("a", torch.randn(100, generator=g))]))
        state = method.server(state, None, mean, tw.Key(0))
        average = method.served(state)
        assert average is not None
        assert average.flat.equal(method.model(state).flat)


@pytest.mark.parametrize(
    "inner",
    [
        "FedAvg({})",
        "LUAR(FedAvg({}), recycle=1, layers='tensors')",
        "FLSS(FedAvg({}), rank=1, start=1)",
        "Intrinsic(4, local={})",
        "FetchSGD(30, 5, local={})",
        "FedPara(FedAvg({}), rank=1)",
        "PruneFL(FedAvg({}))",
        "SoftPull(FedAvg({}))",
        "FT(FedAvg({}))",
        "FedSM(local={}, selector='mlp')",
    ],
)
def test_training_and_bytes_of_any_method_are_the_inner_methods(inner: str) -> None:
    inner = inner.format(repr(LOCAL))
    plain, both = (
        tw.simulate(tw.parse(text), model, tasks(), 2, test=tasks(9)[0], sample=2, workers=1, plan="each")
        for text in (inner, f"Averaged({inner}, decay=0.5)")
    )
    assert plain.served is None
    for before, after in zip(plain.rounds, both.rounds, strict=True):
        assert set(after) - set(before) == {"served_loss", "served_accuracy"}
        same = {name for name in before if name != "seconds"}
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert both.params.flat.equal(plain.params.flat)
    assert both.rounds[0]["served_loss"] == both.rounds[0]["test_loss"]
    assert both.rounds[1]["served_loss"] != both.rounds[1]["test_loss"]


def test_the_average_is_saved_loaded_and_the_same_after_a_resume(tmp_path: Path) -> None:
    method, own = Averaged(FedAvg(LOCAL), 0.5), {"test": tasks(9)[0], "sample": 2, "workers": 1}
    whole = tw.simulate(method, model, tasks(), 3, out=tmp_path / "whole", **own)
    tw.simulate(method, model, tasks(), 2, out=tmp_path / "run", **own)
    result = tw.simulate(method, model, tasks(), 3, out=tmp_path / "run", resume=True, **own)
    assert whole.served is not None
    assert result.served is not None
    found = tw.load(tmp_path / "run", model)
    assert found.served is not None
    for name, expected in whole.served.state_dict().items():
        assert result.served.state_dict()[name].equal(expected)
        assert found.served.state_dict()[name].equal(expected)
        assert not found.module.state_dict()[name].equal(expected)
    assert result.summary()["served_accuracy"] == whole.rounds[-1]["served_accuracy"]
    assert markdown(rows(arms([tmp_path / "run"]))).startswith("| method | accuracy | best | served | MB up |")


def test_a_wrapper_around_it_serves_the_average_too() -> None:
    methods = tw.LUAR(Averaged(FedAvg(LOCAL)), recycle=0), Averaged(tw.LUAR(FedAvg(LOCAL), recycle=0))
    one, other = (tw.simulate(method, model, tasks(), 2, workers=1) for method in methods)
    assert one.served is not None
    assert other.served is not None
    assert one.served.weight.equal(other.served.weight)  # type: ignore[union-attr,operator,arg-type]
    assert not one.served.weight.equal(one.module.weight)  # type: ignore[union-attr,operator,arg-type]


def test_a_deployment_serves_the_simulations_average_before_and_after_a_restart(tmp_path: Path) -> None:
    method, test = Averaged(FedAvg(LOCAL), 0.5), tasks(9)[0]
    expected = tw.simulate(method, model, tasks(), 3, test=test, workers=1, plan="each")
    records = []
    for number in range(3):  # a server that is started anew in each round
        folder = Folder(tmp_path / "server")
        server = Deployment(method, model, 4, test=test, states=folder.path / "states")
        server.open(folder, resume=True)
        for client, call in server.begin(range(4)).items():
            answer = Node(method, model, tasks()[client], tmp_path / str(client)).answer(call)
            assert server.accept(client, answer)
        records.append(server.end())
        folder.append(records[-1], server.ledger.lines(server.round))
        server.save(folder)
        assert server.round == number + 1
    assert [r["served_loss"] for r in records] == [r["served_loss"] for r in expected.rounds]
    served = server.result().served
    assert served is not None
    assert expected.served is not None
    assert served.weight.equal(expected.served.weight)  # type: ignore[union-attr,operator,arg-type]
