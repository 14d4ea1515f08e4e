"""MOON: features of any layer of any module, clients that come late."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from problems import LOCAL, SCORED, TWICE, Scores, approx, trained
from thinwire import LUAR, MOON, FedAvg, Key, Params
from thinwire.train.one import train
from thinwire.train.slot import Slot


def test_a_client_of_moon_that_comes_late_is_contrasted_with_the_initial_model() -> None:
    # `moon`, `slope`: test_features.py. Client 0 takes part in rounds 1 and 2, client 1 in round 3 for the first time.
    # x = x0 = np.array([0.5, -1.0]); last = [x0, x0]
    # for i in (0, 0, 1):
    #     w = x
    #     for _ in range(2): w = w - 0.1 * slope(lambda v: moon(v, x, last[i], us[i], ys[i]), w)
    #     last[i] = x = w; print(x)
    method, x, initial = MOON(TWICE, mu=2.0, temperature=0.5, layer="0"), [], Params.trainable(nn.Sequential(Scores()))
    start = method.init(initial, 2, Key(0))
    slot, view, states = Slot(nn.Sequential(Scores())), initial, [start.client, start.client]
    for i in (0, 0, 1):
        work = method.client(start.view._replace(x=view), states[i], SCORED[i], Key(0))
        with pytest.raises(StopIteration) as done:
            work.send(train(slot, SCORED[i], next(work), Key(0)))
        reply, states[i] = done.value.value
        view = view + reply.update
        x.append(view.flat.tolist())
    assert x == [approx(p) for p in ([0.38697163, -1.01251219], [0.28068222, -1.02700721], [0.0182897, -1.15190263])]


class Reader(nn.Module):
    """A recurrent model of digits, row by row, with a convolution that only its author knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 6, batch_first=True)
        self.spare = nn.Linear(2, 2)
        self.mix = nn.Conv1d(8, 4, 1)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.mix(self.rows(x.view(-1, 8, 8))[0])
        scores: Tensor = self.head(hidden.flatten(1))
        return scores


@pytest.mark.slow
@pytest.mark.parametrize("layer", [None, "rows", "mix", "head", ""])
def test_moon_takes_the_features_of_any_layer_of_any_module(layer: str | None) -> None:
    plain = trained(FedAvg(LOCAL), Reader, sample=None)
    moon = trained(MOON(LOCAL, layer=layer), Reader, sample=None)
    # In round 1 the last model and the global one are the initial one: mu log 2 more of loss, nothing of a gradient.
    assert moon.rounds[0]["train_loss"] == pytest.approx(plain.rounds[0]["train_loss"] + 0.693147, rel=1e-5)
    # Not to the last bit: a product's bits may depend on how its factors lie in memory.
    assert moon.rounds[0]["test_loss"] == pytest.approx(plain.rounds[0]["test_loss"], rel=1e-6)
    assert moon.rounds[1]["train_loss"] > plain.rounds[1]["train_loss"] + 0.3  # mu * log 2 = 0.69 where features agree
    assert not torch.equal(moon.params.flat, plain.params.flat)


def test_a_layer_that_moon_does_not_find_is_answered_with_those_there_are() -> None:
    names = "the layers are rows, spare, mix, head"
    with pytest.raises(ValueError, match=rf"^MOON\(layer='heat'\): no layer .* \(did you mean head\?\); {names}$"):
        trained(MOON(LOCAL, layer="heat"), Reader, rounds=1)
    with pytest.raises(ValueError, match=r"the layers are 0, 1, 2, 3$"):
        trained(LUAR(MOON(LOCAL, layer="4"), recycle=1), rounds=1)
    with pytest.raises(ValueError, match="layer 'spare' takes no part in the forward pass: name another"):
        trained(MOON(LOCAL, layer="spare"), Reader, rounds=2, sample=None)
    with pytest.raises(ValueError, match=r"^MOON\(\): the model has no nn.Linear; name the layer .*: 0$"):
        tw.simulate(MOON(LOCAL), nn.Sequential(Scores()), SCORED, 1, workers=1)
