"""Pipelined training: identities in one process, and real processes under gloo, which are forked from this one."""

from __future__ import annotations

import json
import math
import os
import random
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import annotations
import thinwire as tw
from pipelines import BATCHES, bits, cut, data, dsp, forked, net, plain, refusal, run, sgd, small_sgd
from places import ROOT
from thinwire import models
from thinwire.config import complete
from thinwire.errors import CombinationError, NonFinite
from thinwire.expression import parse, vocabulary
from thinwire.pipeline import (
    AQSGD,
    BPK,
    DDG,
    DNI,
    DSP,
    FR,
    GPipe,
    OneFOneB,
    PipeDream,
    PipeDream2BW,
    Schedule,
    Simulation,
    law,
    pipeline,
    runtime,
    simulate_pipeline,
    split,
)
from thinwire.pipeline.plan import measure, memory, messages
from thinwire.pipeline.schedule import SCHEDULES
from thinwire.pipeline.split import balance
from tiers import selection, tiers

PARTS = (2, 3, 4)


def piped(schedule: Schedule, parts: int, seed: int = 0, **more: Any) -> tuple[nn.Module, Simulation, list[float]]:
    model = net(more.pop("dropout", 0.0))
    training, losses = simulate_pipeline(cut(model, parts), more.pop("optimizer", sgd), schedule, data(seed), **more)
    return model, training, losses


# -- identities ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [DSP((0,), (0,)), FR(), DDG(), PipeDream(), DNI(), GPipe(1), OneFOneB(1)])
def test_one_part_is_backpropagation_bit_for_bit(schedule):
    model = net()
    expected = plain(data(), model)
    found, _, losses = piped(schedule, 1, loss=nn.functional.cross_entropy)
    assert torch.equal(bits(found), bits(model))
    assert losses == expected


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("schedule", [BPK(), GPipe(1), OneFOneB(1)])
def test_plain_model_parallelism_is_plain_training_bit_for_bit(schedule, parts):
    model = net()
    expected = plain(data(), model)
    found, _, losses = piped(schedule, parts, loss=nn.functional.cross_entropy)
    assert torch.equal(bits(found), bits(model))
    assert losses == expected


@pytest.mark.slow
def test_features_replay_is_dsp_without_lags_forward_bit_for_bit():
    assert torch.equal(bits(piped(FR(), 4)[0]), bits(piped(DSP((0, 0, 0, 0), (3, 2, 1, 0)), 4)[0]))


def test_the_lags_forward_change_no_number():
    one, other = DSP((1, 1, 0), (4, 2, 0)), DSP((0, 2, 0), (4, 2, 0))
    assert torch.equal(bits(piped(one, 3)[0]), bits(piped(other, 3)[0]))


@pytest.mark.slow
def test_delayed_gradients_and_weight_stashing_are_one_training():
    assert torch.equal(bits(piped(DDG(), 3)[0]), bits(piped(PipeDream(), 3)[0]))
    assert not torch.equal(bits(piped(DDG(), 3)[0]), bits(piped(FR(), 3)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("make", [GPipe, OneFOneB, PipeDream2BW])
def test_micro_batches_give_one_result_however_many_parts_there_are(make):
    assert torch.equal(bits(piped(make(4), 1)[0]), bits(piped(make(4), 3)[0]))
    assert torch.equal(bits(piped(GPipe(4), 2)[0]), bits(piped(OneFOneB(4), 4)[0]))


def test_two_buffered_weights_are_gradients_of_the_parameters_of_one_batch_ago():
    model = net(norm=False)
    training, losses = simulate_pipeline(cut(model, 3), small_sgd, PipeDream2BW(2), data())
    now, before = net(norm=False), net(norm=False)
    for number, (x, y) in enumerate(data()):
        # x_{t+1} = x_t - lr * gradient at x_{t-1}
        loss = nn.functional.cross_entropy(before(x), y)
        grads = torch.autograd.grad(loss, list(before.parameters()))
        assert losses[number] == pytest.approx(loss.item(), abs=1e-6)
        before.load_state_dict(now.state_dict())
        with torch.no_grad():
            for p, g in zip(now.parameters(), grads, strict=True):
                p.sub_(g, alpha=0.05)
    assert torch.allclose(bits(model), bits(now), atol=1e-6)
    assert training.held == {0: 3, 1: 2, 2: 1}


def test_a_lag_of_two_batches_by_hand():
    """Two parts, each a number: h = a x, loss = (b h - y)^2, rate 0.1, DSP((0, 0), (1, 0)).

    Batch 0: b goes back at once: h = 2, d = 2 * (3 - 1) = 4 -> b = 1.5 - 0.1 * 4 * 2 = 0.7, and 4 * 1.5 = 6 goes to a.
    Batch 1 (x = 2): a goes forward as 2: h = 4, b h = 2.8, d = 2 * (2.8 - 1) = 3.6, b = 0.7 - 0.1 * 3.6 * 4 = -0.74.
    Then batch 0 goes back at a: a = 2 - 0.1 * 6 * 1 = 1.4. The drain: 3.6 * 0.7 = 2.52 at x = 2: a = 1.4 - 0.504.
    """
    a, b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for layer, value in ((a, 2.0), (b, 1.5)):
        nn.init.constant_(layer.weight, value)
    batches = [(torch.tensor([[x]]), torch.tensor([[1.0]])) for x in (1.0, 2.0)]
    _, losses = simulate_pipeline(
        [nn.Sequential(a), nn.Sequential(b)], lambda p: torch.optim.SGD(p, 0.1), DSP((0, 0), (1, 0)), batches
    )
    assert losses == pytest.approx([4.0, 1.8**2])
    assert b.weight.item() == pytest.approx(-0.74)
    assert a.weight.item() == pytest.approx(0.896)


def test_the_gradient_tends_to_that_of_backpropagation_with_the_step():
    """Lemma 1.4.1 of the thesis: the difference is at most proportional to how far parameters move meanwhile."""

    def off(rate: float) -> float:
        model, ends, batches = net(norm=False), net(norm=False), data()
        start = bits(model)
        training = Simulation(cut(model, 3), lambda p: torch.optim.SGD(p, rate), DSP((1, 1, 0), (4, 2, 0)))
        for x, y in batches[:5]:
            training.step(x, y)
        total = torch.zeros_like(start)  # what parts have stepped along so far, at the start's parameters
        counts = {0: 1, 1: 3, 2: 5}
        for number, (x, y) in enumerate(batches[:5]):
            grads = torch.autograd.grad(nn.functional.cross_entropy(ends(x), y), list(ends.parameters()))
            at, place = 0, {id(p): k for k, part in enumerate(cut(ends, 3)) for p in part.parameters()}
            for p, g in zip(ends.parameters(), grads, strict=True):
                if number < counts[place[id(p)]]:
                    total[at : at + p.numel()] += g.reshape(-1)
                at += p.numel()
        return float(((start - bits(model)) / rate - total).norm() / total.norm())

    found = [off(rate) for rate in (1e-1, 1e-2, 1e-3)]
    assert 0.01 < found[0] < 0.5
    assert found[1] == pytest.approx(found[0] / 10, rel=0.4)
    assert found[2] == pytest.approx(found[1] / 10, rel=0.4)


@pytest.mark.slow
def test_running_statistics_move_once_a_batch_and_dropout_is_replayed():
    model, training, _ = piped(dsp(3), 3, dropout=0.5)
    assert {int(b) for n, b in model.named_buffers() if "num_batches" in n} == {BATCHES}
    again, _, _ = piped(dsp(3), 3, dropout=0.5)
    other, _, _ = piped(dsp(3), 3, dropout=0.5, seed=1)
    assert torch.equal(bits(model), bits(again))
    assert not torch.equal(bits(model), bits(other))
    # Without lags a replayed mask is the mask: a part that replays is one that keeps its graph.
    assert torch.equal(bits(piped(DSP((0, 0), (0, 0)), 2, dropout=0.5)[0]), bits(piped(BPK(), 2, dropout=0.5)[0]))
    assert training.held == {0: 5, 1: 3, 2: 1}


def test_a_replay_draws_the_masks_of_its_forward_pass():
    torch.manual_seed(0)
    seen: list[Tensor] = []
    first, second = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.Sequential(nn.Linear(4, 2))
    first.register_forward_hook(lambda module, given, out: seen.append((out != 0).clone()))
    batches = [(torch.randn(3, 4), torch.zeros(3, dtype=torch.long)) for _ in range(3)]
    before = torch.get_rng_state()
    simulate_pipeline([first, second], lambda p: torch.optim.SGD(p, 0.0), DSP((1, 0), (2, 0)), batches)
    assert torch.equal(torch.get_rng_state(), before)
    f0, f1, f2, b0, b1, b2 = seen
    for forward, replay in ((f0, b0), (f1, b1), (f2, b2)):
        assert torch.equal(forward, replay)
    assert not torch.equal(f0, f1)


def careless(model: nn.Module) -> nn.Module:
    """Without a module that says that it writes over its input."""
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


@pytest.mark.parametrize("schedule", [dsp(2), PipeDream(), PipeDream2BW(2), GPipe(2), DNI()])
def test_a_batch_that_a_script_reuses_goes_back_as_it_was(schedule):
    whole, reused = piped(schedule, 2)[0], careless(net())
    training, x, y = Simulation(cut(reused, 2), sgd, schedule), torch.empty(8, 6), torch.empty(8, dtype=torch.long)
    for inputs, targets in data():
        training.step(x.copy_(inputs), y.copy_(targets))
    training.drain()
    assert torch.equal(bits(whole), bits(reused))


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.25


class ScaledInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sub_(0.5).div_(0.25)


@pytest.mark.parametrize("schedule", [BPK(), dsp(2), PipeDream(), GPipe(2)])
def test_a_first_part_that_writes_over_its_input_trains_on_the_input(schedule):
    models, x = [careless(net()), careless(net())], data()[0][0].clone()
    for model, first in zip(models, (Scaled(), ScaledInPlace()), strict=True):
        lower, upper = cut(model, 2)
        training = Simulation([nn.Sequential(first, lower), upper], small_sgd, schedule)
        for inputs, y in data():
            training.step(inputs, y)
        training.predict(x)
        training.drain()
    assert torch.equal(*map(bits, models))
    assert torch.equal(x, data()[0][0])


@pytest.mark.parametrize("schedule", [dsp(3), PipeDream2BW(2), DNI()])
def test_in_whatever_order_parts_go_on_the_result_is_the_same(schedule):
    class Shuffled(Simulation):
        def order(self, parts: list[int]) -> list[int]:
            return random.sample(parts, len(parts))

    model = net()
    training = Shuffled(cut(model, 3), sgd, schedule)
    for x, y in data():
        training.step(x, y)
    training.drain()
    assert torch.equal(bits(model), bits(piped(schedule, 3)[0]))


def test_a_drained_pipeline_goes_on_and_uses_every_batch_once():
    model = net()
    training = Simulation(cut(model, 3), sgd, dsp(3))
    for number, (x, y) in enumerate(data()):
        training.step(x, y)
        if number == 4:
            training.drain()
            assert all(not stage.queue for stage in training.stages.values())
    training.drain()
    assert [stage.steps for stage in training.stages.values()] == [BATCHES] * 3
    assert training.drain() is None
    assert {stage.steps for stage in training.stages.values()} == {BATCHES}


def test_a_look_at_the_model_changes_nothing():
    model, whole = net(), piped(dsp(3), 3)[0]
    training = Simulation(cut(model, 3), sgd, dsp(3))
    for x, y in data():
        training.step(x, y)
        out = training.predict(x)
        training_mode = [m.training for m in model.modules()]
        model.eval()
        assert torch.equal(out, model(x).detach())
        model.train()
        assert all(training_mode)
    training.drain()
    assert torch.equal(bits(model), bits(whole))


def test_a_look_that_fails_leaves_the_model_in_training_mode():
    model = net()
    training = Simulation(cut(model, 2), sgd, dsp(2))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        training.predict(torch.randn(8, 5))
    assert all(module.training for module in model.modules())


def test_parts_whose_parameters_have_one_name_are_told_apart_in_the_whole_model():
    parts = [nn.Sequential(nn.Linear(6, 8)), nn.Sequential(nn.Linear(8, 3))]
    training, _ = simulate_pipeline(parts, small_sgd, BPK(), data())
    found, expected = training.whole_state_dict(), nn.ModuleList(parts).state_dict()
    assert list(found) == list(expected) == ["0.0.weight", "0.0.bias", "1.0.weight", "1.0.bias"]
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.AdamW(p, 0.01),
        lambda p: torch.optim.NAdam(p, 0.01, betas=(0.99, 0.999)),
    ],
)
def test_a_factor_of_the_rate_by_part_leaves_a_part_where_it_is(make):
    start, model = dict(net(norm=False).named_parameters()), net(norm=False)
    simulate_pipeline(cut(model, 2), make, BPK(), data(), rate=lambda batch, part: float(part))
    lower = {name for name, _ in cut(model, 2)[0].named_parameters()}
    assert {name for name, p in model.named_parameters() if torch.equal(p, start[name])} == lower


@pytest.mark.parametrize("whole", [False, True], ids=["a step", "all steps"])
@pytest.mark.parametrize(
    "schedule", [BPK(), DSP((1, 1, 0), (4, 2, 0)), FR(), DDG(), PipeDream(), GPipe(2), PipeDream2BW(2)]
)
def test_within_autocast_each_forward_pass_narrows_its_parameters_anew(schedule, whole):
    """Torch's copies of a forward pass without a graph, or from before a step, are used by none after it."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.float(), targets)

    within = partial(torch.autocast, "cpu", torch.bfloat16)
    apart, found = net(), net()
    stages = cut(apart, 3)
    for stage in stages:
        stage.forward = within()(stage.forward)  # type: ignore[method-assign]
    expected = run(Simulation(stages, sgd, schedule, loss=loss), data())
    training = Simulation(cut(found, 3), sgd, schedule, loss=loss)
    with within() if whole else nullcontext():
        losses = []
        for x, y in data():
            with nullcontext() if whole else within():
                losses.append(training.step(x, y))
        with within():
            losses.append(training.drain())
    assert [float(each) for each in losses if each is not None] == expected
    assert torch.equal(bits(found), bits(apart))
    assert not torch.equal(bits(found), bits(piped(schedule, 3)[0]))  # in 32 bits


def test_within_autocast_a_measurement_is_of_narrow_numbers_and_leaves_the_model_as_it_is():
    model = net()
    before = bits(model)
    with torch.autocast("cpu", torch.bfloat16):
        stages = split(model, 2, sample=data()[0][0])
        profile = measure(stages, *data()[0])
    assert profile.inputs[1] == 8 * 8 * 2  # 8 examples of 8 numbers, of which the first part's last layer made bfloat16
    assert torch.equal(bits(model), before)


def test_gradients_are_clipped_part_by_part():
    model = net()
    Simulation(cut(model, 2), lambda p: torch.optim.SGD(p, 0.1), BPK(), clip=1e-3).step(*data()[0])
    for before, after in zip(cut(net(), 2), cut(model, 2), strict=True):
        pairs = zip(before.parameters(), after.parameters(), strict=True)
        assert float(torch.cat([(a - b).detach().reshape(-1) for a, b in pairs]).norm()) == pytest.approx(
            1e-4, rel=1e-2
        )


def test_predicted_error_gradients_begin_at_zero_and_are_learned():
    model = net()
    training = Simulation(cut(model, 2), small_sgd, DNI())
    lower = bits(cut(net(), 2)[0])
    training.step(*data()[0])
    weights = [n for n, _ in cut(net(), 2)[0].named_parameters()]
    assert all(torch.equal(dict(model.named_parameters())[n], dict(net().named_parameters())[n]) for n in weights)
    for _ in range(5):
        training.step(*data()[0])
    training.drain()
    assert not torch.equal(bits(cut(model, 2)[0]), lower)
    assert not training.stages[0].auxiliary.untaught


# -- links --------------------------------------------------------------------


@pytest.mark.parametrize(("link", "share"), [(tw.Half(), 0.5), (tw.Int8(), 0.25), (tw.TopK(0.1), 0.2)])
def test_links_send_their_share_in_both_directions(link, share):
    def trained(**links: Any) -> tuple[Simulation, list[float]]:
        torch.manual_seed(0)
        parts = [nn.Sequential(nn.Linear(6, 400)), nn.Sequential(nn.ReLU(), nn.Linear(400, 3))]
        return simulate_pipeline(parts, small_sgd, DSP((1, 0), (2, 0), **links), data())

    (dense, expected), (thin, losses) = trained(), trained(activations=link, gradients=link)
    for way in ("forward", "backward"):
        sent = [training.ledger[0 if way == "forward" else 1].summary()[f"{way}_sent"] for training in (dense, thin)]
        received = thin.ledger[1 if way == "forward" else 0].summary()[f"{way}_received"]
        assert received == sent[1] < sent[0] * share * 1.1
    assert thin.ledger[0].backward_sent == thin.ledger[1].forward_sent == 0
    assert losses != expected
    assert losses[:2] == pytest.approx(expected[:2], rel=0.2)


def test_the_bytes_of_a_message_are_its_numbers_and_32_of_framing():
    """[64, 40] floats are 10,240 bytes; the wire's version, tag and dimensions take 8 with padding, the frame 24."""
    parts = [nn.Sequential(nn.Linear(6, 40)), nn.Sequential(nn.Linear(40, 3))]
    batches = [(torch.zeros(64, 6), torch.zeros(64, dtype=torch.long))] * 3
    training, _ = simulate_pipeline(parts, small_sgd, BPK(), batches)
    assert training.ledger[0].forward_sent == 256 + 3 * (10240 + 8 + 24)
    assert training.ledger[0].summary()["sent"] == training.ledger[1].summary()["received"]


def test_activations_that_did_not_change_are_sent_exactly_after_an_epoch():
    """AQ-SGD with nothing trained: differences to the epoch before are nothing, and what arrives is the activation."""
    link = AQSGD(tw.QSGD(7, norm="max"), examples=24)
    model = net()
    training = Simulation(cut(model, 2), lambda p: torch.optim.SGD(p, 0.0), BPK(activations=link))
    losses, sizes = [], []
    for _ in range(2):
        for number, (x, y) in enumerate(data(batches=3)):
            before = training.ledger[0].forward_sent
            losses.append(float(training.step(x, y, examples=range(8 * number, 8 * number + 8))))
            sizes.append(training.ledger[0].forward_sent - before)
    assert losses[:3] == losses[3:]
    assert len(training.stages[0].messages.sent.held) == len(training.stages[1].messages.received.held) == 24


def test_after_an_epoch_differences_take_the_bytes_of_their_link():
    """[16, 256] floats are 16,384 bytes. A level of QSGD(7) is 4 bits: 2,048 bytes, and less where many are zero."""

    def epochs(link: Any) -> list[int]:
        torch.manual_seed(0)
        parts = [nn.Sequential(nn.Linear(6, 256)), nn.Sequential(nn.ReLU(), nn.Linear(256, 3))]
        training, found = Simulation(parts, lambda p: torch.optim.SGD(p, 0.01), BPK(activations=link)), []
        for _ in range(3):
            before = training.ledger[0].forward_sent
            for number, (x, _) in enumerate(data(batches=4)):
                numbers = range(16 * number, 16 * number + 16)
                training.step(torch.cat([x, -x]), torch.arange(16) % 3, examples=numbers)
            found.append(training.ledger[0].forward_sent - before)
        return found

    remembered, plain_link = epochs(AQSGD(tw.QSGD(7, norm="max"))), epochs(tw.QSGD(7, norm="max"))
    assert 4 * 16384 < remembered[0] < 4 * 16384 + 1000
    assert plain_link[1] < remembered[1] < plain_link[1] * 1.1
    assert remembered[2] == remembered[1]
    assert remembered[2] < 4 * 2300


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("schedule", [dsp(2, activations=AQSGD(examples=12)), DNI()])
def test_a_model_of_another_type_is_trained_in_it(schedule, dtype):
    model, whole = net(norm=False).to(dtype), net(norm=False).to(dtype)
    batches = [(x.to(dtype), y) for x, y in data()]
    training, straight = (Simulation(cut(m, 2), small_sgd, schedule) for m in (model, whole))
    expected = run(straight, batches)
    for number, (x, y) in enumerate(batches[:5]):
        training.step(x, y, examples=torch.arange(8) + 8 * (number % 2))
    later = Simulation(cut(model, 2), small_sgd, schedule)
    later.load_state_dict(training.state_dict())
    found = run(later, batches, 5)
    assert found == expected[-len(found) :]
    assert torch.equal(bits(model), bits(whole))
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert not torch.equal(bits(model), bits(net(norm=False).to(dtype)))


def test_the_memory_of_examples_is_bounded_and_both_ends_hold_the_same():
    link = AQSGD(examples=10)
    training = Simulation(cut(net(), 2), sgd, DSP((1, 0), (2, 0), activations=link))
    for number, (x, y) in enumerate(data()):
        training.step(x, y, examples=torch.arange(8) + 8 * (number % 2))
    sent, received = training.stages[0].messages.sent.held, training.stages[1].messages.received.held
    assert list(sent) == list(received)
    assert len(sent) == 10
    assert all(torch.equal(sent[e], received[e]) for e in sent)
    with pytest.raises(ValueError, match="remembers activations by example"):
        training.step(*data()[0])


@pytest.mark.parametrize("link", [tw.EF21(tw.TopK(0.1)), tw.ErrorFeedback(tw.TopK(0.1)), tw.LBGM(tw.SignSGD())])
def test_links_with_a_memory_are_refused_with_the_reason(link):
    with pytest.raises(CombinationError, match="it remembers earlier messages, and here each is of other examples"):
        DSP((1, 0), (2, 0), gradients=link)
    with pytest.raises(CombinationError, match="AQSGD remembers itself"):
        AQSGD(link)


# -- schedules ----------------------------------------------------------------


def test_the_lags_back_are_those_of_the_thesis():
    configurations = {
        ((1, 1, 0), (4, 2, 0)): (0, 1, 1),
        ((2, 2, 0), (6, 3, 0)): (0, 1, 1),
        ((3, 3, 0), (10, 5, 0)): (0, 2, 2),
        ((1, 1, 1, 0), (6, 4, 2, 0)): (0, 1, 1, 1),
    }
    for (p, m), q in configurations.items():
        assert DSP(p, m).q == q


def test_the_table_is_figure_2_of_the_thesis():
    """DSP(1,1,0;4,2,0): batch 20 goes forward at ticks 20, 21, 22 and back at 24, 23, 22."""
    lines = DSP((1, 1, 0), (4, 2, 0)).table(3, 26).splitlines()
    width = len("F26 B26") + 2
    cells = [[line[8 + width * t : 8 + width * (t + 1)].split() for t in range(26)] for line in lines]
    for name, ticks in (("F20", [20, 21, 22]), ("B20", [24, 23, 22])):
        assert [next(t for t, cell in enumerate(row) if name in cell) for row in cells] == ticks


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DSP((1, 0), (4, 2, 0)), "p has 2 lags and m has 3"),
        (lambda: DSP((1, 1, 1), (4, 2, 0)), r"p\[2\] is 1, and nothing follows the last part"),
        (lambda: DSP((1, -1, 0), (4, 2, 0)), r"p\[1\] is -1, and a lag is at least 0"),
        (lambda: DSP((3, 1, 0), (4, 2, 0)), r"q\[1\] = m\[0\] - p\[0\] - m\[1\] is -1.*raise m\[0\] to 5 or more"),
        (lambda: DSP((0, 0), (0, 1)), r"q\[1\] .* is -1"),
        (lambda: DSP((), ()), "p has 0 lags"),
        (lambda: DSP((1, 1, 0), (4, 2, 0)).check(4), "is for 3 parts, and the model is cut into 4"),
        (lambda: PipeDream2BW(2).check(4), "4 parts need at least 3 micro-batches"),
        (lambda: GPipe(0), "at least 1 micro-batch"),
        (lambda: DNI(-1), "at least 0 batches late"),
        (lambda: AQSGD(examples=0), "at least 1 example"),
        (lambda: GPipe(4).table(2, 4), "only schedules of whole batches"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_name(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("BPK()", "BPK()"),
        ("FR(barrier=True)", "FR(True)"),
        ("OneFOneB(8)", "OneFOneB(8)"),
        ("DSP((1, 1, 0), (4, 2, 0))", "DSP((1, 1, 0), m=(4, 2, 0))"),
        ("DSP((1, 0), (2, 0), activations=Half())", "DSP((1, 0), m=(2, 0), activations=Half())"),
        ("PipeDream(activations=AQSGD(QSGD(7)))", "PipeDream(activations=AQSGD(QSGD(7), examples=65536))"),
    ],
)
def test_a_schedule_is_typed_as_it_is_shown(typed, shown):
    names = {**vocabulary(), **SCHEDULES, "AQSGD": AQSGD}
    made = parse(typed, names=names)
    assert repr(made) == shown
    assert parse(complete(made), names=names) == made == parse(shown, names=names)


@pytest.mark.parametrize("schedule", [dsp(4), FR(), DDG(), PipeDream2BW(3), GPipe(3), OneFOneB(3), DNI(), BPK()])
def test_every_micro_batch_goes_forward_and_back_once_and_every_batch_has_one_step(schedule):
    for part in range(4):
        ops = [op for batch in range(7) for op in schedule.tick(part, 4, batch)] + schedule.drain(part, 4, 0, 7)
        pairs = [(b, j) for b in range(7) for j in range(schedule.pieces)]
        back = [(op.batch, op.micro) for op in ops if op.do in ("backward", "guess")]
        assert [(op.batch, op.micro) for op in ops if op.do == "forward"] == back == pairs
        assert [op.batch for op in ops if op.do == "step"] == list(range(7))


# -- the law ------------------------------------------------------------------


@pytest.mark.slow
def test_the_law_is_what_parts_that_execute_the_operations_take():
    g = random.Random(0)
    for _ in range(200):
        parts = g.randint(1, 5)
        m = [0] * parts
        for k in range(parts - 2, -1, -1):
            m[k] = m[k + 1] + g.randint(0, 4)
        f, b = ([g.uniform(0.1, 2) for _ in range(parts)] for _ in range(2))
        c, d = ([g.choice([0, 0.3, 1, 5]) for _ in range(parts - 1)] for _ in range(2))
        schedule = DSP((0,) * parts, tuple(m))
        # Ends of batches may alternate: the mean over many of them is what the law says.
        assert law.events(schedule, f, b, c, d, 240) == pytest.approx(law.tick(m, f, b, c, d), rel=0.03)


def test_the_law_by_hand():
    """Plain model parallelism: everything in turn, 3 * (1 + 2) + 4 * 0.5 = 11. Two batches of slack: 11 / 3 < 3 * 2."""
    args = [1.0] * 3, [2.0] * 3, [0.5] * 2, [0.5] * 2
    assert law.tick((0, 0, 0), *args) == 11
    assert law.events(BPK(), *args) == pytest.approx(11)
    assert law.tick((2, 1, 0), *args) == pytest.approx(max(11 / 3, 7 / 2, 3))
    assert law.tick((4, 2, 0), *args) == 3
    # GPipe with M = 2: parts 0..2 and back: (2 + 3 - 1) micro-batches of (1 + 2) / 2, and 4 messages of 0.25
    assert law.events(GPipe(2), *args) == pytest.approx(4 * 1.5 + 4 * 0.25)
    assert law.events(FR(barrier=True), *args) > law.events(FR(), *args)


def test_a_barrier_takes_the_time_of_its_messages_by_hand():
    """Part 1 is done at t, and part 0 long before. Part 0 hears of it at t + 0.5, and goes forward until t + 1.5. Its
    message is there at t + 2, and takes part 1 three seconds. Part 1 itself has asked part 0, and heard at t + 1.

    Where the gradient of part 1 takes the link until t + 1, the barrier's message comes after it, at t + 1.5.
    """
    assert law.events(FR(barrier=True), [1.0] * 2, [2.0] * 2, [0.5], [0.5]) == pytest.approx(5)
    busy: Any = ([0.0], [1.0])
    assert law.events(FR(barrier=True), [1.0] * 2, [2.0] * 2, [0.5], [1.5], busy=busy) == pytest.approx(6)
    # Three parts without links between them: everyone waits for everyone, and a batch goes through all.
    assert law.events(FR(barrier=True), [1.0] * 3, [2.0] * 3, [0.0] * 2, [0.0] * 2) == pytest.approx(5)


def test_the_law_of_a_barrier_is_near_the_measured_times_over_slow_links():
    """The seconds that parts computed, the bytes, and the time of a batch are those of the lines."""
    lines = map(json.loads, (ROOT / "benchmarks/results/pipeline.jsonl").read_text().splitlines())
    found = {line["model"]: line for line in lines if line["part"] == "stragglers"}
    assert found.keys() == {"waits", "resnet20"}
    for line in found.values():
        arm, late = line["arms"]["FR, barrier"], line["latency_ms"] / 1e3
        busy = [[each * 8 / (line["mbit"] * 1e6)] for each in arm["bytes"]]
        ahead, back = ([late + each[0]] for each in busy)
        own = [each / 1e3 for each in arm["own_ms"]]
        shares = [each / 3 for each in own], [each * 2 / 3 for each in own]
        by_law = law.events(FR(barrier=True), *shares, ahead, back, 40, (busy[0], busy[1]))
        assert 0.95 < arm["ms"] / 1e3 / by_law < 1.15


def test_a_plan_is_the_least_staleness_that_hides_the_links():
    assert law.plan([0.02] * 3, [0.06] * 3, [0.01] * 2, [0.01] * 2) == DSP((1, 1, 0), (4, 2, 0))
    assert law.plan([1, 1], [1, 1], [0], [0]) == DSP((1, 0), (1, 0))
    assert law.plan([1.0], [1.0], [], []) == DSP((0,), (0,))
    g = random.Random(1)
    for _ in range(20):
        f, b = ([g.uniform(0.1, 2) for _ in range(4)] for _ in range(2))
        c, d = ([g.uniform(0, 3) for _ in range(3)] for _ in range(2))
        most = max(x + y for x, y in zip(f, b, strict=True))
        m = law.plan(f, b, c, d).m
        assert law.tick(m, f, b, c, d) == pytest.approx(most)
        for k in range(3):  # one batch less at any part, where that can be, and links cost something
            less = [*m[:k], m[k] - 1, *m[k + 1 :]]
            if less[k] >= less[k + 1] and (k == 0 or less[k - 1] >= less[k]):
                assert law.tick(less, f, b, c, d) > most


# -- cutting a model ----------------------------------------------------------


def test_cuts_make_the_costliest_part_as_cheap_as_can_be():
    # 9 | 2 3 4 | 5 5: the largest is 10; without what is not trained alone
    assert balance([9, 2, 3, 4, 5, 5], [True] * 6, 3) == [1, 4]
    assert balance([1, 1, 10, 1], [True, False, False, True], 2) == [2]
    assert balance([4, 4], [True, True], 2) == [1]


def test_parts_have_the_names_and_the_modules_of_the_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))))
    parts = split(model, 3, costs=[1, 0, 1, 1])
    names = [list(part.state_dict()) for part in parts]
    assert names == [["0.weight", "0.bias"], ["1.1.0.weight", "1.1.0.bias"], ["1.1.1.weight", "1.1.1.bias"]]
    assert parts[0][0] is model[0]
    x = torch.randn(3, 4)
    assert torch.equal(parts[2](parts[1](parts[0](x))), model(x))


def test_a_measured_cut_leaves_model_statistics_and_dice_alone():
    model, before, dice = net(0.5), bits(net(0.5)), torch.get_rng_state()
    dice = torch.get_rng_state()
    parts = split(model, 3, sample=data()[0])
    assert torch.equal(bits(model), before)
    assert torch.equal(torch.get_rng_state(), dice)
    assert all(p.grad is None for p in model.parameters())
    assert sum(len(list(part.parameters())) for part in parts) == len(list(model.parameters()))


def test_a_list_and_a_module_with_a_chain_are_cut_like_a_sequential():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2)

        def chain(self) -> list[nn.Module]:
            return [self.one, self.two]

    own = Own()
    assert split(own, 2, costs=[1, 1])[1][0] is own.two
    assert split([own.one, own.two], 2, sample=torch.randn(2, 4))[0][0] is own.one


tied = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: split(nn.Linear(2, 2).requires_grad_(False), 1, costs=[1]), "Linear is no chain"),
        (lambda: split(nn.TransformerEncoderLayer(4, 1), 2, costs=[1]), "TransformerEncoderLayer is no chain"),
        (lambda: split([nn.ReLU(), 3], 2, costs=[1]), "int in the list is no module"),
        (lambda: split(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), 2, costs=[1, 1]), "1 modules with parameters"),
        (lambda: split(net(), 0, costs=[1]), r"split\(parts=0\)"),
        (lambda: split(net(), 2), "give sample=, a batch"),
        (lambda: split(net(), 2, costs=[1]), "1 costs for 17 modules"),
        (lambda: split(net(), 2, costs=[-1] * 17), "a cost is below 0"),
        (lambda: split(nn.Sequential(tied, nn.ReLU(), tied), 2, costs=[1, 0, 1]), "machines share no memory"),
        (lambda: split(net(), 2, sample=torch.randn(2, 7)), r"0 \(Linear\) does not take what comes before it"),
        (lambda: split(net(), 2, sample="x"), "str; give a tensor"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_what_to_change(make, said):
    with pytest.raises(ValueError, match=said):
        make()


# -- bad input ----------------------------------------------------------------


def test_batches_that_cannot_be_are_refused():
    training = Simulation(cut(net(), 2), sgd, GPipe(4))
    training.step(*data()[0])
    for batch, said in (
        (
            (torch.zeros(8, 5), data()[0][1]),
            r"batch 1 has inputs of shape \[8, 5\], torch.float32, and those before had",
        ),
        ((None, data()[0][1]), "the first part needs the inputs x"),
    ):
        with pytest.raises(ValueError, match=said):
            Simulation.step(training, *batch)
        training = Simulation(cut(net(), 2), sgd, GPipe(4))
        training.step(*data()[0])
    with pytest.raises(ValueError, match="the last part needs the targets y"):
        training.step(data()[0][0])
    with pytest.raises(ValueError, match="6 examples, which are not 4 micro-batches of equal size"):
        Simulation(cut(net(), 2), sgd, GPipe(4)).step(data()[0][0][:6], data()[0][1][:6])
    with pytest.raises(ValueError, match="give the list of modules that split"):
        Simulation(net, sgd, GPipe(4))
    with pytest.raises(ValueError, match="part 0 has no parameters to train"):
        Simulation([nn.ReLU(), nn.Linear(2, 2)], sgd, BPK())
    with pytest.raises(ValueError, match="3 parts are 3 processes"):
        pipeline(cut(net(), 3), sgd, BPK())


@pytest.mark.parametrize("schedule", [dsp(2), BPK(), PipeDream2BW(1)])
def test_a_smaller_last_batch_is_refused_and_nothing_is_lost(schedule):
    model, batches = net(), data()
    training = Simulation(cut(model, 2), sgd, schedule)
    for number, (x, y) in enumerate(batches):
        if number == 4:
            before = training.state_dict()
            for smaller in ((x[:5], y[:5]), (x, y[:5]), (x.double(), y)):
                with pytest.raises(ValueError, match=r"batch 4 has .*: one training takes batches of one shape"):
                    training.step(*smaller)
            with pytest.raises(ValueError, match=r"drop the last batch of an epoch where it is smaller \(drop_last=Tr"):
                training.step(x[:5], y[:5])
            after = training.state_dict()
            assert tw.dumps(before) == tw.dumps(after)
            training = Simulation(cut(model, 2), sgd, schedule)
            training.load_state_dict(after)
            with pytest.raises(
                ValueError, match=r"inputs of shape \[5, 6\], torch.float32, and those before had \[8, 6\]"
            ):
                training.step(x[:5], y[:5])
        training.step(x, y)
    training.drain()
    assert torch.equal(bits(model), bits(piped(schedule, 2)[0]))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script, whose types nobody has checked."""

    class Third(dict[int, int]):
        """Calls that are not looked at."""

        def get(self, *_: Any) -> int:
            return 2

    monkeypatch.setattr(annotations, "every_call", False)
    monkeypatch.setattr(annotations, "calls", Third())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schedule": BPK}, r"schedule=BPK: give a schedule, with its arguments, such as BPK\(\)"),
        ({"schedule": "FR()"}, r"schedule='FR\(\)': give a schedule"),
        ({"optimizer": small_sgd([nn.Parameter(torch.zeros(1))])}, "optimizer=SGD: give a function that makes one"),
        ({"loss": 3}, "loss=3: give a function of outputs and targets"),
        ({"rate": 0.1}, "rate=0.1: give a function of a batch and a part, or None"),
        ({"clip": -1.0}, "clip=-1.0: the largest norm of a part's gradient, above 0, or None"),
        ({"clip": 0.0}, "clip=0.0: the largest norm"),
        ({"stages": [nn.Sequential(tied, nn.ReLU()), nn.Sequential(tied)]}, "'0.weight' of part 1 is '0.weight' of"),
    ],
)
def test_a_training_that_cannot_be_is_refused_with_what_to_change(more, said):
    given = {"stages": cut(net(), 2), "optimizer": sgd, "schedule": BPK(), **more}
    first = [given.pop(name) for name in ("stages", "optimizer", "schedule")]
    for make in (Simulation, pipeline):
        with pytest.raises(ValueError, match=said):
            make(*first, **given)


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_a_factor_of_the_rate_that_is_no_such_is_refused_before_the_step(factor):
    model = net(norm=False)
    training = Simulation(cut(model, 2), small_sgd, BPK(), rate=lambda batch, part: factor if part else 1.0)
    with pytest.raises(ValueError, match=rf"rate\(0, 1\) is {factor}: a factor of the learning rate, at least 0"):
        training.step(*data()[0])
    upper, before = (cut(each, 2)[1] for each in (model, net(norm=False)))
    assert torch.equal(bits(upper), bits(before))


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_optimiser_that_computes_gradients_itself_is_refused_before_the_first_batch(replicas):
    with pytest.raises(
        ValueError, match="optimizer=LBFGS: its step computes gradients itself, and those of a part come"
    ):
        Simulation(cut(net(), 2), lambda p: torch.optim.LBFGS(p), BPK(), replicas=replicas)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda p: None, "optimizer: the function gives NoneType, and an optimiser is expected"),
        (lambda p: sgd(net().parameters()), "optimizer=SGD: it has none of the parameters that are trained"),
    ],
)
def test_an_optimiser_that_would_train_nothing_is_refused_before_the_first_batch(optimizer, said, replicas):
    with pytest.raises(ValueError, match=said):
        Simulation(cut(net(), 2), optimizer, BPK(), replicas=replicas)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: ((x, x), y, None), r"step\(x, y\): the inputs x are of type tuple: give one tensor"),
        (lambda x, y: (x.tolist(), y, None), "the inputs x are of type list"),
        (lambda x, y: (x.numpy(), y, None), "the inputs x are of type ndarray"),
        (lambda x, y: (x, {"y": y}, None), "the targets y are of type dict"),
        (lambda x, y: (x, y, range(7)), "7 numbers for 8 inputs x: give a number for each example"),
    ],
)
def test_a_batch_of_another_kind_is_refused_before_anything_is_done_with_it(change, said):
    training = Simulation(cut(net(), 2), sgd, dsp(2))
    for x, y in data()[:4]:
        training.step(x, y)
    before = tw.dumps(training.state_dict())
    with pytest.raises(ValueError, match=said):
        training.step(*change(*data()[4]))
    assert tw.dumps(training.state_dict()) == before
    training.step(*data()[4])


@pytest.mark.parametrize("schedule", [BPK(), dsp(2)])
@pytest.mark.parametrize(
    ("change", "kind"), [(lambda x, y: (x, None), ValueError), (lambda x, y: (x * math.nan, y), NonFinite)]
)
def test_a_simulation_that_has_failed_goes_no_further_but_from_a_state(schedule, change, kind):
    model, whole = net(), piped(schedule, 2)[0]
    training = Simulation(cut(model, 2), sgd, schedule)
    for x, y in data()[:4]:
        training.step(x, y)
    state = training.state_dict()
    with pytest.raises(kind):
        run(training, [change(x, y) for x, y in data()[4:]])
    said = rf"this training has failed \({kind.__name__}: .*begin anew, from a checkpoint"
    for go_on in (
        lambda: training.step(*data()[5]),
        training.drain,
        training.state_dict,
        training.whole_state_dict,
        lambda: training.predict(data()[0][0]),
    ):
        with pytest.raises(ValueError, match=said):
            go_on()
    training.load_state_dict(state)
    run(training, data(), 4)
    assert torch.equal(bits(model), bits(whole))


def test_a_loss_that_is_not_finite_says_at_which_batch():
    training = Simulation(cut(net(norm=False), 2), lambda p: torch.optim.SGD(p, 1e30), BPK())
    with pytest.raises(NonFinite, match=r"the loss became .*; lower the learning rate, or clip"):
        run(training, data())


# -- checkpoints --------------------------------------------------------------

RESUMED = {
    "DSP": lambda k: dsp(k),
    "DDG": lambda k: DDG(),
    "PipeDream2BW": lambda k: PipeDream2BW(2),
    "1F1B": lambda k: OneFOneB(2),
    "DNI": lambda k: DNI(),
    "AQSGD": lambda k: dsp(k, activations=AQSGD(examples=12), gradients=tw.Int8()),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_saved_training_goes_on_to_the_same_bits(name, tmp_path):
    model, saved = net(0.3), net(0.3)
    whole, first = (Simulation(cut(m, 3), sgd, RESUMED[name](3)) for m in (model, saved))
    expected = run(whole, data())
    for number, (x, y) in enumerate(data()[:5]):
        first.step(x, y, examples=torch.arange(8) + 8 * (number % 2))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    later = net(0.3)
    with torch.no_grad():
        for p in later.parameters():
            p.zero_()
    second = Simulation(cut(later, 3), sgd, RESUMED[name](3))
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    found = run(second, data(), 5)
    assert torch.equal(bits(later), bits(model))
    assert found == expected[-len(found) :]
    assert [b.summary() for b in second.ledger.values()] == [b.summary() for b in whole.ledger.values()]


@pytest.mark.parametrize("schedule", [dsp(2), PipeDream(), PipeDream2BW(2), DNI()])
@pytest.mark.parametrize("lasts", [(True, False), (False, True), (True, True)], ids=["network", "pictures", "both"])
def test_a_saved_training_of_channels_last_goes_on_to_the_same_bits(schedule, lasts):
    formats = [torch.channels_last if last else torch.contiguous_format for last in lasts]

    def made() -> tuple[nn.Module, Simulation]:
        torch.manual_seed(0)
        own = [each for _ in range(2) for each in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())]
        model = nn.Sequential(*own, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 3)).to(
            memory_format=formats[0]
        )
        return model, Simulation(split(model, 2, at=[3]), sgd, schedule)

    g = torch.Generator().manual_seed(0)
    pictures = [torch.randn(8, 16, 8, 8, generator=g).contiguous(memory_format=formats[1]) for _ in range(BATCHES)]
    batches = [(x, y) for x, (_, y) in zip(pictures, data(), strict=True)]
    (model, whole), (_, first), (later, second) = made(), made(), made()
    expected = run(whole, batches)
    for x, y in batches[:5]:
        first.step(x, y)
    second.load_state_dict(tw.loads(tw.dumps(first.state_dict())))
    found = run(second, batches, 5)
    assert torch.equal(bits(later), bits(model))
    assert found == expected[-len(found) :]


def test_the_state_of_another_training_is_refused():
    states = Simulation(cut(net(), 2), sgd, dsp(2)).state_dict()
    for make, said in (
        (lambda: Simulation(cut(net(), 2), sgd, FR()).load_state_dict(states), "this state is of another schedule"),
        (lambda: Simulation(cut(net(), 2), sgd, dsp(2), seed=1).load_state_dict(states), "of another seed: 0, not 1"),
        (lambda: Simulation(cut(net(), 2), sgd, dsp(2)).load_state_dict(states[:1]), "1 states for 2 parts"),
        (lambda: Simulation(cut(net(), 2), sgd, dsp(2)).load_state_dict(states[::-1]), "of part 1, and this is part 0"),
        (lambda: Simulation(cut(net(), 2), sgd, dsp(2)).load_state_dict([{}, {}]), "this is no state of thinwire"),
    ):
        with pytest.raises(ValueError, match=said):
            make()
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="the state of another training"):
        Simulation(split(model, 2, costs=[1, 1]), sgd, dsp(2)).load_state_dict(states)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.01)


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (sgd, adam, "trained with SGD, .*and here it is Adam"),
        (adam, lambda p: torch.optim.AdamW(p, 0.01), "trained with Adam, .*and here it is AdamW"),
        (sgd, lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:]}], 0.1), "trained with SGD, in its gro"),
    ],
)
def test_the_state_of_another_optimiser_is_refused_by_name(first, then, said):
    training = Simulation(cut(net(), 2), first, dsp(2))
    for x, y in data()[:4]:
        training.step(x, y)
    with pytest.raises(ValueError, match=said):
        Simulation(cut(net(), 2), then, dsp(2)).load_state_dict(training.state_dict())


# -- processes ----------------------------------------------------------------


FEW, MORE = 8, 12  # batches of each case, so that all queues are full and one goes on: of six, or of nine
CASES: dict[str, tuple[int, Schedule, int]] = {
    f"{name} {parts} {seed}": (parts, make(parts), seed)
    for parts in PARTS
    for name, make, seeds in [
        ("DSP", dsp, (0, 1, 2)),
        ("DSP deep", lambda k: dsp(k, 3), (0,)),
        ("FR", lambda k: FR(), (0, 1, 2)),
        ("FR barrier", lambda k: FR(barrier=True), (0,)),
        ("PipeDream", lambda k: PipeDream(), (0, 1, 2)),
        ("2BW", lambda k: PipeDream2BW(4), (0, 1, 2)),
        ("GPipe", lambda k: GPipe(2), (0,)),
        ("1F1B", lambda k: OneFOneB(2), (0, 1, 2)),
        ("DNI", lambda k: DNI(), (0, 1, 2)),
        ("BPK", lambda k: BPK(), (0,)),
        ("Int8", lambda k: dsp(k, activations=tw.Int8(), gradients=tw.Half()), (0,)),
        ("TopK", lambda k: dsp(k, activations=tw.TopK(0.3), gradients=tw.LowRank(2)), (0,)),
        ("QSGD", lambda k: dsp(k, activations=tw.QSGD(7), gradients=tw.Entropy(tw.QSGD(2))), (1,)),
        ("AQSGD", lambda k: dsp(k, activations=AQSGD(examples=12)), (0,)),
        ("DSP narrow", dsp, (0,)),
    ]
    for seed in seeds
}
CASES |= {
    "ResNet DSP": (2, DSP((1, 0), (3, 0)), 0),
    "ResNet PipeDream": (2, PipeDream(activations=AQSGD(examples=12), gradients=tw.Int8()), 0),
    "Transformer DSP": (2, DSP((1, 0), (3, 0), activations=tw.LowRank(2), gradients=tw.QSGD(7)), 0),
    "Transformer DNI": (2, DNI(), 0),
}


def modelled(name: str, parts: int) -> list[nn.Sequential]:
    """The parts of a case's model."""
    torch.manual_seed(5)
    if "ResNet" in name:
        return split(models.resnet20(), 2, at=[6])
    if "Transformer" in name:
        return split(models.char_transformer(depth=2), 2, at=[3])
    return cut(net(0.2), parts)


def batches_of(name: str, seed: int) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    if "ResNet" in name:
        return [(torch.randn(8, 3, 16, 16, generator=g), torch.randint(10, (8,), generator=g)) for _ in range(FEW)]
    if "Transformer" in name:
        rows = [torch.randint(65, (8, 13), generator=g) for _ in range(FEW)]
        return [(row[:, :-1], row[:, 1:]) for row in rows]
    return data(seed, MORE if "deep" in name else FEW)


@pytest.mark.parametrize("name", CASES)
def test_the_batches_of_each_case_fill_its_queues_and_one_goes_on(name):
    parts, schedule, seed = CASES[name]
    assert len(batches_of(name, seed)) * schedule.pieces > max(schedule.delays(parts)) + 1


def narrow(name: str) -> Any:
    """What a script of a case trains within."""
    return torch.autocast("cpu", torch.bfloat16) if "narrow" in name else nullcontext()


def case(name: str, rank: int, group: Any) -> dict[str, Any]:
    parts, schedule, seed = CASES[name]
    delays = random.Random(f"{name} {rank}")
    training = pipeline(modelled(name, parts), sgd, schedule, seed=seed, group=group, timeout=100)
    losses = []
    with narrow(name):
        for number, (x, y) in enumerate(batches_of(name, seed)):
            time.sleep(delays.random() * 0.002)
            losses.append(training.step(x, y, examples=torch.arange(8) + 8 * (number % 2)))
            if number == 4:
                training.predict(x)
        losses.append(training.drain())
    return {
        "model": training.whole_state_dict(),
        "losses": [float(loss) for loss in losses if loss is not None],
        "bytes": training.bytes.summary(),
        "held": training.held,
    }


def all_cases(rank: int, cases: dict[str, tuple[int, Schedule, int]]) -> dict[str, Any]:
    """What processes come to in each case."""
    groups = {parts: dist.new_group(list(range(parts))) for parts in PARTS}
    return {name: case(name, rank, groups[parts]) for name, (parts, _, _) in cases.items() if rank < parts}


def everything(rank: int) -> dict[str, Any]:
    """What four healthy processes can show beside that; each finding is compared by a test."""
    groups = {parts: dist.new_group(list(range(parts))) for parts in PARTS}
    found: dict[str, Any] = {"refused": {}}
    for name, make in RESUMED.items():
        if rank < 3:
            first = pipeline(cut(net(0.3), 3), sgd, make(3), group=groups[3], timeout=100)
            for number, (x, y) in enumerate(data()[:5]):
                first.step(x, y, examples=torch.arange(8) + 8 * (number % 2))
            state = first.state_dict()
            second = pipeline(cut(net(0.3), 3), sgd, make(3), group=groups[3], timeout=100)
            second.load_state_dict(state)
            losses = [run(training, data(), 5) for training in (first, second)]
            models = [bits(training.whole_state_dict()) for training in (first, second)]
            found[f"resume {name}"] = [losses, models, first.bytes.sent, second.bytes.sent, state]
            found["refused"][f"late {name}"] = refusal(lambda t=first, s=state: t.load_state_dict(s))
    dist.barrier()
    refuse, said = refusal, found["refused"]
    others = {
        "schedule": lambda: pipeline(cut(net(), 4), sgd, FR() if rank == 2 else BPK()),
        "seed": lambda: pipeline(cut(net(), 4), sgd, BPK(), seed=rank // 3),
        "model": lambda: pipeline(split(net(), 4, costs=range(17)) if rank == 1 else cut(net(), 4), sgd, BPK()),
        "start": lambda: pipeline(cut(net() if rank else nn.Sequential(*map(reset, net())), 4), sgd, BPK()),
        "parts": lambda: pipeline(cut(net(), 3), sgd, BPK()),
    }
    for name, make in others.items():
        said[name] = refuse(make)
    for name, batches in {
        "shape": [(torch.zeros(8, 6 - (rank == 0)), data()[0][1])],
        "size": [(data()[0][0][:5], data()[0][1][:5]) if rank in (0, 3) else (None, None)],
        "targets": [(data()[0][0], None if rank == 3 else data()[0][1])],
        "nan": [(x * math.nan, y) for x, y in data()[:1]],
        "barrier": [(data()[0][0], None if rank == 3 else data()[0][1])],
    }.items():
        alone = dist.new_group(list(range(4)))  # whose connections a failure may close
        schedule = FR(barrier=True) if "barrier" in name else dsp(4)
        training = pipeline(cut(net(), 4), sgd, schedule, group=alone, timeout=100)
        for batch in data()[:3]:
            training.step(*batch)
        began = time.monotonic()
        said[name] = refuse(lambda t=training, b=batches: [t.step(x, y) for x, y in b + data(batches=12)])
        said[f"{name} again"] = [refuse(lambda t=training: t.step(*data()[0]))]
        said[f"{name} again"] += [refuse(training.state_dict), refuse(training.whole_state_dict)]
        found[f"{name} seconds"] = time.monotonic() - began
        dist.barrier()
    return found


def reset(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    return module


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return forked(4, everything, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    names = selection(request, "name")
    work = partial(all_cases, cases={name: case for name, case in CASES.items() if name in names})
    return forked(4, work, tmp_path_factory.mktemp("cases"))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiers(sorted(CASES, key=lambda name: CASES[name][2]), slow=44))
def test_processes_under_random_delays_are_the_simulation_bit_for_bit(name, cases):
    parts, schedule, seed = CASES[name]
    losses = []
    training = Simulation(modelled(name, parts), sgd, schedule, seed=seed)
    with narrow(name):
        for number, (x, y) in enumerate(batches_of(name, seed)):
            losses.append(training.step(x, y, examples=torch.arange(8) + 8 * (number % 2)))
            if number == 4:
                training.predict(x)
        losses.append(training.drain())
    model = training.whole_state_dict()
    for rank in range(parts):
        found = cases[rank][name]
        assert found["model"].keys() == model.keys()
        assert torch.equal(bits(found["model"]), bits(model))
        assert found["losses"] == ([float(x) for x in losses if x is not None] if rank == parts - 1 else [])
        assert {**found["bytes"], "setup": 0} == training.ledger[rank].summary()
        assert found["bytes"]["setup"] > 0
        assert found["held"] == {rank: training.held[rank]}


@pytest.mark.parametrize("name", RESUMED)
def test_processes_go_on_from_their_states_and_the_simulation_from_them_too(name, ranks):
    states = []
    for rank in range(3):
        losses, models, *sent, state = ranks[rank][f"resume {name}"]
        assert losses[0] == losses[1]
        assert torch.equal(*models)
        assert sent[0] == pytest.approx(sent[1], abs=1024)  # frames are announced anew
        assert "load_state_dict: this training has begun" in ranks[rank]["refused"][f"late {name}"]
        states.append(state)
    model = net(0.3)
    training = Simulation(cut(model, 3), sgd, RESUMED[name](3))
    training.load_state_dict(states)
    assert run(training, data(), 5) == ranks[2][f"resume {name}"][0][0]
    assert torch.equal(bits(model), ranks[0][f"resume {name}"][1][0])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("schedule", "OutOfSync: rank 2 has another schedule than rank 0: FR("),
        ("seed", "OutOfSync: rank 3 has another seed than rank 0: 1, not 0"),
        ("model", "OutOfSync: rank 1 has another model (its parameters' names or shapes) than rank 0"),
        ("start", "OutOfSync: rank 1 has another initial model than rank 0; seed torch alike on every rank"),
        ("parts", "ValueError: 3 parts, and 4 ranks: split(model, parts=4, ...)"),
    ],
)
def test_a_rank_that_wants_something_else_is_refused_on_every_rank(name, said, ranks):
    for found in ranks:
        assert found["refused"][name].startswith(said)


@pytest.mark.parametrize(
    ("name", "part", "said"),
    [
        ("shape", 0, "batch 3 has inputs of shape [8, 5], torch.float32, and those before had [8, 6]"),
        ("targets", 3, "step(x, y): the last part needs the targets y"),
        ("nan", 3, "batch 3: the loss became nan; lower the learning rate, or clip"),
        ("barrier", 3, "step(x, y): the last part needs the targets y"),
    ],
)
def test_an_error_of_one_rank_is_said_on_every_rank_at_once(name, part, said, ranks):
    for rank, found in enumerate(ranks):
        assert said in found["refused"][name]
        assert found["refused"][name].startswith("RankLost: part") == (rank != part)
        assert f"part {part}: " in found["refused"][name] or rank == part
        for again in found["refused"][f"{name} again"]:
            assert again.startswith("ValueError: this training has failed")
        assert found[f"{name} seconds"] < 60


def test_a_smaller_last_batch_is_refused_on_every_rank(ranks):
    for rank, found in enumerate(ranks):
        said = found["refused"]["size"]
        if rank in (0, 3):  # which were given it
            assert said.startswith("ValueError: batch 3 has inputs of shape [5, 6], torch.")
        else:
            assert said.startswith(f"RankLost: part {rank} of 4 cannot go on: part ")
        assert "drop the last batch of an epoch where it is smaller (drop_last=True)" in said
        assert found["size seconds"] < 60


def lost(rank: int, folder: Path) -> Any:
    training = pipeline(cut(net(), 4), sgd, dsp(4), timeout=3)
    for number, batch in enumerate(data(batches=50)):
        if number == 4:
            torch.save(training.state_dict(), folder / f"saved{rank}.pt")
        if rank == 2 and number == 5:
            os._exit(1)
        began = time.monotonic()
        said = refusal(lambda b=batch: training.step(*b))
        if said != "nothing":
            return [number, said, time.monotonic() - began]
        time.sleep(0.01)
    return None


@pytest.mark.slow
def test_a_rank_that_dies_is_named_on_every_other_rank_within_the_time_limit(tmp_path):
    found = forked(4, partial(lost, folder=tmp_path), tmp_path)
    assert found[2] is None
    for rank in (0, 1, 3):
        number, said, seconds = found[rank]
        assert said.startswith(f"RankLost: part {rank} of 4")
        assert "the process of part 2 died, or sent nothing for 3 s" in said
        assert seconds < 9
        assert number <= 12
    # The checkpoint of the batch before is as good as ever.
    whole, later = (Simulation(cut(net(), 4), sgd, dsp(4)) for _ in range(2))
    later.load_state_dict([torch.load(tmp_path / f"saved{rank}.pt") for rank in range(4)])
    expected = run(whole, data())
    assert run(later, data(), 4) == expected[4:]
    assert torch.equal(bits(later.whole_state_dict()), bits(whole.whole_state_dict()))


def early(rank: int, folder: Path, size: int) -> Any:
    """Rank 1 ends after its last call, while rank 0 has yet to look at what came."""
    parts = [nn.Sequential(nn.Linear(6, size), nn.Tanh()), nn.Linear(size, 4)]
    training, gone = pipeline(parts, sgd, dsp(2), timeout=20), folder / "gone"
    for x, y in data(batches=5):
        training.step(x, y)
    if rank == 1:
        training.drain()
        gone.touch()
        os._exit(0)
    while not gone.exists():
        time.sleep(0.01)
    time.sleep(0.5)  # until gloo has heard
    training.drain()
    return training.stage.steps


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 40_000])
def test_a_rank_may_end_after_its_last_message(size, tmp_path):
    torch.manual_seed(0)
    assert forked(2, partial(early, folder=tmp_path, size=size), tmp_path)[0] == 5


def stalled(rank: int) -> Any:
    """Rank 1 makes no call: neither at the beginning nor of the model."""
    began, said = time.monotonic(), []
    if rank == 0:
        said.append(refusal(lambda: pipeline(cut(net(), 2), sgd, BPK(), timeout=1)))
    else:
        time.sleep(2)
    return [said, time.monotonic() - began]


def unheard(rank: int) -> Any:
    training = pipeline(cut(net(), 2), sgd, BPK(), timeout=1)
    training.step(*data()[0])
    began = time.monotonic()
    if rank == 0:
        return [[refusal(training.whole_state_dict)], time.monotonic() - began]
    time.sleep(2)
    return None


@pytest.mark.parametrize(("work", "where"), [(stalled, "comparing what is to be trained"), (unheard, "gathering the")])
def test_a_rank_that_makes_no_call_is_lost_after_the_time_limit(work, where, tmp_path):
    said, seconds = forked(2, work, tmp_path)[0]
    assert said[0].startswith(f"RankLost: rank 0 of 2, {where}")
    assert "stalled beyond 1 s" in said[0]
    assert 0.9 < seconds < 60


def hurried(rank: int) -> int:
    """Barriers that come to an end just when a look at the neighbours has been given up."""
    runtime.LOOK = 0.004
    stages = split([Wait(0.001), Wait(0.002), Wait(0.001)], 3, at=[1, 2])
    training = pipeline(stages, small_sgd, FR(barrier=True), loss=nn.functional.mse_loss, timeout=100)
    x = torch.zeros(4, 4)
    for _ in range(100):
        training.step(x, x)
    training.drain()
    return training.stage.steps


@pytest.mark.slow
def test_a_barrier_that_ends_while_a_part_looks_at_its_neighbours_is_passed(tmp_path):
    found = forked(3, hurried, tmp_path)
    assert found == [100] * 3


def misnamed(rank: int) -> list[str]:
    """Each rank names the examples of batch 3 in an order of its own, and then other ones."""
    orders = (torch.arange(8), torch.arange(8).flip(0)), (torch.arange(8), torch.arange(8) + (8 if rank else 0))
    found = []
    for first, other in orders:
        training = pipeline(cut(net(), 2), sgd, BPK(activations=AQSGD()), group=dist.new_group([0, 1]), timeout=20)
        for number, (x, y) in enumerate(data(batches=5)):
            numbers = other if number == 3 and rank else first
            said = refusal(lambda t=training, a=x, b=y, n=numbers: t.step(a, b, examples=n))
            if said != "nothing":
                found.append(f"{number} {said}")
                break
        dist.barrier()
    return found


def test_examples_that_are_named_otherwise_on_one_rank_are_an_error_on_every_rank(tmp_path):
    first, second = forked(2, misnamed, tmp_path)
    assert len(first) == len(second) == 2
    for one, other in zip(first, second, strict=True):
        assert other.startswith("3 OutOfSync: the part before names other examples of this batch, or in another order")
        assert one.startswith("3 RankLost: part 0 of 2 cannot go on: part 1: the part before names other examples")


FRAMED: list[Schedule] = [
    BPK(),
    DSP((1, 1, 0), (4, 2, 0)),
    DSP((1, 1, 0), (4, 2, 0), activations=tw.Int8(), gradients=tw.Half()),
    DSP((0, 0, 0), (7, 1, 0), activations=AQSGD(tw.Int8(), examples=24)),
    PipeDream(),
    PipeDream2BW(2),
    GPipe(4),
    OneFOneB(4),
    DNI(2),
]


def wide() -> list[nn.Sequential]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(inputs, outputs)) for inputs, outputs in ((6, 800), (800, 400), (400, 3))]


def framed(rank: int) -> list[int]:
    """Of each schedule what frames took here, where others wait for the first part, and then for the last."""
    found = []
    for schedule in FRAMED:
        training = pipeline(wide(), small_sgd, schedule, timeout=100)
        for number, (x, y) in enumerate(data(batches=18)):
            time.sleep(0.02 * (rank == 2 * (number // 9)))
            training.step(x, y, examples=torch.arange(8) + 8 * (number % 3))
        training.drain()
        found.append(training.frames)
    return found


@pytest.mark.slow
def test_frames_between_processes_take_what_the_plan_says_and_no_more(tmp_path):
    ranks, (x, y) = forked(3, framed, tmp_path), data()[0]
    profile = measure(wide(), x, y)
    for number, schedule in enumerate(FRAMED):
        sizes: Any = messages(wide(), schedule, x, y)
        whole = memory(schedule, profile, sizes)
        kept = memory(replace(schedule, activations=tw.Dense()), profile, ((0, 0), (0, 0)))  # and announcements
        for part, found in enumerate(ranks):
            most = whole[part] - kept[part] + 256 * (1 + (part == 1))
            assert most / 2 < found[number] <= most, (schedule, part)


# -- the law, against processes -----------------------------------------------


class Later(torch.autograd.Function):
    """Waits in place of computing, twice as long on the way back: so other work on the machine changes little."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x * gain

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return slopes[0], torch.zeros(()), None


class Wait(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.gain, self.seconds = nn.Parameter(torch.ones(())), seconds

    def forward(self, x: Tensor) -> Tensor:
        return Later.apply(x, self.gain, self.seconds)


PACED = {
    "BPK": BPK(),
    "too little": DSP((0, 0, 0), (1, 1, 0)),  # parts 0 and 1 wait for one another
    "FR": FR(),
    "DSP": DSP((1, 1, 0), (4, 2, 0)),
    "FR, barrier": FR(barrier=True),
    "GPipe": GPipe(2),
}


def paced(rank: int) -> dict[str, list[tuple[float, float]]]:
    """Of each schedule, in three turns: seconds a batch, and of them those in which this part computed."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PACED}
    for name, schedule in PACED.items():
        stages = split([Wait(0.01), Wait(0.02), Wait(0.01)], 3, at=[1, 2])
        training = pipeline(stages, small_sgd, schedule, loss=nn.functional.mse_loss, timeout=100)
        x = torch.zeros(4, 4)
        for _ in range(9):  # until queues are full
            training.step(x, x)
        for _ in range(3):
            began, own = time.perf_counter(), training.computed
            for _ in range(8):
                training.step(x, x)
            found[name].append(((time.perf_counter() - began) / 8, (training.computed - own) / 8))
        training.drain()
    return found


@pytest.fixture(scope="module")
def pace(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return forked(3, paced, tmp_path_factory.mktemp("pace"))


@pytest.mark.deployment
@pytest.mark.parametrize("name", PACED)
def test_processes_take_the_time_of_the_law(name, pace):
    schedule, off = PACED[name], []
    for turn in range(3):
        took, own = max(rank[name][turn][0] for rank in pace), [rank[name][turn][1] for rank in pace]
        if schedule.pieces == 1 and not schedule.barrier:
            expected = law.tick(schedule.delays(3), own, [0.0] * 3, [0.0] * 2, [0.0] * 2)
        else:
            shares = [each / 3 for each in own], [each * 2 / 3 for each in own]
            expected = law.events(schedule, *shares, [0.0] * 2, [0.0] * 2, 40)
        off.append(took / expected)
    assert 0.9 < min(off) < 1.25
