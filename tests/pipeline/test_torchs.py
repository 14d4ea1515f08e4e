"""Schedules of torch.distributed.pipelining, which benchmarks compare with, give the gradients that ours give."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from pipelines import bits, cut, data, forked, net
from places import ROOT
from thinwire.pipeline import GPipe, OneFOneB, Simulation

sys.path.append(str(ROOT / "benchmarks"))
from torchs import KINDS, SINGLE, Torchs


def one(parameters: Any) -> torch.optim.Optimizer:
    """A step is minus the gradient."""
    return torch.optim.SGD(parameters, lr=1.0)


def gradients(rank: int) -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        model = net(norm=False)
        for module in model.modules():  # torch hands parts a leaf, which must not be written over
            module.inplace = False  # type: ignore[assignment]
        stages = cut(model, 2 if kind in SINGLE else 4)
        theirs = Torchs(kind, stages, 4, one, nn.functional.cross_entropy)
        loss = theirs.gradients(*data()[0])
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found[kind] = [grads, None if loss is None else float(loss)]
    return found


def test_torchs_schedules_and_ours_have_the_gradients_of_backpropagation(tmp_path):
    ranks = forked(2, gradients, tmp_path)
    model = net(norm=False)
    loss = nn.functional.cross_entropy(model(data()[0][0]), data()[0][1])
    expected = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    for kind in KINDS:
        found = {**ranks[0][kind][0], **ranks[1][kind][0]}
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert torch.allclose(found[name], gradient, atol=1e-7)
        assert ranks[1][kind][1] == pytest.approx(loss.item(), abs=1e-6)
    for schedule in (GPipe(4), OneFOneB(4)):
        start, ours = net(norm=False), net(norm=False)
        Simulation(cut(ours, 2), one, schedule).step(*data()[0])
        moved = bits(start) - bits(ours)
        assert torch.allclose(moved, torch.cat([g.double().reshape(-1) for g in expected.values()]), atol=1e-7)
