"""FedBN, FedPer, FedRep: what stays with a client, and what is sent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from problems import PAIR as QUADRATICS
from problems import TWICE, approx, assert_same_run, normed, trained
from thinwire import FedAvg, FedBN, FedPer, FedRep, LocalSGD, Simulation


class Two(nn.Module):
    """A model of two numbers that are two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.tensor([0.5]))
        self.head = nn.Parameter(torch.tensor([-1.0]))

    def vector(self) -> Tensor:
        return torch.cat([self.body, self.head])


STAY = ("head",)


# for _ in range(2):
#     ys = [sgd(k, np.array([a, b[k]])) for k in (0, 1)]            # FedPer
#     ys = [sgd(k, sgd(k, np.array([a, b[k]]), steps=3, mask=[0, 1]), mask=[1, 0]) for k in (0, 1)]  # FedRep
#     a, b = (1 * ys[0][0] + 3 * ys[1][0]) / 4, [y[1] for y in ys]
# where sgd(k, w, steps=2, mask=1) does w -= 0.1 * h * (w - t[k]) * mask, h = [1, 2], t = [[1, 0], [1, 1]]
@pytest.mark.parametrize(
    ("method", "bodies", "heads"),
    [
        (FedPer(TWICE, stay=STAY), [0.595, 0.67195], [[-0.64, -0.28], [-0.4096, 0.1808]]),
        (FedBN(TWICE, stay=STAY), [0.595, 0.67195], [[-0.64, -0.28], [-0.4096, 0.1808]]),
        (FedRep(TWICE, stay=STAY, head_epochs=3), [0.595, 0.67195], [[-0.512, -0.024], [-0.262144, 0.475712]]),
    ],
    ids=repr,
)
def test_two_rounds_are_those_worked_out_by_hand(method: FedPer, bodies: list[float], heads: list[list[float]]) -> None:
    run = Simulation(method, Two(), QUADRATICS, workers=1, plan="each")
    with run.pool:
        for body, head in zip(bodies, heads, strict=True):
            run.step()
            assert run.whose(None)[0].flat.tolist() == approx([body, -1.0])  # the head as it was at the start
            for client in (0, 1):
                assert run.whose(client)[0].flat.tolist() == approx([body, head[client]])


def test_fedbn_keeps_norm_layers_and_statistics_at_home_and_sends_all_else() -> None:
    result = trained(FedBN(LocalSGD(0.2, batch=16), stay=("2.*",)), normed, sample=8)
    # 910 of 934 parameters, 3640 bytes and 12; FedAvg has 96 bytes more of norms and 96 of statistics, and their frames
    assert {e.payload for e in result.ledger} == {3652}
    one, two = (result.personal(client).state_dict() for client in (0, 1))
    shared = {name for name in one if torch.equal(one[name], two[name])}
    assert shared == {"1.weight", "1.bias", "4.weight", "4.bias", "2.num_batches_tracked"}
    assert result.module.state_dict()["2.weight"].tolist() == [1.0] * 12


def test_fedbn_over_a_model_without_norm_layers_is_fedavg() -> None:
    assert_same_run(trained(FedBN()), trained(FedAvg()))


def test_fedbn_names_the_norm_layers_that_it_would_send() -> None:
    said = r"FedBN\(stay=\('\*norm\*', '\*bn\*'\)\): norm layers of this model have other names; add '2\.\*'"
    with pytest.raises(ValueError, match=said):
        trained(FedBN(), normed)


def test_the_last_module_stays_where_nothing_is_named() -> None:
    result = trained(FedPer(), sample=8)
    one, two = (result.personal(client).state_dict() for client in (0, 1))
    assert [name for name in one if not torch.equal(one[name], two[name])] == ["3.weight", "3.bias"]


def test_a_wrapper_changes_the_names_that_patterns_are_of() -> None:
    method = tw.parse("FedPara(FedPer(stay=('3.*',)), rank=2)")
    assert trained(method, rounds=1).ledger.bytes("up") > 0


def test_layers_that_stay_are_neither_sent_nor_recycled() -> None:
    # 780 parameters of 910 are shared, in two tensors: one of 12 and one of 768
    whole = trained(tw.LUAR(FedPer(), recycle=1, layers="tensors"), rounds=6, sample=8)
    sizes = {entry.payload for entry in whole.ledger if entry.direction == "up"}
    assert min(sizes) < 100  # a bias alone
    one, two = (whole.personal(client).state_dict() for client in (0, 1))
    assert [name for name in one if not torch.equal(one[name], two[name])] == ["3.weight", "3.bias"]


def test_fedbns_default_refuses_another_layer_with_the_name_of_a_norm() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.subnet, self.norm, self.head = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(self.subnet(x)))  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"subnet, a Linear, has the name of a norm layer; .* stay=\('norm.\*',\)"):
        FedBN().prepare(Net())
    FedBN(stay=("norm.*",)).prepare(Net())
