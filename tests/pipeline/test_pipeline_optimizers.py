"""SGD, AdamW, NAdam and Muon under the lags of a pipeline: in one process, in two, and from a state."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelines import bits, cut, data, dsp, forked, net, run
from thinwire.ddp import DEF
from thinwire.pipeline import Simulation, pipeline
from thinwire.pipeline.muon import Muon

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01, betas=(0.99, 0.999), decoupled_weight_decay=True),
    "Muon": lambda p: Muon(p, 0.01),
}
MORE: dict[str, Any] = {"clip": 0.5, "rate": lambda batch, part: 1 / (1 + part + batch)}


def trained(rank: int) -> dict[str, Any]:
    found = {}
    for name, make in OPTIMIZERS.items():
        training = pipeline(cut(net(), 2), make, dsp(2), timeout=100, **MORE)
        for x, y in data()[:5]:
            training.step(x, y)
        state = training.state_dict()
        again = pipeline(cut(net(), 2), make, dsp(2), timeout=100, **MORE)
        again.load_state_dict(state)
        for each in (training, again):
            run(each, data(), 5)
        found[name] = [training.whole_state_dict(), again.whole_state_dict()]
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return forked(2, trained, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_goes_on_to_the_same_bits_in_processes_and_in_one(name, ranks):
    model, first, second = net(), net(), net()
    whole, half, later = (Simulation(cut(m, 2), OPTIMIZERS[name], dsp(2), **MORE) for m in (model, first, second))
    run(whole, data())
    for x, y in data()[:5]:
        half.step(x, y)
    later.load_state_dict(half.state_dict())
    run(later, data(), 5)
    assert torch.equal(bits(second), bits(model))
    assert not torch.equal(bits(net()), bits(model))
    for found in ranks:
        assert torch.equal(bits(found[name][0]), bits(model))
        assert torch.equal(bits(found[name][1]), bits(model))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_makes_the_steps_that_replicas_send(name):
    """A ratio of 1 sends everything: both replicas go where one on the whole batch goes, but for rounding."""
    one, two = (
        Simulation(cut(net(norm=False), 2), OPTIMIZERS[name], dsp(2), replicas=n, average=DEF(1)) for n in (1, 2)
    )
    x, y = data()[0]
    for _ in range(3):  # the same examples at both: their gradients, and so their steps, are alike
        one.step(x[:4], y[:4])
        two.step(torch.cat([x[:4]] * 2), torch.cat([y[:4]] * 2))
    assert torch.allclose(bits(one.whole_state_dict()), bits(two.whole_state_dict()), atol=1e-6)
