"""FedGen: a hand value, its head, its generator, counts that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from problems import LOCAL, SCORED, TWICE, Scores, approx, handwriting, mlp, trained
from thinwire import FedGen, Key, Params, Simulation, Supervised
from thinwire.algorithms.fedgen import generate


def test_a_round_of_fedgen_is_that_worked_out_by_hand() -> None:
    # def gen(w, u, y): return ce(w * u, y) + 0.5 * ce(w * 3.0, 1)          # `ce`, `slope`: test_features.py
    # x, ends = np.array([0.5, -1.0]), []
    # for u, y in ((1.0, 0), (2.0, 1)):
    #     w = x
    #     for _ in range(2): w = w - 0.1 * slope(lambda v: gen(v, u, y), w)
    #     ends.append(w)
    # print((ends[0] + ends[1]) / 2)
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[0.5], [-1.0]])
    tasks = [
        Supervised(torch.tensor([[1.0]]), torch.tensor([0])),
        Supervised(torch.tensor([[2.0]]), torch.tensor([1])),
    ]
    run = Simulation(FedGen(TWICE, weight=0.5, hidden=1, noise=1), model, tasks, workers=1, plan="each")
    # relu(0 * inputs + 1) * 1 + 2: the feature is 3 whatever the label, and label 1 alone was counted
    layout = run.server.generator.layout
    assert layout.names == ("layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias")
    says_three = Params(layout, torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 2.0]))
    run.server = run.server._replace(generator=says_three, labels=torch.tensor([0, 4]))
    with run.pool:
        run.step()
    assert run.server.x.flat.tolist() == approx([0.05056261, -0.55056261])
    assert run.server.labels.tolist() == [1, 1]


def test_fedgens_head_is_a_trained_linear_layer_with_an_output_a_label() -> None:
    with pytest.raises(
        ValueError, match=r"FedGen\(head='2'\): the head is a linear layer that is trained, this is ReLU"
    ):
        trained(FedGen(LOCAL, head="2"), rounds=1)
    with pytest.raises(ValueError, match=r"FedGen\(head='fc'\): no layer is called that.* are 0, 1, 2, 3"):
        trained(FedGen(LOCAL, head="fc"), rounds=1)
    with pytest.raises(ValueError, match=r"FedGen\(\): the model has no nn.Linear to be its head"):
        tw.simulate(FedGen(LOCAL), nn.Sequential(Scores()), SCORED, 1, workers=1)
    with pytest.raises(ValueError, match="FedGen: a target of 9 for a head of 3 outputs: name the model's last layer"):
        trained(
            FedGen(LOCAL), lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 10), Second()), rounds=1
        )
    with pytest.raises(
        ValueError, match=r"the last kernel of the model, '1', is not its last linear layer: .*head='0'"
    ):
        tw.simulate(FedGen(LOCAL), nn.Sequential(nn.Linear(2, 3), nn.Embedding(2, 2)), [SCORED[0]], 1, workers=1)


class Second(nn.Module):
    """A linear layer after the last that classifies: three of its ten inputs, as scores of ten again."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.last(x)
        return x


def test_fedgens_generator_learns_features_that_the_head_takes_for_their_label() -> None:
    tasks, _ = handwriting()
    run = Simulation(FedGen(replace(LOCAL, epochs=5), hidden=32, noise=4), mlp, tasks, workers=1, plan="each")
    right = []
    with run.pool:
        for _ in range(4):
            server, x = run.server, run.server.x
            counts = torch.ones(10, dtype=torch.int64)
            drawn, features = generate(server.generator, counts, 500, torch.Generator().manual_seed(0))
            scores = nn.functional.linear(features, x["3.weight"], x["3.bias"])
            right.append(float((scores.argmax(1) == drawn).float().mean()))
            run.step()
    assert right[0] < 0.2
    assert right[-1] > 0.9
    everyone = torch.bincount(torch.cat([task.batch(torch.arange(len(task)))[1] for task in tasks]), minlength=10)
    assert torch.equal(run.server.labels, everyone)


def test_counts_that_cannot_be_leave_fedgens_generator_as_it_was() -> None:
    method = FedGen(hidden=4, noise=2, steps=2)
    start = method.init(Params.trainable(mlp()), 2, Key(0))
    for said, believed in ((-5.0, 0), (1e18, 1 << 40)):
        labels = torch.zeros(10)
        labels[3] = said
        server = method.server(start.server, start.view, start.reply._replace(labels=labels), Key(0, 1))
        assert server.labels.tolist() == [0, 0, 0, believed, 0, 0, 0, 0, 0, 0]
        assert torch.equal(server.generator.flat, start.server.generator.flat) is (believed == 0)
