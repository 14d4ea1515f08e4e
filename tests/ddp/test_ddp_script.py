"""What a script may do with a compressed model: write to it, look at it in the middle of a step, copy it, share it out.

One rank, in this process; its residual is not zero, so x and the point where the gradient is taken differ.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_model
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from thinwire.ddp import (
    DEF,
    DEFA,
    EF,
    EF21,
    SAEF,
    Compressed,
    DetachedLoCo,
    Hook,
    LocalSGD,
    Method,
    PSync,
    Seconds,
    StreamingDiLoCo,
    compress,
)
from thinwire.ddp.average import average, ends
from thinwire.ddp.collectives import Group, Traffic
from thinwire.ddp.simulation import simulate
from thinwire.errors import CombinationError, NonFinite, RankLost
from thinwire.key import Key
from thinwire.params import Params

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
SIZE = 6 * 16 + 16 + 16 * 3 + 3
# Of one rank the best lambda is 1, and any other is warned of; here it is what tells x from where gradients are taken.
pytestmark = pytest.mark.filterwarnings("ignore:.* of 1 ranks the best lam is at least")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


class Script:
    """Eight steps have been made."""

    def __init__(self, method: Method, steps: int = 8) -> None:
        self.model = DistributedDataParallel(net())
        self.optimizer = sgd(self.model.parameters())
        self.c: Compressed = compress(self.model, self.optimizer, method)
        for _ in range(steps):
            self.step()

    def loss(self) -> Tensor:
        self.optimizer.zero_grad()
        return nn.functional.cross_entropy(self.model(X), Y)

    def step(self) -> None:
        self.loss().backward()
        self.optimizer.step()

    @property
    def held(self) -> Tensor:
        """What the parameters hold."""
        return flat(self.model.parameters())

    @property
    def gradient(self) -> Tensor:
        return torch.cat([p.grad.reshape(-1) for p in self.model.parameters()])


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]).clone()


def fill(parameters: Any, values: Tensor, write: Callable[[nn.Parameter, Tensor], Any]) -> None:
    parameters = list(parameters)
    for p, part in zip(parameters, values.split([p.numel() for p in parameters]), strict=True):
        write(p, part.view(p.shape))


def assign(p: nn.Parameter, values: Tensor) -> None:
    p.data = values.clone()


def transposed(p: nn.Parameter, values: Tensor) -> None:
    p.data = values.t().contiguous().t()


def through_data(p: nn.Parameter, values: Tensor) -> None:
    p.data.copy_(values)


@torch.no_grad()
def in_place(p: nn.Parameter, values: Tensor) -> None:
    p.copy_(values)


# -- writing ------------------------------------------------------------------


@pytest.mark.parametrize("write", [assign, transposed, through_data, in_place])
@pytest.mark.parametrize(("method", "detach"), [(DEF(8), 1), (DEFA(8, lam=0.3), 0.3), (EF(8), 0), (SAEF(8), 1)])
def test_what_is_written_between_steps_is_x_however_it_is_written(method, detach, write):
    script = Script(method)
    e = script.c.state_dict()["residual"]
    values = torch.linspace(-1, 1, SIZE)
    fill(script.model.parameters(), values, write)
    assert torch.equal(script.held, values)
    loss = script.loss()
    assert torch.equal(flat(script.model.state_dict().values()), values)
    assert torch.allclose(script.held, values - detach * e)
    loss.backward()
    script.optimizer.step()
    moved = flat(script.model.state_dict().values()) != values
    assert int(moved.sum()) == SIZE // 8  # of what was written, the step changes the block that it sends
    script.c.remove()
    assert int((script.held != values).sum()) == SIZE // 8


@pytest.mark.parametrize("write", [assign, through_data, in_place])
def test_what_is_written_to_a_model_of_the_ranks_own_is_that_model(write):
    script = Script(PSync(8))
    x = flat(script.model.state_dict().values())
    values = torch.linspace(-1, 1, SIZE)
    fill(script.model.parameters(), values, write)
    assert torch.allclose(script.c.state_dict()["residual"], x - values, atol=1e-6)
    with script.c.averaged():
        assert torch.allclose(script.held, values, atol=1e-6)
    script.loss()
    assert torch.allclose(script.held, values, atol=1e-6)
    assert torch.equal(flat(script.model.state_dict().values()), x)


WITHIN = [DEFA(8, lam=0.3, steps=3), LocalSGD(3), DetachedLoCo(3), DEF(8, lam=0.3, delay=1), StreamingDiLoCo(4, 2, 1)]


@pytest.mark.parametrize("method", WITHIN, ids=repr)
def test_a_model_that_is_loaded_within_a_round_is_the_one_that_is_looked_at_and_trained(method):
    """Eight steps end no round of three, and with a delay every step is within one."""
    script, values = Script(method), torch.linspace(-1, 1, SIZE)
    e, lam = script.c.state_dict()["residual"], script.c.lam
    other = dict(zip(script.model.state_dict(), values.split([96, 16, 48, 3]), strict=True))
    shapes = {name: p.shape for name, p in script.model.named_parameters()}
    for times in (2.0, 1.0):  # the last one that is loaded counts
        script.model.load_state_dict({name: times * part.view(shapes[name]) for name, part in other.items()})
    saved = script.c.state_dict()
    with torch.no_grad():
        script.model(X)
        assert torch.equal(script.held, values)
    assert torch.equal(flat(script.model.state_dict().values()), values)
    script.loss().backward()
    begins = values if e is None else values - lam * e
    assert torch.allclose(script.held, begins, atol=1e-6)
    assert torch.allclose(saved["within"], begins, atol=1e-6)
    assert torch.equal(flat(script.model.state_dict().values()), values)


def test_what_is_written_just_before_a_step_is_a_part_of_it():
    """At ratio 1 all is sent: decaying by hand after the backward pass is decaying before the step of plain SGD."""
    script, plain = Script(DEF(1), 0), net()
    optimizer = sgd(plain.parameters())
    for _ in range(5):
        script.loss().backward()
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(X), Y).backward()
        for p in (*script.model.parameters(), *plain.parameters()):
            p.data.mul_(0.9)
        script.optimizer.step()
        optimizer.step()
    assert torch.allclose(script.held, flat(plain.parameters()), atol=1e-6)


def test_what_is_written_in_the_middle_of_a_step_is_not_lost_in_silence():
    script = Script(DEF(8))
    script.loss().backward()
    for p in script.model.parameters():
        p.data.mul_(0.9)
    script.model.eval()
    with pytest.raises(ValueError, match="parameters were written to after a forward pass in training"):
        script.model(X)


def test_an_optimiser_that_puts_parameters_elsewhere_still_makes_its_step():
    class Elsewhere(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            for group in self.param_groups:
                for p in group["params"]:
                    p.data = p.data * 0.5

    model = DistributedDataParallel(net())
    optimizer = Elsewhere(model.parameters(), lr=0.0)
    compress(model, optimizer, DEF(2))
    before = flat(model.parameters())
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()
    after = flat(model.parameters())
    sent = after != before
    assert int(sent.sum()) == SIZE // 2
    assert torch.allclose(after[sent], before[sent] / 2, atol=1e-7)


def test_a_model_that_is_converted_after_compress_is_an_error_that_names_the_parameter():
    model = DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2)))
    optimizer = sgd(model.parameters())
    compress(model, optimizer, DEF(8))
    model.to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match=r"^parameter '0.weight' was given another .* memory format after compress"):
        model(torch.ones(1, 3, 3, 3))
    script = Script(DEF(8))
    script.model.module[2].bias.data = torch.zeros(4)
    with pytest.raises(ValueError, match=r"^parameter '2.bias' was given another shape, .*: convert the model before"):
        script.loss()


# -- in the middle of a step -----------------------------------------------------


def look(model: nn.Module) -> None:
    with torch.no_grad():
        model(X + 1)  # as FixMatch labels its pictures
        model.eval()
        model(X - 1)
        model.train()
    model.state_dict()
    copy.deepcopy(model.module)


@pytest.mark.parametrize(
    ("method", "detach"), [(DEF(8, lam=0.9), 0.9), (DEFA(8), 1), (EF(8), 0), (SAEF(8), 1), (PSync(8), 1)]
)
def test_a_look_between_forward_and_backward_changes_no_gradient(method, detach):
    script = Script(method)
    x, e = flat(script.model.state_dict().values()), script.c.state_dict()["residual"]
    assert float(e.abs().max()) > 0.1
    by_hand = net()
    fill(by_hand.parameters(), x - detach * e, through_data)
    nn.functional.cross_entropy(by_hand(X), Y).backward()
    loss = script.loss()
    look(script.model)
    assert torch.equal(flat(script.model.state_dict().values()), x)
    loss.backward()
    assert torch.allclose(script.gradient, flat(p.grad for p in by_hand.parameters()), atol=1e-6)


def test_graphs_of_two_forward_passes_have_their_backward_passes_later():
    script = Script(DEF(8, lam=0.9))
    first = script.loss()
    look(script.model)
    second = nn.functional.cross_entropy(script.model(X), Y)
    look(script.model)
    first.backward()
    look(script.model)
    second.backward()
    once = Script(DEF(8, lam=0.9))
    once.loss().backward()
    assert torch.allclose(script.gradient, 2 * once.gradient, atol=1e-6)


@pytest.mark.parametrize("quietly", [torch.no_grad, torch.inference_mode])
def test_evaluation_is_at_x_once_no_backward_pass_is_to_come(quietly):
    script = Script(DEF(8))
    x = script.held

    def evaluated() -> Tensor:
        script.model.eval()
        with quietly():
            script.model(X)
        script.model.train()
        return script.held

    outputs = script.model(X)
    assert not torch.equal(evaluated(), x)
    outputs.sum().backward()
    assert torch.equal(evaluated(), x)
    outputs = {"all": [script.model(X)]}
    assert not torch.equal(evaluated(), x)
    del outputs
    assert torch.equal(evaluated(), x)


@pytest.mark.parametrize("how", ["load", "averaged"])
def test_where_parameters_must_move_autograd_refuses_the_backward_pass(how):
    script = Script(DEF(8))
    loss = script.loss()
    if how == "load":
        script.model.load_state_dict(script.model.state_dict())
    if how == "averaged":
        with script.c.averaged():
            pass
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# -- copies ---------------------------------------------------------------------


@pytest.mark.parametrize("when", ["at rest", "in the middle", "away"])
@pytest.mark.parametrize("method", [DEF(8), PSync(8), Hook(tw.ErrorFeedback(tw.TopK(0.1)))])
@pytest.mark.parametrize("what", ["module", "whole", "averaged"])
def test_a_copy_holds_x_and_goes_its_own_way(what, method, when):
    script, quiet = Script(method), Script(method)
    x = flat(script.model.state_dict().values())
    loss = None if when == "at rest" else script.loss()
    if when == "away":
        loss.backward()
    if what == "averaged":
        twin: nn.Module = AveragedModel(script.model.module).module
    else:
        twin = copy.deepcopy(script.model if what == "whole" else script.model.module)
    assert torch.equal(flat(twin.parameters()), x)
    optimizer = sgd(twin.parameters())
    nn.functional.cross_entropy(twin(X), Y).backward()
    optimizer.step()
    assert not torch.equal(flat(twin.parameters()), x)
    twin.load_state_dict(twin.state_dict())
    if when == "in the middle":
        loss.backward()
    if when == "at rest":
        script.step()
    else:
        script.optimizer.step()
    quiet.step()
    assert torch.equal(script.held, quiet.held)


def test_a_copy_of_a_compressed_model_can_be_compressed():
    script = Script(Hook(tw.TopK(0.1)))
    twin = copy.deepcopy(script.model)
    optimizer = sgd(twin.parameters())
    c = compress(twin, optimizer, Hook(tw.TopK(0.1)))
    nn.functional.cross_entropy(twin(X), Y).backward()
    assert c.step == 1
    assert script.c.step == 8


def test_a_model_is_pickled_between_steps_and_refused_in_the_middle():
    script = Script(DEF(8))
    file = io.BytesIO()
    torch.save(script.model.module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(flat(loaded.parameters()), script.held)
    assert torch.equal(loaded(X), script.model.module(X))
    script.loss()
    with pytest.raises(CombinationError, match="pickle it between a step and the next forward pass"):
        pickle.dumps(script.model.module)


# -- several optimisers -------------------------------------------------------------


def test_parameters_that_no_optimiser_has_are_refused():
    model = DistributedDataParallel(net())
    first = sgd(list(model.parameters())[:2])
    with pytest.raises(ValueError, match=r"^'2.weight' and 1 more would be trained, and by no optimiser given to") as e:
        compress(model, first, DEF(8))
    assert "compress(model, [first, second], ...)" in str(e.value)
    compress(model, first, Hook(tw.Dense()))  # which averages all gradients, whoever uses them


def test_two_optimisers_make_the_step_of_one():
    script = Script(DEF(8), 0)
    model = DistributedDataParallel(net())
    parts = [sgd(list(model.parameters())[:1]), sgd(list(model.parameters())[1:])]
    c = compress(model, parts, DEF(8))
    for _ in range(6):
        script.step()
        for part in parts:
            part.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        for part in parts:
            part.step()
            look(model)
    assert torch.equal(flat(model.parameters()), script.held)
    assert c.step == c.ledger.steps == 6
    assert torch.equal(c.state_dict()["residual"], script.c.state_dict()["residual"])


def test_an_optimiser_that_steps_alone_is_an_error():
    model = DistributedDataParallel(net())
    parts = [sgd(list(model.parameters())[:1]), torch.optim.AdamW(list(model.parameters())[1:])]
    c = compress(model, parts, EF(8))
    nn.functional.cross_entropy(model(X), Y).backward()
    parts[1].step()
    with pytest.raises(ValueError, match="one has made its step, and another not yet"), c.averaged():
        pass
    with pytest.raises(ValueError, match=r"^AdamW steps again before every optimiser that compress\(\) was given"):
        parts[1].step()


def test_after_a_step_that_was_refused_the_model_is_still_x():
    model = DistributedDataParallel(net())
    optimizer = sgd(model.parameters())
    c = compress(model, optimizer, DEF(8), debug=True)
    before = flat(model.parameters())
    (model(X).sum() * float("inf")).backward()
    with pytest.raises(NonFinite, match="rank 0 would send NaN or infinity"):
        optimizer.step()
    assert torch.equal(flat(model.parameters()), before)
    c.remove()
    assert torch.equal(flat(model.parameters()), before)


# -- checkpoints -----------------------------------------------------------------------


@pytest.mark.parametrize("method", [DEF(8), Hook(tw.ErrorFeedback(tw.TopK(0.1)))])
@pytest.mark.parametrize("first", ["compress", "load"])
def test_a_script_that_forgets_the_state_of_compress_is_told_the_line_to_add(first, method):
    script = Script(method)
    saved = copy.deepcopy([script.model.state_dict(), script.optimizer.state_dict(), script.c.state_dict()])
    model = DistributedDataParallel(net())
    optimizer = sgd(model.parameters())

    def load() -> None:
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))

    if first == "load":
        load()
    c = compress(model, optimizer, method)
    if first == "compress":
        load()
    line = (
        r"SGD's state was saved after step 8 .* is at step 0: .* add c.load_state_dict\(torch.load\(f\"thinwire-{rank}"
    )

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()

    with pytest.warns(UserWarning, match=line):
        step()
    # Said once; and with the line it goes on to the same bits, without a word.
    load()
    c.load_state_dict(saved[2])
    for _ in range(3):
        step()
        script.step()
    assert torch.equal(flat(model.parameters()), script.held)


def test_ranks_by_the_clock_go_on_with_the_optimiser_of_any_of_them_without_a_warning():
    """Rank 0 of two had made 8 steps and rank 1 5, in as many rounds; now there is one rank."""
    script = Script(LocalSGD(Seconds(30)), 0)
    one = script.c.state_dict()
    states = [{**one, "ranks": 2, "rank": k, "step": made} for k, made in enumerate((8, 5))]
    for made, told in ((8, False), (5, False), (6, True)):
        saved = script.optimizer.state_dict()
        saved["param_groups"][0]["thinwire"] = torch.tensor([made, 0, 2])
        script.optimizer.load_state_dict(saved)
        script.c.load_state_dict(states)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            script.step()
        assert bool(heard) == told
        script.c.load_state_dict(states)


def test_a_rank_that_goes_on_with_the_momentum_of_another_is_told():
    script = Script(DEF(8))
    state = script.optimizer.state_dict()
    assert state["param_groups"][0]["thinwire"].tolist() == [8, 0, 1]  # step, rank, ranks
    state["param_groups"][0]["thinwire"][1] = 1
    script.optimizer.load_state_dict(state)
    with pytest.warns(UserWarning, match="rank 0 goes on with the SGD of rank 1: .* momentum is each rank's own"):
        script.step()
    # Over a Hook all ranks' momentum is the same.
    script = Script(Hook(tw.Dense()))
    state = script.optimizer.state_dict()
    state["param_groups"][0]["thinwire"][1] = 1
    script.optimizer.load_state_dict(state)
    script.step()


def test_the_state_of_an_optimiser_can_be_loaded_without_compress():
    script = Script(DEF(8))
    other = sgd(net().parameters())
    other.load_state_dict(script.optimizer.state_dict())
    other.step()
    script.c.remove()
    assert "thinwire" not in script.optimizer.state_dict()["param_groups"][0]


# -- the rest ------------------------------------------------------------------------


def test_what_compress_returns_says_where_the_gradient_is_taken_and_what_would_be_best():
    c = Script(DEF(8, lam=0.4)).c
    assert (c.lam, c.lam_star) == (0.4, 1.0)
    c = Script(EF(8)).c
    assert (c.lam, c.lam_star) == (0.0, None)
    c = Script(Hook(tw.Dense())).c
    assert (c.lam, c.lam_star) == (None, None)
    with pytest.warns(UserWarning, match=r"^DEF\(8.0, lam=0.5\): of 1 ranks the best lam is at least 1/1 = 1"):
        Script(DEF(8, lam=0.5))


@pytest.mark.parametrize("method", [DEF(8), Hook(tw.TopK(0.1))])
def test_to_remove_twice_is_to_remove_once(method):
    script = Script(method)
    script.c.remove()
    script.step()
    before = script.held
    script.c.remove()
    assert torch.equal(script.held, before)
    for use in (script.c.averaged().__enter__, lambda: script.c.load_state_dict(script.c.state_dict())):
        with pytest.raises(ValueError, match="was removed from this model: compress it anew"):
            use()
    assert torch.equal(script.held, before)


def test_sparse_gradients_are_for_def_and_refused_by_a_hook():
    words = torch.arange(8).view(4, 2)

    def model() -> nn.Module:
        return DistributedDataParallel(nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2)))

    one = model()
    with pytest.raises(CombinationError, match=r"those of 'module.0' are sparse: make it with sparse=False"):
        compress(one, sgd(one.parameters()), Hook(tw.TopK(0.1)))
    other = model()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    c = compress(other, optimizer, DEF(1))
    before = flat(other.parameters())
    other(words).sum().backward()
    optimizer.step()
    assert not torch.equal(flat(other.parameters()), before)
    assert c.step == 1


def test_sparse_gradients_are_clipped_by_what_they_come_to():
    """Word 1 stands in three places, whose gradients are added: of weights 1 that is 3 * 2 numbers, by hand."""
    model = DistributedDataParallel(nn.Embedding(9, 2, sparse=True))
    c = compress(model, torch.optim.SGD(model.parameters(), lr=1.0), EF(1))
    model(torch.tensor([1, 1, 4, 1])).sum().backward()
    assert c.clip_grad_norm_(1.0) == pytest.approx(20**0.5)  # of rows (3, 3) and (1, 1)
    assert torch.allclose(model.module.weight.grad.to_dense()[[1, 4]], torch.tensor([[3.0], [1.0]]) / 20**0.5)


@pytest.mark.parametrize("most", [-1.0, float("nan")])
def test_a_norm_that_none_can_have_turns_no_gradient_round(most):
    script = Script(DEF(8))
    script.loss().backward()
    before = script.gradient
    with pytest.raises(ValueError, match="max_norm must be at least 0"):
        script.c.clip_grad_norm_(most)
    assert torch.equal(script.gradient, before)


@pytest.mark.parametrize("first", ["compress", "torch"])
@pytest.mark.parametrize(
    "method", [DEF(8), LocalSGD(3), DEF(8, delay=1), Hook(tw.ErrorFeedback(tw.TopK(0.1)))], ids=repr
)
def test_the_step_of_nothing_by_which_torch_makes_an_optimisers_state_is_no_step(method, first):
    """torch.distributed.checkpoint steps an optimiser without a state at a rate of 0, before it saves or loads."""
    whole = Script(method, 4)
    saved = copy.deepcopy([*get_state_dict(whole.model, whole.optimizer), whole.c.state_dict()])
    assert whole.c.step == 4
    again = Script(method, 0)
    assert get_optimizer_state_dict(again.model, again.optimizer)
    assert again.c.step == again.c.ledger.bytes == 0
    other = DistributedDataParallel(net())
    optimizer = sgd(other.parameters())
    c = compress(other, optimizer, method)
    calls = [
        lambda: c.load_state_dict(saved[2]),
        lambda: set_state_dict(other, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1]),
    ]
    for call in calls if first == "compress" else calls[::-1]:
        call()
    again.model, again.optimizer, again.c = other, optimizer, c
    for script in (whole, again):
        for _ in range(3):
            script.step()
    assert torch.equal(flat(again.model.state_dict().values()), flat(whole.model.state_dict().values()))
    assert again.c.ledger.summary() == whole.c.ledger.summary()


@pytest.mark.parametrize("method", [DEF(8, lam=0.3), LocalSGD(3)], ids=repr)
@pytest.mark.parametrize("away", [False, True])
def test_who_saves_a_model_finds_each_parameter_in_a_storage_of_its_own(method, away, tmp_path):
    """safetensors refuses parameters that share one, and accelerate's ``save_model`` keeps the first alone.

    Eight steps end no round of three.
    """
    script = Script(method)
    if away:
        script.loss()
    state = script.model.module.state_dict()
    assert len({part.untyped_storage().data_ptr() for part in state.values()}) == 4
    assert [part.untyped_storage().nbytes() for part in state.values()] == [4 * 96, 4 * 16, 4 * 48, 4 * 3]
    save_model(script.model.module, str(tmp_path / "model.safetensors"))
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == state.keys()
    assert all(torch.equal(saved[name], part) for name, part in state.items())


def test_tied_parameters_are_one_to_who_saves_the_model(tmp_path):
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    module[1].weight = module[0].weight
    model = DistributedDataParallel(module)
    compress(model, sgd(model.parameters()), DEF(8, lam=0.3))
    for look in (lambda: None, lambda: model(torch.arange(3))):
        look()
        save_model(module, str(tmp_path / "model.safetensors"))
        assert len(load_file(tmp_path / "model.safetensors")) == 1


def test_what_is_wrong_with_what_compress_is_given_is_said_in_one_line():
    model = DistributedDataParallel(net())
    optimizer = sgd(model.parameters())
    with pytest.raises(ValueError, match="an optimiser was given twice: give each once"):
        compress(model, [optimizer, optimizer], DEF(8))
    with pytest.raises(
        ValueError, match=r"^compress\(seed=1180591620717411303424\): a whole number of at most 64 bits"
    ):
        compress(model, optimizer, DEF(8), seed=2**70)
    c = compress(model, optimizer, DEF(8), seed=-3)
    for state in ({}, {"format": 2}, [{"format": 2}], {**c.state_dict(), "format": 1}):
        with pytest.raises(ValueError, match=r"^this is no state of thinwire\.ddp, or of another version"):
            c.load_state_dict(state)


@pytest.mark.parametrize("link", [tw.Dense(), tw.ErrorFeedback(tw.TopK(0.1)), tw.PowerSGD(1)], ids=repr)
def test_with_debug_a_hook_says_which_rank_has_a_gradient_that_is_not_finite(link):
    script = Script(Hook(link), 0)
    script.c.remove()
    script.c = compress(script.model, script.optimizer, Hook(link), debug=True)
    script.step()
    with pytest.warns(UserWarning, match="^step 1: rank 0 would send NaN or infinity; .* unless a GradScaler skips"):
        (script.loss() * float("inf")).backward()
    assert script.c.ledger.gathered >= 2 * 264  # a message of its own before each


def test_what_is_said_before_the_first_step_is_counted_apart():
    """Of 163 parameters a block of 20 and a float; the handshake is one gather of up to 256 bytes behind its length."""
    c = Script(DEF(8), 5).c
    assert SIZE == 163
    assert c.ledger.summary() == {"steps": 5, "reduced": 420, "gathered": 0, "calls": 5, "setup": 264, "bytes": 420}


LINKS = ["Dense()", "Half()", "PowerSGD(1)", "RandK(0.5)"]


@pytest.mark.parametrize("link", LINKS)
def test_links_that_are_averaged_reach_a_group_without_a_backend_for_a_cpu(link):
    """As NCCL's. Without CUDA it cannot be told that numbers arrive, but that they were to go to the device."""
    dist.destroy_process_group()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
    gradient, chosen = Params.of({"a": torch.randn(4, 4)}.items()), tw.parse(link)
    talk = average(chosen, ends(chosen, gradient.layout, 1), gradient, Key(0, 0, 0, "ddp"))
    group = Group(dist.group.WORLD, Traffic())
    if gpu:
        arrived = group.drive(talk, "sending")
        assert arrived.flat.device.type == "cpu"
        assert arrived.finite()
    else:
        with pytest.raises(AssertionError, match="CUDA"):
            group.drive(talk, "sending")


def test_an_error_that_is_no_other_ranks_fault_is_not_called_a_lost_rank():
    group = Group(dist.group.WORLD, Traffic())

    def talk() -> Any:
        from thinwire.ddp.collectives import AllReduce

        yield AllReduce(torch.ones(2).to_sparse())

    with pytest.raises(Exception) as error:  # noqa: PT011  torch's own, whatever it says
        group.drive(talk(), "sending")
    assert not isinstance(error.value, RankLost)


# -- what is trained, and where ---------------------------------------------------------


def normed() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def evaluating(model: nn.Module, layers: nn.Module) -> None:
    model.eval()


def frozen_norms(model: nn.Module, layers: nn.Module) -> None:
    model.train()
    layers[1].eval()


def last_layer_training(model: nn.Module, layers: nn.Module) -> None:
    model.eval()
    layers[3].train()


MODES = [evaluating, frozen_norms, last_layer_training]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("method", "detach"), [(DEF(8, lam=0.9), 0.9), (DEFA(8), 1), (EF(8), 0), (SAEF(8), 1)])
def test_the_gradient_is_taken_where_the_method_says_in_every_mode(method, detach, mode):
    module, by_hand = normed(), normed()
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    c = compress(model, optimizer, method)
    mode(model, module)
    mode(by_hand, by_hand)
    for _ in range(8):
        x, e = flat(p for n, p in module.named_parameters()), c.state_dict()["residual"]
        fill(by_hand.parameters(), x - detach * e, through_data)
        optimizer.zero_grad()
        by_hand.zero_grad()
        for half in (X[:6], X[6:]):  # added up
            model(half).sin().sum().backward()
            by_hand(half).sin().sum().backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        assert torch.allclose(gradient, flat(p.grad for p in by_hand.parameters()), rtol=1e-3, atol=1e-5)
        optimizer.step()
    assert float(e.abs().max()) > 0.01


def test_a_gradient_through_the_module_inside_is_refused_where_the_method_takes_it_elsewhere():
    for method, refused in ((DEF(8), True), (SAEF(8), True), (EF(8), False), (PSync(8), False)):
        script = Script(method)
        script.optimizer.zero_grad()
        nn.functional.cross_entropy(script.model.module(X), Y).backward()
        before = script.held
        if refused:
            with pytest.raises(ValueError, match="no forward pass of the model has led there since the last step"):
                script.optimizer.step()
            assert torch.equal(script.held, before)
        else:
            script.optimizer.step()
            assert script.c.step == 9
    script = Script(Hook(tw.Dense()))
    script.optimizer.zero_grad()
    nn.functional.cross_entropy(script.model.module(X), Y).backward()
    with pytest.raises(ValueError, match="the forward pass is of the DistributedDataParallel model, not of the module"):
        script.optimizer.step()


@pytest.mark.parametrize(
    "method", [EF(8), DEF(8), SAEF(8, average=2), PSync(8), DEF(tw.TopK(0.1)), EF(tw.ScaledSign())]
)
def test_a_frozen_layer_does_not_move_and_what_it_is_owed_stays_owed(method):
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    script = Script(method, 0)
    script.model, script.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.3)
    script.c = compress(model, script.optimizer, method)
    for _ in range(8):
        script.step()

    def frozen() -> tuple[Tensor, Tensor]:
        return script.held[:112], script.c.state_dict()["residual"][:112]

    model.module[0].requires_grad_(False)
    x, e = frozen()
    assert float(e.abs().max()) > 0.01
    rest = script.held[112:]
    for _ in range(4):
        script.step()
    assert torch.equal(frozen()[0], x)
    assert torch.equal(frozen()[1], e)
    assert not torch.equal(script.held[112:], rest)
    model.module[0].requires_grad_(True)
    for _ in range(16):
        script.step()
    assert not torch.equal(frozen()[0], x)


def test_a_frozen_layers_estimate_stays_too():
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    c = compress(model, optimizer, EF21(tw.TopK(0.5)))
    for number in range(8):
        if number == 4:
            model.module[0].requires_grad_(False)
            x, g = flat(model.parameters())[:112], c.state_dict()["residual"][:112]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    assert float(g.abs().max()) > 0.001
    assert torch.equal(flat(model.parameters())[:112], x)
    assert torch.equal(c.state_dict()["residual"][:112], g)


@pytest.mark.parametrize("method", [EF(8), Hook(tw.Dense()), Hook(tw.ErrorFeedback(tw.TopK(0.1)))])
def test_a_layer_that_is_trained_only_later_is_refused_by_name(method):
    module = net()
    module[0].requires_grad_(False)
    model = DistributedDataParallel(module)
    optimizer = sgd(model.parameters())
    compress(model, optimizer, method)
    module[0].requires_grad_(True)
    nn.functional.cross_entropy(model(X), Y).backward()
    with pytest.raises(ValueError, match=r"^'0.weight' was frozen, or not there, when the model was wrapped"):
        optimizer.step()


class Turning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x * self.turn).real)


@pytest.mark.parametrize("method", [EF(8), PSync(8), Hook(tw.Dense()), Hook(tw.PowerSGD(1))])
def test_complex_parameters_are_refused_with_what_to_write(method):
    model = DistributedDataParallel(Turning())
    with pytest.raises(CombinationError, match=r"'turn' is complex64, and what is sent is real: .*view_as_complex"):
        compress(model, sgd(model.parameters()), method)
    data = tw.Supervised(torch.ones(8, 3), torch.zeros(8, dtype=torch.long))
    with pytest.raises(ValueError, match=r"'turn' is complex64, and what is sent is real: .*view_as_complex"):
        simulate(method, Turning(), data, workers=2, steps=1, batch=4, optimizer=sgd)


class Accelerated(torch.optim.Optimizer):
    """As accelerate's AcceleratedOptimizer: an optimiser by its class, with none of its parts but those of another."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


ACCELERATED = [DEF(8), EF(8), Hook(tw.ErrorFeedback(tw.TopK(0.1))), DetachedLoCo(2)]


@pytest.mark.parametrize("method", ACCELERATED)
def test_an_optimiser_in_a_wrapper_without_hooks_is_the_one_that_is_watched(method):
    script, model = Script(method, 0), DistributedDataParallel(net())
    optimizer = Accelerated(Accelerated(sgd(model.parameters())))
    c = compress(model, optimizer, method)
    for _ in range(5):
        script.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    assert torch.equal(flat(model.parameters()), script.held)
    assert c.step == script.c.step == 5
    with pytest.raises(
        ValueError, match=r"compress takes an optimiser of torch's, whose step\(\) can be watched, not str"
    ):
        compress(DistributedDataParallel(net()), "sgd", method)


@pytest.mark.parametrize("method", ACCELERATED)
def test_the_optimiser_that_accelerate_hands_over_is_unwrapped(method):
    accelerate = pytest.importorskip("accelerate")
    script, model = Script(method, 0), DistributedDataParallel(net())
    optimizer = accelerate.Accelerator(cpu=True).prepare_optimizer(sgd(model.parameters()))
    compress(model, optimizer, method)
    for _ in range(5):
        script.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    assert torch.equal(flat(model.parameters()), script.held)


@pytest.mark.slow
@pytest.mark.parametrize("method", [DEF(8), Hook(tw.Dense())])
def test_a_model_that_was_compiled_as_a_whole_is_refused_and_one_with_a_compiled_module_trains(method):
    import torch._dynamo

    whole = torch.compile(DistributedDataParallel(net()), backend="eager")
    with pytest.raises(CombinationError, match=r"compile the module inside, DistributedDataParallel\(torch.compile"):
        compress(whole, sgd(whole.parameters()), method)
    script, model = Script(method, 0), DistributedDataParallel(torch.compile(net(), backend="eager"))
    optimizer = sgd(model.parameters())
    compress(model, optimizer, method)
    for _ in range(5):
        script.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    assert torch.allclose(flat(model.parameters()), script.held, atol=1e-6)
    assert torch.equal(flat(model.state_dict().values()), flat(model.parameters()))
    torch._dynamo.reset()


def lbfgs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=4)


@pytest.mark.parametrize("method", [DEF(1), EF(1), Hook(tw.Dense()), Hook(tw.ErrorFeedback(tw.TopK(0.1)))])
def test_a_step_of_many_gradients_is_made_or_refused_where_a_link_remembers(method):
    plain, model = net(), DistributedDataParallel(net())
    ours, theirs = lbfgs(model.parameters()), lbfgs(plain.parameters())
    c = compress(model, ours, method)

    def loss(optimizer: torch.optim.Optimizer, module: nn.Module) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            found = nn.functional.cross_entropy(module(X), Y)
            found.backward()
            return found

        return closure

    if method == Hook(tw.ErrorFeedback(tw.TopK(0.1))):
        with pytest.raises(CombinationError, match=r"^LBFGS takes several gradients in one step, and Hook"):
            ours.step(loss(ours, model))
        assert c.ends.sender.residual.norm() == 0
        return
    for _ in range(3):
        ours.step(loss(ours, model))
        theirs.step(loss(theirs, plain))
    assert torch.allclose(flat(model.parameters()), flat(plain.parameters()), atol=1e-5)


@pytest.mark.parametrize("method", [DEF(2), EF(2), SAEF(2), Hook(tw.ErrorFeedback(tw.TopK(0.1)))])
def test_a_step_that_calls_the_step_of_its_base_is_one_step(method):
    class Derived(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    script, model = Script(method, 0), DistributedDataParallel(net())
    optimizer = Derived(model.parameters(), lr=0.3, momentum=0.9)
    c = compress(model, optimizer, method)
    for _ in range(5):
        script.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    assert torch.equal(flat(model.parameters()), script.held)
    assert c.step == 5


def test_after_a_step_that_raised_the_next_is_a_step_again():
    class Failing(torch.optim.SGD):
        fail = True

        def step(self, closure: Any = None) -> Any:
            if Failing.fail:
                raise RuntimeError("no")
            return super().step(closure)

    for method in (EF(2), Hook(tw.ErrorFeedback(tw.TopK(0.1)))):
        Failing.fail = True
        model = DistributedDataParallel(net())
        optimizer = Failing(model.parameters(), lr=0.3)
        compress(model, optimizer, method)
        nn.functional.cross_entropy(model(X), Y).backward()
        with pytest.raises(RuntimeError, match="no"):
            optimizer.step()
        Failing.fail, before = False, flat(model.parameters())
        optimizer.step()
        assert not torch.equal(flat(model.parameters()), before)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()


def test_a_link_that_remembers_has_to_know_of_every_optimiser():
    model = DistributedDataParallel(net())
    first = sgd(list(model.parameters())[:2])
    with pytest.raises(ValueError, match=r"^'2.weight' would be trained, and by no optimiser given to compress\(\)"):
        compress(model, first, Hook(tw.ErrorFeedback(tw.TopK(0.1))))
    compress(model, first, Hook(tw.TopK(0.1)))


def test_what_is_owed_is_saved_without_gradients_that_no_step_has_used_yet():
    method = Hook(tw.ErrorFeedback(tw.TopK(0.1)))
    script = Script(method)
    states = copy.deepcopy([script.model.state_dict(), script.optimizer.state_dict(), script.c.state_dict()])
    script.loss().backward()
    assert torch.equal(script.c.state_dict()["link"], states[2]["link"])
    script.optimizer.step()
    assert not torch.equal(script.c.state_dict()["link"], states[2]["link"])


def test_a_scaled_training_goes_on_from_its_state_at_the_scale_it_had():
    method = Hook(tw.ErrorFeedback(tw.TopK(0.1)))

    class Scaled(Script):
        def __init__(self) -> None:
            super().__init__(method, 0)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)

        def step(self) -> None:
            self.scaler.scale(self.loss()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    whole, first = Scaled(), Scaled()
    for _ in range(12):
        whole.step()
    for _ in range(7):
        first.step()
    assert (first.c.first_scale, first.scaler.get_scale()) == (4.0, 16.0)
    parts = [copy.deepcopy(part.state_dict()) for part in (first.model, first.optimizer, first.scaler, first.c)]
    second = Scaled()
    for part, state in zip((second.model, second.optimizer, second.scaler, second.c), parts, strict=True):
        part.load_state_dict(state)
    for _ in range(5):
        second.step()
    assert torch.equal(second.held, whole.held)
    third = Scaled()
    for part, state in zip((third.model, third.optimizer, third.c), (parts[0], parts[1], parts[3]), strict=True):
        part.load_state_dict(state)
    with pytest.raises(
        ValueError, match=r"gradients come at a scale of 4, and .* is to be used at 16: load the GradScal"
    ):
        third.step()


# -- what is owed: more of it, over all methods, is in test_ddp_laws.py --------------------


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))

    def forward(self, first: bool) -> Tensor:
        return ((self.one if first else self.other) * torch.tensor([4.0, 3.0, 2.0, 1.0])).sum()


def test_of_two_branches_in_turn_nothing_is_lost():
    """Gradients (4, 3, 2, 1) in each branch, four times, at rate 1: in all (16, 12, 8, 4)."""
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    c = compress(model, optimizer, Hook(tw.ErrorFeedback(tw.TopK(0.25))))
    for number in range(8):
        model(number % 2 == 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, p in model.module.named_parameters():
        applied, owed = -p.detach(), c.ends.sender.residual[name]
        assert (applied + owed).tolist() == [16.0, 12.0, 8.0, 4.0]
        # The largest of four entries a step: 4, then 6 of (4, 6, 4, 2), 8 of (8, 3, 6, 3), 8 of (4, 6, 8, 4).
        assert applied.tolist() == [12.0, 6.0, 8.0, 0.0]


def test_gradients_that_are_applied_by_hand_are_asked_about():
    script = Script(Hook(tw.ErrorFeedback(tw.TopK(0.1))), 0)
    for _ in range(3):
        script.loss().backward()
    with pytest.warns(UserWarning, match=r"of 3 backward passes were thrown away, and no optimiser given to compress"):
        script.loss().backward()
    script.optimizer.zero_grad()
    script.loss().backward()  # once


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_activations_change_nothing(reentrant):
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[2](checkpoint(lambda h: self[1](h), self[0](x), use_reentrant=reentrant))

    script = Script(Hook(tw.ErrorFeedback(tw.TopK(0.1))), 0)
    model = DistributedDataParallel(Checkpointed(*net()))
    optimizer = sgd(model.parameters())
    compress(model, optimizer, script.c.method)
    for _ in range(4):
        script.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
    assert torch.allclose(flat(model.parameters()), script.held, atol=1e-6)


def test_an_optimiser_may_be_without_a_learning_rate():
    class Fixed(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p.sub_(0.5 * p.grad)

    script = Script(EF(1), 0)
    model = DistributedDataParallel(net())
    optimizer = Fixed(model.parameters(), {})
    c = compress(model, optimizer, EF(1))
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()
    script.loss().backward()
    expected = script.held - 0.5 * script.gradient
    assert torch.allclose(flat(model.parameters()), expected)
    assert c.step == 1
