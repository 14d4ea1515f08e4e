"""Local training: SGD, Adam and AdamW as torch has them, warm-up, clipping, what is kept, bfloat16."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from blobs import assert_same_run, blobs, mlp, simulate
from thinwire import SCAFFOLD, FedAvg, FedDC, Key, LocalAdam, LocalAdamW, LocalSGD, Params, Supervised
from thinwire.errors import CombinationError, NonFinite
from thinwire.federated.client import ClientState
from thinwire.local import Local, Trainer, look
from thinwire.models import char_transformer
from thinwire.train.batches import draw_batches
from thinwire.train.evaluation import evaluate
from thinwire.train.many import batchable, train_many
from thinwire.train.one import train
from thinwire.train.slot import Slot

KEY = Key(3, 2, 1)


def rows(n: int = 23) -> Supervised:
    g = torch.Generator().manual_seed(1)
    return Supervised(torch.randn(40, 6, generator=g), torch.randint(3, (40,), generator=g), torch.arange(n))


def slotted(module: Callable[[], nn.Module] = mlp) -> tuple[Slot, Params]:
    torch.manual_seed(0)
    slot = Slot(module())
    return slot, slot.params()


# -- the trainers of torch ---------------------------------------------------------------


def by_torch(x: Params, task: Supervised, trainer: Trainer, make: Callable[[Any], torch.optim.Optimizer]) -> Tensor:
    """The same mini-batches taken by an optimizer of torch, clip_grad_norm_ and LambdaLR."""
    module = mlp()
    nn.utils.vector_to_parameters(x.flat.clone(), module.parameters())
    optimizer = make(module.parameters())
    warmer = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / max(1, trainer.warmup)))
    for indices in (row[row >= 0] for row in draw_batches(len(task), trainer, KEY.generator("batches"))):
        optimizer.zero_grad()
        inputs, targets = task.batch(indices)
        nn.functional.cross_entropy(module(inputs), targets).backward()
        if trainer.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), trainer.clip)
        optimizer.step()
        warmer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


BY_TORCH: dict[str, tuple[Trainer, Any]] = {
    "SGD": (
        LocalSGD(0.3, epochs=4, batch=5, momentum=0.9, weight_decay=0.02, warmup=7, clip=0.5),
        lambda p: torch.optim.SGD(p, 0.3, momentum=0.9, weight_decay=0.02),
    ),
    "Adam": (
        LocalAdam(0.03, epochs=4, batch=5, weight_decay=0.02, warmup=7, clip=0.5),
        lambda p: torch.optim.Adam(p, 0.03, weight_decay=0.02),
    ),
    "AdamW": (
        LocalAdamW(0.03, epochs=4, batch=5, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1, warmup=7, clip=0.5),
        lambda p: torch.optim.AdamW(p, 0.03, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", BY_TORCH)
def test_local_training_is_that_of_torchs_optimizers_step_for_step(name: str) -> None:
    trainer, make = BY_TORCH[name]
    slot, x = slotted()
    for steps in (1, 2, 3, 4, 5, 7, 10, 20):  # to a few units in the last place of numbers near 1
        short = replace(trainer, steps=steps)
        found = train(slot, rows(), Local(x, short), KEY)
        torch.testing.assert_close(found.x.flat, by_torch(x, rows(), short, make), atol=2e-6, rtol=2e-6)
    assert (found.x - x).norm() > 0.1


class Line(nn.Module):
    """w x, one weight: its gradient for the loss (w x)^2 / 2 is w x^2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.square().sum(1) / 2


ONE = Supervised(torch.tensor([[2.0]]), torch.zeros(1, 1), loss_of=half_square)

# import numpy as np
# def run(lr, warm, clip, decay, decoupled, adam, n=4, b1=.9, b2=.999, w=1., m=0., v=0.):
#     for t in range(1, n + 1):
#         g = 4 * w
#         if clip: g *= min(1, clip / (abs(g) + 1e-6))
#         rate = lr * min(1, t / warm) if warm else lr
#         if not decoupled: g += decay * w
#         m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
#         d = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + 1e-8) if adam else g
#         w -= rate * (d + (decay * w if decoupled else 0))
#         print(t, w)
BY_HAND = {
    "LocalSGD(0.1, batch=None, steps=4, warmup=4)": 0.30240000,
    "LocalSGD(0.1, batch=None, steps=4, clip=1.0)": 0.60000012,
    "LocalAdam(0.1, batch=None, steps=4, weight_decay=0.5)": 0.60393906,
    "LocalAdamW(0.1, batch=None, steps=4, weight_decay=0.5, warmup=2, clip=2.0)": 0.50782188,
}


@pytest.mark.parametrize("expression", BY_HAND)
def test_four_steps_on_one_weight_end_where_the_formulas_say(expression: str) -> None:
    slot = Slot(Line())
    found = train(slot, ONE, Local(slot.params(), tw.parse(expression)), KEY)
    assert float(found.x.flat) == pytest.approx(BY_HAND[expression], abs=1e-6)


# -- warm-up, clipping, what is kept -----------------------------------------------------


def test_a_warm_up_multiplies_the_rate_of_the_round_and_starts_over_in_each() -> None:
    slot = Slot(Line())
    trainer = LocalSGD(tw.Warmup(0.4, rounds=4), batch=None, steps=3, warmup=4)
    found = train(slot, ONE, Local(slot.params(), trainer), KEY)  # round 2: half of 0.4
    assert found.rates == pytest.approx(0.2 * (1 + 2 + 3) / 4)
    assert float(found.x.flat) == pytest.approx((1 - 0.2) * (1 - 0.4) * (1 - 0.6))  # each step leaves 1 - 4 rate
    again = train(slot, ONE, Local(slot.params(), trainer), KEY)
    assert again.rates == found.rates


def test_clipping_bounds_the_gradient_of_the_loss_and_not_what_a_method_adds() -> None:
    slot = Slot(Line())
    x = slot.params()
    offset = Params(x.layout, torch.tensor([-0.25]))
    found = train(slot, ONE, Local(x, LocalSGD(0.1, batch=None, steps=1, clip=0.5), offset=offset), KEY)
    assert float(found.x.flat) == pytest.approx(1 - 0.1 * (0.5 - 0.25), abs=1e-6)
    short = train(slot, ONE, Local(x, LocalSGD(0.1, batch=None, steps=1, clip=9.0)), KEY)
    assert torch.equal(short.x.flat, train(slot, ONE, Local(x, LocalSGD(0.1, batch=None, steps=1)), KEY).x.flat)


@pytest.mark.parametrize("entries", [False, True], ids=["layers", "entries too"])
def test_what_a_mask_holds_has_no_part_in_the_norm_that_is_clipped(entries: bool) -> None:
    # As torch clips the gradients that are left once the others are zero: one by one, beside others, in any memory.
    slot, x = slotted()
    task, trainer = rows(), LocalSGD(0.3, batch=8, momentum=0.9, clip=0.05, weight_decay=0.1)
    held = x.zeros().replace(x.drop(["0.weight"]).map(torch.ones_like))
    mask = Params(x.layout, held.flat * (torch.arange(x.layout.size) % 2)) if entries else held
    request = Local(x, trainer, mask=mask)
    module, w = mlp(), x.flat.clone()
    momentum = torch.zeros_like(w)
    for batch in draw_batches(len(task), trainer, KEY.generator("batches")):
        nn.utils.vector_to_parameters(w, module.parameters())
        module.zero_grad()
        task.loss(module, task.batch(batch[batch >= 0])).mean().backward()
        g = nn.utils.parameters_to_vector([p.grad for p in module.parameters()]) * mask.flat
        momentum = 0.9 * momentum + g * min(1.0, 0.05 / (float(g.norm()) + 1e-6)) + 0.1 * w
        w = w - 0.3 * momentum * mask.flat
    found = [train(slot, task, request, KEY), *train_many(slot, [task] * 2, [request] * 2, [KEY] * 2)]
    for trained in found:
        assert trained.memory is not None
        torch.testing.assert_close(trained.x.flat, w, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(trained.memory.vectors[0].flat, momentum, atol=1e-6, rtol=1e-5)


def test_what_a_method_looks_at_is_the_gradient_whatever_the_trainer_makes_of_it() -> None:
    slot = Slot(Line())
    x = slot.params()
    for trainer in (LocalSGD(0.1, clip=0.5), LocalAdam(0.1, clip=0.5, keep=True), LocalAdamW(0.1, weight_decay=3.0)):
        found = train(slot, ONE, look(x, trainer), KEY)
        assert found.gradient.flat.tolist() == [4.0]
        assert found.x is x
        assert slot.flat.tolist() == [1.0]
    decayed = train(slot, ONE, look(x, LocalSGD(0.1, weight_decay=0.5)), KEY)
    assert decayed.gradient.flat.tolist() == [4.5]
    with pytest.raises(ValueError, match="no gradient to show: ask for one by look"):
        assert train(slot, ONE, Local(x, LocalSGD(0.1)), KEY).gradient
    with pytest.raises(NonFinite, match="round 2, client 1: the loss became inf"):
        train(slot, ONE, look(Params(x.layout, torch.tensor([1e30])), LocalSGD(0.1)), KEY)


def test_a_request_trains_in_training_mode_whoever_evaluated_before() -> None:
    class Modes(Line):
        seen: ClassVar[list[bool]] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(self.training)
            return super().forward(x)

    slot = Slot(Modes().eval())
    evaluate(slot, ONE)
    train(slot, ONE, Local(slot.params(), LocalSGD(0.1, batch=None)), KEY)
    train(slot, ONE, look(slot.params(), LocalSGD(0.1)), KEY)
    evaluate(slot, ONE)
    assert Modes.seen == [False, True, True, False]


@pytest.mark.parametrize("local", ["LocalAdamW(0.05, batch=None, {})", "LocalSGD(0.05, momentum=0.9, batch=None, {})"])
def test_kept_moments_make_many_rounds_of_one_client_one_long_training(local: str) -> None:
    options: dict[str, Any] = {"tasks": blobs((30,)), "sample": 1, "test": None}
    kept = simulate(f"FedAvg({local.format('steps=3, warmup=5, keep=True')})", rounds=4, **options)
    anew = simulate(f"FedAvg({local.format('steps=3, warmup=5')})", rounds=4, **options)
    whole = simulate(f"FedAvg({local.format('steps=12, warmup=5')})", rounds=1, **options)
    torch.testing.assert_close(kept.params.flat, whole.params.flat, atol=1e-5, rtol=1e-5)
    assert (anew.params - whole.params).norm() > 0.05


def test_what_is_kept_is_part_of_the_clients_state_from_the_start_and_is_not_sent() -> None:
    run = tw.Simulation(tw.parse("FedAvg(LocalAdam(0.02, keep=True))"), mlp, blobs(), sample=2, workers=1, plan="each")
    before = run.ends().own
    assert isinstance(before, ClientState)
    assert (before.memory.steps, [v.flat.tolist() for v in before.memory.vectors]) == (0, [[0.0] * 83] * 2)
    with run.pool:
        run.step()
    (own, other) = (ends.own for ends in run.states.ends.values())
    assert own.memory.steps > 0
    assert tw.dumps(tw.restore(tw.loads(tw.dumps(own)), before)) == tw.dumps(own)
    assert not torch.equal(own.memory.vectors[0].flat, other.memory.vectors[0].flat)
    plain = simulate("FedAvg()", rounds=1)
    assert [e.payload for e in run.ledger.of("up")][:1] == [e.payload for e in plain.ledger.of("up")][:1]


def test_a_reply_that_was_lost_leaves_the_moments_as_they_were() -> None:
    method = tw.parse("FedAvg(LocalAdam(0.02, batch=8, keep=True))")
    run = tw.Simulation(method, mlp, blobs(), dropout=0.5, workers=1, plan="each", seed=1)
    with run.pool:
        for _ in range(4):
            run.step()
    taken = {c: len([e for e in run.ledger.of("up") if e.client == c]) for c in range(6)}
    steps = {c: ends.own.memory.steps for c, ends in run.states.ends.items()}
    each = {0: 1, 1: 2, 2: 2, 3: 3, 4: 3, 5: 5}  # batches of 8 of 8, 12, 16, 20, 24 and 40 examples
    assert steps == {c: taken[c] * each[c] for c in steps}
    assert len(set(taken.values())) > 1


def test_clients_whose_clocks_differ_are_not_trained_as_one() -> None:
    slot, x = slotted()
    tasks, trainer = blobs((5, 5)), LocalAdam(0.02, keep=True)
    rest = trainer.begin(x.layout)
    same, other = Local(x, trainer, memory=rest), Local(x, trainer, memory=rest._replace(steps=3))
    assert batchable(slot, tasks, [same, same])
    assert not batchable(slot, tasks, [same, other])
    for one, found in zip((5, 7), train_many(slot, tasks, [other, other], [KEY, KEY]), strict=True):
        assert found.memory is not None
        assert found.memory.steps == 4, one


def test_a_trainer_that_is_kept_must_be_the_methods_own() -> None:
    class Elsewhere(FedAvg):
        def client(self, view: Any, state: Any, task: Any, key: Key) -> Any:
            y = yield Local(view.x, LocalAdam(0.1, keep=True))
            return y.x, state

    with pytest.raises(ValueError, match=r"keep=True.*what is kept is that of the method's field `local`"):
        simulate(Elsewhere(LocalSGD(0.1)), rounds=1)


# -- what methods take ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("SCAFFOLD(LocalAdam())", r"a step of LocalAdam is no multiple of a gradient: use LocalSGD, or option='I'"),
        ("FedDC(LocalAdamW())", r"FedDC reads .* a step of LocalAdamW is no multiple of a gradient: use LocalSGD"),
        ("FedAvgLM(LocalAdam(0.01))", r"LocalAdam has moments instead: use LocalSGD\(momentum=0.6\), or FedAvg\(Local"),
    ],
)
def test_a_method_that_needs_steps_of_sgd_says_so(expression: str, reason: str) -> None:
    with pytest.raises(CombinationError, match=reason):
        tw.parse(expression)


@pytest.mark.parametrize("method", [SCAFFOLD, FedDC])
def test_the_mean_gradient_on_the_way_is_right_during_a_warm_up(method: Any) -> None:
    # On (w x)^2 / 2 with x = 2 every step of rate r leaves 1 - 4 r of w; the gradients on the way are 4 w.
    trainer = LocalSGD(0.1, batch=None, steps=3, warmup=3)
    start = method(trainer).init(Slot(Line()).params(), 1, KEY)
    algorithm = method(trainer, **({"alpha": 0.0} if method is FedDC else {}))
    x = Slot(Line()).params()
    view = algorithm.broadcast(start.server._replace(x=x), start.view)
    work = algorithm.client(view, start.client, ONE, KEY)
    trained = train(Slot(Line()), ONE, next(work), KEY)
    with pytest.raises(StopIteration) as done:
        work.send(trained)
    reply, _ = done.value.value
    rates, w, sums = (0.1 / 3, 0.2 / 3, 0.1), 1.0, 0.0
    for rate in rates:
        sums, w = sums + rate * 4 * w, w * (1 - 4 * rate)
    found = reply.control if method is SCAFFOLD else reply.gradient
    assert float(found.flat) == pytest.approx(sums / 0.2, rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("LocalAdam(beta1=1.0)", "LocalAdam(beta1=1.0): beta1 must be in [0, 1)"),
        ("LocalAdamW(eps=0.0)", "LocalAdamW(eps=0.0): eps must be positive"),
        ("LocalAdamW(warmup=-1)", "LocalAdamW(warmup=-1): warmup is a number of steps, 0 or more"),
        ("LocalSGD(clip=0.0)", "LocalSGD(clip=0.0): clip must be positive or None"),
        ("FedAvg(LocalAdamW(warmup=2.5))", "LocalAdamW(warmup=2.5): int is expected"),
    ],
)
def test_a_trainers_field_out_of_its_range_is_answered_by_one_line(wrong: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        tw.parse(wrong)
    assert str(caught.value) == message


def test_what_the_command_line_leaves_open_is_filled_in_for_adam_too() -> None:
    assert tw.parse("FedAvg(LocalAdamW(warmup=5))", {"lr": 0.003, "batch": 10}) == FedAvg(
        LocalAdamW(0.003, batch=10, warmup=5)
    )
    assert repr(tw.parse("FedAvg(LocalAdamW(3e-4, clip=1.0))")) == "FedAvg(LocalAdamW(0.0003, clip=1.0))"


# -- numbers that are none ----------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["each", "together"])
def test_a_loss_that_diverges_names_the_field_that_clips(plan: Any) -> None:
    with pytest.raises(NonFinite, match=r"client \d: .*lower lr=1e\+30 or clip the gradients: LocalSGD\(clip=1\.0\)$"):
        simulate("FedAvg(LocalSGD(1e30, epochs=9))", plan=plan)
    with pytest.raises(NonFinite, match=r"lower lr=1e\+30$"):
        simulate("FedAvg(LocalSGD(1e30, clip=1e30, epochs=9))", plan=plan)


@pytest.mark.parametrize("plan", ["each", "together"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_examples_that_hold_no_numbers_are_said_to_and_not_the_rate(value: float, plan: Any) -> None:
    tasks: list[Any] = [(t.inputs[t.indices].clone(), t.targets[t.indices]) for t in blobs()]
    tasks[4][0][7, 2] = value
    with pytest.raises(NonFinite) as caught:
        simulate("FedAvg()", tasks=tasks, sample=6, plan=plan)
    said = "round 1, client 4: the inputs have NaN or infinity in them; take these examples out, or mend them"
    assert str(caught.value) == said


# -- bfloat16 -------------------------------------------------------------------------------------


def half_mlp() -> nn.Module:
    return mlp().bfloat16()


def mixed() -> nn.Module:  # a float32 norm inside
    class Widened(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float()).to(x.dtype)

    return nn.Sequential(nn.Linear(6, 8).bfloat16(), Widened(8), nn.ReLU(), nn.Linear(8, 3).bfloat16())


@pytest.mark.parametrize("model", [half_mlp, mixed])
def test_a_bfloat16_model_is_trained_by_a_float32_copy(model: Any) -> None:
    # Every step is too small to move a weight of bfloat16, which has 8 bits; together they do.
    trainer = LocalSGD(1e-4, batch=None, steps=400)
    slot, x = slotted(model)
    found = train(slot, rows(), Local(x, trainer), KEY)
    single = Slot(copy.deepcopy(slot.module).float())
    assert found.x.flat.dtype == torch.float32
    expected = train(single, rows(), Local(x, trainer), KEY)
    moved, wanted = found.x - x, expected.x - x
    assert (moved - wanted).norm() < 0.03 * wanted.norm()
    slot.load(found.x)
    for name, parameter in slot.module.named_parameters():
        assert torch.equal(parameter, found.x[name].to(parameter.dtype)), name


def test_a_bfloat16_run_sends_float32_and_ends_in_bfloat16(tmp_path: Path) -> None:
    options: dict[str, Any] = {"expression": "FedAvg(LocalAdamW(0.02, clip=1.0, keep=True))", "model": half_mlp}
    run = simulate(rounds=4, **options)
    assert run.rounds[-1]["train_loss"] < 0.8 < 1.0 < run.rounds[0]["train_loss"]
    assert {p.dtype for p in run.module.parameters()} == {torch.bfloat16}
    assert run.params.flat.dtype == torch.float32
    assert torch.equal(run.module[0].weight, run.params["0.weight"].bfloat16())  # type: ignore[index]
    bytes_up = simulate("FedAvg()").bytes_up
    assert run.bytes_up == bytes_up
    assert_same_run(simulate(rounds=4, workers=2, **options), run)
    simulate(rounds=2, out=tmp_path / "run", **options)
    assert_same_run(simulate(rounds=4, out=tmp_path / "run", resume=True, **options), run)
    saved = tmp_path / "run" / "model.safetensors"
    assert saved.exists()


@pytest.mark.parametrize("method", ["FedGen(hidden=4, noise=2, steps=3)", "MOON()", "FedNTD()", "SCAFFOLD(option='I')"])
def test_methods_that_look_into_a_model_take_one_in_bfloat16(method: str) -> None:
    found, plain = (simulate(method, model, 3) for model in (half_mlp, lambda: half_mlp().float()))
    for ours, theirs in zip(found.rounds, plain.rounds, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=0.02)


def test_parameters_of_another_type_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"parameter '0.weight' is torch.float16: models are trained and sent in float"
    ):
        simulate("FedAvg()", lambda: mlp().half())


# -- a transformer -----------------------------------------------------------------------------------


def test_a_character_transformer_learns_with_adamw_warm_up_and_clipping() -> None:
    text = torch.tensor([ord(c) - 97 for c in "thequickbrownfoxjumpsoverthelazydog" * 40])
    windows = text.unfold(0, 17, 8)
    tasks: list[Any] = [(w[:, :-1], w[:, 1:]) for w in windows.chunk(4)]

    def model() -> nn.Module:
        return char_transformer(26, context=16, width=32, depth=2, heads=2)

    method = "FedAvg(LocalAdamW(0.01, batch=8, warmup=4, clip=1.0))"
    found = simulate(method, model, 6, tasks=tasks, test=tasks[0], sample=4)
    assert found.accuracy is not None
    assert found.accuracy > 0.8  # the sentence is known by heart; the commonest letter alone is 0.11
