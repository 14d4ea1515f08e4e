"""DeComFL: scalars alone cross the wire, and whoever was away rebuilds the server's model from them, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire import DeComFL, LocalSGD, Supervised
from thinwire.algorithms.decomfl import Reply, direction, move
from thinwire.local import Trained


def slopes(*rows: list[float]) -> tw.Params:
    return tw.Params.of([("slopes", torch.tensor(rows))])


def test_directions_are_signs_and_nearly_orthogonal() -> None:
    a, b = direction(10_001, 3, 5, 0, 0), direction(10_001, 3, 5, 0, 1)
    assert a.abs().unique().tolist() == [1.0]
    assert direction(10_001, 3, 5, 0, 0).equal(a)
    for other in (b, direction(10_001, 3, 6, 0, 0), direction(10_001, 4, 5, 0, 0), direction(10_001, 3, 5, 1, 0)):
        assert abs(float(torch.dot(a, other))) < 5 * 10_001**0.5


def test_a_step_is_the_mean_slope_along_each_direction_by_hand() -> None:
    method = DeComFL(1, directions=2, local=LocalSGD(0.5))
    x = tw.Params.of([("a", torch.tensor([1.0, 2.0, 3.0]))])
    state = method.init(x, 2, tw.Key(7)).server
    state = method.server(state, None, Reply(slopes([4.0, -2.0])), tw.Key(7))
    # -0.5 / 2 of the slopes: -1 and 0.5
    assert state.change.flat.tolist() == [-1.0, 0.5]
    z = [direction(3, 7, 0, 0, p) for p in range(2)]
    assert state.x.flat.equal(x.flat - z[0] + 0.5 * z[1])


def test_a_client_that_was_away_rebuilds_the_servers_model_bit_for_bit() -> None:
    method = DeComFL(2, directions=3, local=LocalSGD(0.1))
    g = torch.Generator().manual_seed(0)
    start = method.init(tw.Params.of([("a", torch.randn(501, generator=g))]), 2, tw.Key(1))
    state, view, missed = start.server, start.view, []
    view = method.see(view, method.broadcast(state, None), tw.Key(1))
    for t in range(9):
        state = method.server(state, None, Reply(slopes(*torch.randn(2, 3, generator=g).tolist())), tw.Key(1, t))
        message = method.broadcast(state, None)
        over = tw.Params(message.change.layout, tw.loads(tw.dumps(message.change.flat)))  # as the wire has it
        missed.append(message._replace(change=over))
    for message in missed:
        view = method.see(view, message, tw.Key(1, 99))
    assert view.x.flat.equal(state.x.flat)
    assert view.round == 9


def test_slopes_are_those_of_the_loss() -> None:
    method = DeComFL(2, directions=2, mu=0.5, local=LocalSGD(0.1, batch=None))
    x = tw.Params.of([("weight", torch.tensor([[1.0, -2.0]]))])
    start = method.init(x, 1, tw.Key(0))
    view = method.see(start.view, method.broadcast(start.server, None), tw.Key(0))

    def trained(at: tw.Params) -> Trained:
        return Trained(at, 1, float(at.flat.square().sum()))

    asked, client = [], method.client(view, None, Supervised(torch.zeros(2, 1), torch.zeros(2)), tw.Key(0))
    request = next(client)
    for _ in range(5):
        asked.append(request)
        request = client.send(trained(request.x))
    asked.append(request)
    with pytest.raises(StopIteration) as done:
        client.send(trained(request.x))
    reply = done.value.value[0].slopes["slopes"]
    # of |x|^2 along z it is 2 x.z + mu |z|^2, and |z|^2 is 2
    first = [2 * float(torch.dot(x.flat, direction(2, 0, 0, 0, p))) + 1 for p in range(2)]
    assert reply[0].tolist() == pytest.approx(first)
    second = move(x, torch.tensor([first]) * -0.05, 0, 0)
    assert reply[1].tolist() == pytest.approx(
        [2 * float(torch.dot(second.flat, direction(2, 0, 0, 1, p))) + 1 for p in range(2)], rel=1e-4
    )
    assert [request.again for request in asked] == [0, 1, 2, 0, 1, 2]


def test_it_learns_and_a_round_costs_scalars_whatever_the_size_of_the_model() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, generator=g)
    tasks = [Supervised(x, (x.sum(1) > 0).long())] * 4
    found = []
    for width in (4, 400):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 2))
        method = DeComFL(directions=5, local=LocalSGD(0.02, batch=40))
        run = tw.simulate(method, model, tasks, 25, sample=2, start="known", test=tasks[0])
        found.append((run.bytes_up, run.accuracy))
    assert found[0][0] == found[1][0]  # 20 bytes of slopes a reply and what surrounds them
    assert found[0][0] < 50 * 150
    assert all(accuracy is not None and accuracy > 0.75 for _, accuracy in found)


class Noise(nn.Module):
    """Half of its inputs, drawn anew in each forward pass, whatever its weight is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x) + 0 * self.weight.sum()


def test_dropout_falls_alike_on_both_ends_of_a_slope() -> None:
    task = Supervised(torch.arange(1.0, 41).view(20, 2), torch.arange(20) % 2)
    method = DeComFL(2, directions=2, local=LocalSGD(0.1, batch=4))
    result = tw.simulate(method, Noise(), [task], rounds=2)
    assert result.params["weight"].tolist() == [1.0, 1.0, 1.0]  # else the draws over mu, thousands
    assert result.rounds[0]["train_loss"] != result.rounds[1]["train_loss"]
