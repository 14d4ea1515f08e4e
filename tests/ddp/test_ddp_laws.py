"""The law of what compress() owes: what was applied and what is owed is what plain DistributedDataParallel applies.

A table: everything that a script may do with gradients (``SEQUENCES``), by every method that remembers (``METHODS``).
Two processes do all of it, with the method and without, and a case is right, or is refused in one sentence.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from processes import Process
from thinwire.config import complete
from thinwire.ddp import DEF, DEFA, EF, EF21, SAEF, Hook, Method, PSync, compress, handle
from thinwire.errors import ThinwireError
from thinwire.version import code_version
from thinwire.wire import dumps
from tiers import selection, tiers

# Of links that keep an estimate or an old gradient nothing is owed; these settings lose nothing, in every sequence.
METHODS: dict[str, Method] = {
    "error feedback": Hook(tw.ErrorFeedback(tw.TopK(0.25))),
    "error feedback, flat": Hook(tw.ErrorFeedback(tw.Flat(tw.TopK(0.1)))),
    "error feedback, block": Hook(tw.ErrorFeedback(tw.RandomBlock(4))),
    "error feedback, signs": Hook(tw.ErrorFeedback(tw.ScaledSign())),
    "error feedback by layer": Hook(tw.Layerwise(tw.ErrorFeedback(tw.TopK(0.25)))),
    "error feedback by rule": Hook(tw.Partition({"a": tw.ErrorFeedback(tw.TopK(0.25)), "*": tw.PowerSGD(1)})),
    "powersgd": Hook(tw.PowerSGD(1)),
    "look back": Hook(tw.LBGM(tw.Dense(), threshold=0)),
    "look back, packets": Hook(tw.LBGM(tw.Dense(), threshold=0, store="packet")),
    "look back by layer": Hook(tw.Layerwise(tw.LBGM(tw.Dense(), threshold=0))),
    "estimates": Hook(tw.EF21(tw.TopK(1.0))),
    "dense": Hook(tw.Dense()),
    "EF": EF(4),
    "EF over top-k": EF(tw.TopK(0.25)),
    "DEF": DEF(4),
    "DEFA": DEFA(4),
    "SAEF": SAEF(4, average=3),
    "PSync": PSync(4),
    "EF21": EF21(tw.TopK(1.0)),
}
OFTEN = ["error feedback", "error feedback by rule", "look back", "estimates", "EF", "DEF"]  # the others in the soak
LINKS = [name for name, method in METHODS.items() if isinstance(method, Hook) and name != "dense"]
LOCAL = [name for name, method in METHODS.items() if not isinstance(method, Hook)]


class Model(nn.Module):
    """Of which every gradient is what the script says, wherever it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(4))
        self.b = nn.Parameter(torch.zeros(4, 3))
        self.c = nn.Parameter(torch.zeros(5))

    def forward(self, branches: str, size: float) -> Tensor:
        slope = {name: torch.arange(p.numel(), 0.0, -1).view(p.shape) for name, p in self.named_parameters()}
        return sum(size * (p * slope[name]).sum() for name, p in self.named_parameters() if name in branches)


class Script:
    """A training whose rank k has gradients of its own at each step."""

    def __init__(self, method: Method | None, optimizer: Any = None, parts: bool = False, **options: Any) -> None:
        self.model = DistributedDataParallel(Model(), **options)
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1.0))
        a, b, c = self.model.parameters()
        self.parts = [make([a]), make([b, c])] if parts else [make([a, b, c])]
        self.c = None if method is None else compress(self.model, self.parts, method)
        self.count = 0

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.parts[0]

    def loss(self, branches: str = "abc", size: float | None = None) -> Tensor:
        self.count += 1
        rank = dist.get_rank()
        return self.model(branches, (1 + rank) * (1 + 0.5 * math.sin(self.count + rank)) if size is None else size)

    def backward(self, branches: str = "abc", size: float | None = None) -> None:
        self.loss(branches, size).backward()

    def step(self, branches: str = "abc", size: float | None = None) -> None:
        self.backward(branches, size)
        for part in self.parts:
            part.step()
        self.model.zero_grad()

    def ends(self) -> dict[str, list[float]]:
        """Where the parameters are once all that is owed has been paid, by layer; of ranks that differ, the mean."""
        state = {name: p.detach().clone() for name, p in self.model.module.state_dict().items()}
        owed = {name: torch.zeros_like(p) for name, p in state.items()}
        if self.c is not None and isinstance(self.c.method, Hook):
            scale = self.c.first_scale
            residuals(self.c.ends.sender, owed)
            owed = {name: p / scale for name, p in owed.items()}
        elif self.c is not None and not self.c.method.estimate:
            owed = dict(zip(owed, self.c.vector.cut(self.c.rank.e.clone()), strict=True))
        for name, p in owed.items():
            state[name] -= p
            dist.all_reduce(state[name])
            state[name] /= 2
        return {name: p.reshape(-1).tolist() for name, p in state.items()}


def residuals(state: Any, owed: dict[str, Tensor]) -> None:
    """Add what error feedback has in a link's state."""
    for name, part in zip(getattr(state, "_fields", ()), state if isinstance(state, tuple) else (), strict=False):
        if name == "residual":
            for layer, e in part.items():
                owed[layer] += e
        elif name == "inner":
            residuals(part, owed)
    if isinstance(state, dict):
        for part in state.values():
            residuals(part, owed)


SEQUENCES: dict[str, Callable[[Method | None], Script]] = {}
Sequence = Callable[[Method | None], Script]


def sequence(function: Sequence) -> Sequence:
    SEQUENCES[function.__name__.replace("_", " ")] = function
    return function


@sequence
def steps(method: Method | None) -> Script:
    script = Script(method)
    for _ in range(5):
        script.step()
    return script


@sequence
def accumulation_without_messages(method: Method | None) -> Script:
    script = Script(method)
    for _ in range(3):
        with script.model.no_sync():
            script.backward()
            script.backward()
        script.step()
    return script


@sequence
def accumulation_with_messages(method: Method | None) -> Script:
    script = Script(method)
    for _ in range(3):
        script.backward()
        script.backward()
        script.step()
    return script


@sequence
def accumulation_in_views_of_buckets(method: Method | None) -> Script:
    script = Script(method, gradient_as_bucket_view=True)
    for _ in range(3):
        script.backward()
        with script.model.no_sync():
            script.backward()
        script.step()
    return script


@sequence
def branches_in_turn(method: Method | None) -> Script:
    script = Script(method, find_unused_parameters=True)
    for _ in range(4):
        script.step("ac")
        script.step("bc")
    return script


@sequence
def branches_in_turn_in_views_of_buckets(method: Method | None) -> Script:
    script = Script(method, find_unused_parameters=True, gradient_as_bucket_view=True)
    for _ in range(4):
        script.step("a")
        script.step("b")
    return script


@sequence
def branches_in_turn_with_gradients_of_zero(method: Method | None) -> Script:
    script = Script(method, find_unused_parameters=True)
    for number in range(8):
        script.backward("ab"[number % 2])
        script.optimizer.step()
        script.optimizer.zero_grad(set_to_none=False)
    return script


@sequence
def another_branch_on_each_rank(method: Method | None) -> Script:
    script = Script(method, find_unused_parameters=True)
    for number in range(6):
        script.step("ab"[(number + dist.get_rank()) % 2] if number % 3 else "c")
    return script


@sequence
def backward_passes_of_both_branches_before_a_step(method: Method | None) -> Script:
    script = Script(method, find_unused_parameters=True)
    for _ in range(3):
        script.backward("a")
        script.backward("bc")
        script.backward("a")
        for part in script.parts:
            part.step()
        script.model.zero_grad()
    return script


@sequence
def branches_accumulated_without_messages(method: Method | None) -> Script:
    script = Script(method, find_unused_parameters=True)
    for _ in range(3):
        with script.model.no_sync():
            script.backward("ac")
        script.step("abc")
        script.step("b")
    return script


@sequence
def a_static_graph(method: Method | None) -> Script:
    script = Script(method, static_graph=True)
    for _ in range(3):
        script.backward()
        script.step()
    return script


@sequence
def a_static_graph_that_leaves_a_branch_out(method: Method | None) -> Script:
    script = Script(method, static_graph=True)
    for _ in range(4):
        script.step("ac")
    return script


@sequence
def gradients_thrown_away(method: Method | None) -> Script:
    script = Script(method)
    for number in range(6):
        script.backward()
        if number % 2:
            script.optimizer.step()
        script.optimizer.zero_grad()
    return script


@sequence
def gradients_set_to_zero_before_a_step(method: Method | None) -> Script:
    script = Script(method)
    for number in range(6):
        script.backward()
        if number % 2:
            script.optimizer.zero_grad(set_to_none=False)
        script.optimizer.step()
        script.optimizer.zero_grad(set_to_none=False)
    return script


@sequence
def gradients_thrown_away_between_passes_that_are_added(method: Method | None) -> Script:
    script = Script(method)
    for _ in range(3):
        script.backward()
        with script.model.no_sync():
            script.backward()
        script.optimizer.zero_grad()
        script.backward()
        script.step()
    return script


@sequence
def the_gradient_of_one_layer_set_to_none(method: Method | None) -> Script:
    script = Script(method)
    for number in range(6):
        script.backward()
        if number % 2 == 0:
            script.model.module.a.grad = None
        script.optimizer.step()
        script.optimizer.zero_grad()
    return script


@sequence
def the_gradient_of_one_layer_set_to_zero(method: Method | None) -> Script:
    script = Script(method)
    for number in range(6):
        script.backward()
        if number % 2 == 0:
            script.model.module.a.grad.zero_()
        script.optimizer.step()
        script.optimizer.zero_grad()
    return script


@sequence
def the_gradient_of_one_layer_thrown_away_and_others_added_to(method: Method | None) -> Script:
    script = Script(method)
    for _ in range(3):
        script.backward()
        script.model.module.b.grad = None
        script.step()
    return script


@sequence
def steps_that_all_ranks_skip(method: Method | None) -> Script:
    script = Script(method)
    for number in range(8):
        script.backward()
        if number % 3 == 0:
            script.optimizer.step()
            script.optimizer.zero_grad()  # else they are added up
    return script


@sequence
def a_closure_of_one_gradient(method: Method | None) -> Script:
    script = Script(method)

    def closure() -> Tensor:
        script.optimizer.zero_grad()
        loss = script.loss()
        loss.backward()
        return loss

    for _ in range(4):
        script.optimizer.step(closure)
    return script


@sequence
def a_gradient_that_is_looked_at_before_each_step(method: Method | None) -> Script:
    """As SAM does it, without closures: the first of two backward passes says where the second is made."""
    script = Script(method)
    for _ in range(4):
        script.backward(size=3.0)
        script.model.zero_grad()
        script.step()
    return script


@sequence
def two_optimisers(method: Method | None) -> Script:
    script = Script(method, parts=True)
    for _ in range(4):
        script.step()
    return script


@sequence
def two_optimisers_in_turn(method: Method | None) -> Script:
    script = Script(method, parts=True)
    for number in range(6):
        script.backward()
        script.parts[number % 2].step()
        script.parts[number % 2].zero_grad()
    return script


@sequence
def two_optimisers_of_which_one_gradient_is_used(method: Method | None) -> Script:
    script = Script(method, parts=True)
    for number in range(6):
        script.backward()
        script.parts[number % 2].step()
        script.model.zero_grad()
    return script


def scaled(method: Method | None, use: Callable[[Script, Any], None] = lambda script, scaler: None) -> Script:
    script = Script(method)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    for number in range(9):
        scaler.scale(script.loss(size=math.inf if number == 5 and dist.get_rank() == 1 else None)).backward()
        use(script, scaler)
        scaler.step(script.optimizer)
        scaler.update()
        script.optimizer.zero_grad()
    return script


@sequence
def a_loss_whose_scale_changes(method: Method | None) -> Script:
    return scaled(method)


@sequence
def a_loss_whose_scale_changes_and_is_taken_away_by_the_script(method: Method | None) -> Script:
    return scaled(method, lambda script, scaler: scaler.unscale_(script.optimizer))


@sequence
def losses_of_another_size_each(method: Method | None) -> Script:
    script = Script(method)
    for number in range(4):
        with script.model.no_sync():
            (script.loss() / 2).backward()
        (script.loss() / 2 * 10.0**number).backward()
        script.optimizer.step()
        script.optimizer.zero_grad()
    return script


@sequence
def evaluation_and_autograd_between(method: Method | None) -> Script:
    script = Script(method)
    for _ in range(4):
        script.backward()
        with torch.no_grad():
            script.model("abc", 1.0)
        torch.autograd.grad(script.model.module("abc", 1.0), list(script.model.parameters()))
        script.optimizer.step()
        script.optimizer.zero_grad()
    return script


@sequence
def layers_frozen_and_thawed(method: Method | None) -> Script:
    script = Script(method, find_unused_parameters=True)
    for number in range(9):
        script.model.module.b.requires_grad_(not 3 <= number < 6)
        script.step()
    return script


# -- what is refused, and how ---------------------------------------------------


@sequence
def a_step_inside_no_sync(method: Method | None) -> Script:
    script = Script(method)
    script.step()
    with script.model.no_sync():
        script.step()
    return script


@sequence
def a_gradient_used_twice(method: Method | None) -> Script:
    script = Script(method)
    script.backward()
    script.optimizer.step()
    script.optimizer.step()
    return script


@sequence
def no_zero_grad(method: Method | None) -> Script:
    script = Script(method)
    for _ in range(2):
        script.backward()
        script.optimizer.step()
    return script


@sequence
def a_closure_of_several_gradients(method: Method | None) -> Script:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for _ in range(2):
                closure()
                super().step()

    script = Script(method, optimizer=lambda parameters: Twice(parameters, lr=1.0))

    def closure() -> Tensor:
        script.optimizer.zero_grad()
        loss = script.loss()
        loss.backward()
        return loss

    for _ in range(2):
        script.optimizer.step(closure)
    return script


@sequence
def an_optimiser_that_was_not_given(method: Method | None) -> Script:
    script = Script(method)
    script.step()
    script.backward()
    torch.optim.SGD(script.model.parameters(), lr=1.0).step()
    return script


HALF = "of several optimisers one has made its step, and another not yet"
REFUSED: dict[str, dict[str, str]] = {
    "a step inside no sync": dict.fromkeys([*LINKS, "dense"], "is this rank's own, in whole or in part"),
    "a gradient used twice": dict.fromkeys(LINKS, "was used by a step already")
    | dict.fromkeys(["DEF", "DEFA", "SAEF"], "no forward pass of the model has led there since the last step"),
    "no zero grad": dict.fromkeys(LINKS, "Call optimizer.zero_grad() between a step and the next backward pass"),
    "a closure of several gradients": dict.fromkeys(LINKS, "Twice takes several gradients in one step"),
    "an optimiser that was not given": dict.fromkeys([*LINKS, *LOCAL], "SGD is about to step parameters of the comp"),
    "two optimisers in turn": dict.fromkeys(LOCAL, HALF),
    "two optimisers of which one gradient is used": dict.fromkeys(LOCAL, HALF),
}


def table(folder: str, rank: int) -> None:
    """Everything, with and without the method, on one rank of two."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, play in SEQUENCES.items():
        found[f"{name}/plain"] = played(play, None)
        for kind in json.loads(os.environ["KINDS"]):
            found[f"{name}/{kind}"] = played(play, METHODS[kind])
    (Path(folder) / f"table-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def played(play: Sequence, method: Method | None) -> Any:
    try:
        return play(method).ends()
    except (ValueError, ThinwireError) as error:
        return str(error)


def launched(function: Callable[..., None], folder: Path, ranks: int = 2, **environment: str) -> None:
    processes = [Process(function, str(folder), rank, environment=environment) for rank in range(ranks)]
    try:
        codes = [process.wait() for process in processes]
        assert codes == [0] * ranks, "\n".join(process.stderr[-3000:] for process in processes)
    finally:
        for process in processes:
            process.__exit__()


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("table")
    launched(table, folder, KINDS=json.dumps(sorted(selection(request, "method") & METHODS.keys())))
    return [json.loads((folder / f"table-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("method", tiers([*OFTEN, *(name for name in METHODS if name not in OFTEN)], slow=len(OFTEN)))
@pytest.mark.parametrize("name", SEQUENCES)
def test_what_was_applied_and_what_is_owed_is_what_plain_training_applies(name, method, both):
    for found in both:
        plain, mine = found[f"{name}/plain"], found[f"{name}/{method}"]
        if (said := REFUSED.get(name, {}).get(method)) is not None:
            assert isinstance(mine, str), mine
            assert said in mine
            continue
        assert isinstance(mine, dict), mine
        assert mine.keys() == plain.keys() == {"a", "b", "c"}
        for layer, expected in plain.items():
            assert mine[layer] == pytest.approx(expected, rel=1e-4, abs=1e-4 * max(1, *map(abs, expected))), layer


# -- what two ranks share, and what they do not ----------------------------------


class Own(nn.Module):
    """Parameters of which DistributedDataParallel is told to leave one each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Parameter(torch.zeros(2))
        self.one, self.other = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.one.weight)
        nn.init.zeros_(self.other.weight)

    def forward(self, slope: Tensor) -> Tensor:
        return sum((p * slope).sum() for p in self.parameters())


def ignored(method: Method | None, name: str) -> list[list[float]]:
    """Two steps at rate 1, by (1, 0) on rank 0 and by (0, 10) on rank 1."""
    module = Own()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [name])
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if method is not None:
        compress(model, optimizer, method)
    for _ in range(2):
        model(torch.tensor([[1.0, 0.0], [0.0, 10.0]][dist.get_rank()])).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.reshape(-1).tolist() for p in module.parameters()]


def skipped(method: Method) -> None:
    """Rank 1 leaves out its second step."""
    script = Script(method)
    for number in range(4):
        script.backward()
        if number != 1 or dist.get_rank() == 0:
            script.optimizer.step()
        script.optimizer.zero_grad()


def thrown_away(method: Method) -> None:
    """Rank 1 leaves out a layer's gradient."""
    script = Script(method)
    for _ in range(2):
        script.backward()
        if dist.get_rank() == 1:
            script.model.module.b.grad = None
        script.optimizer.step()
        script.optimizer.zero_grad()


def with_another(attribute: str, value: Any) -> None:
    """Rank 1 has another library."""
    before = getattr(handle, attribute)
    if dist.get_rank() == 1:
        setattr(handle, attribute, value)
    try:
        Script(EF(4))
    finally:
        setattr(handle, attribute, before)


def uneven(method: Method) -> None:
    script = Script(method)
    with Join([script.model]):
        for _ in range(2 + dist.get_rank()):
            script.step()


def inside_join(method: Method) -> None:
    model = DistributedDataParallel(Model())
    with model.join():
        compress(model, torch.optim.SGD(model.parameters(), lr=1.0), method)


def sharded(method: Method | None) -> dict[str, list[float]]:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of torch's own ways

    script = Script(method, lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=1.0))
    for _ in range(3):
        script.step()
    return script.ends()


IGNORING = {
    "plain": None,
    "EF": EF(1),
    "DEF": DEF(1),
    "PSync": PSync(1),
    "dense": Hook(tw.Dense()),
    "error feedback": Hook(tw.ErrorFeedback(tw.TopK(1.0))),
}
SKIPPING = {
    "dense": Hook(tw.Dense()),
    "half": Hook(tw.Half()),
    "qsgd": Hook(tw.QSGD(16)),
    "powersgd": Hook(tw.PowerSGD(1)),
    "error feedback": Hook(tw.ErrorFeedback(tw.TopK(0.25))),
    "look back": Hook(tw.LBGM(tw.SignSGD())),
}


def among_ranks(folder: str, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found: dict[str, Any] = {}

    def say(name: str, play: Callable[..., Any], *arguments: Any) -> None:
        began = time.monotonic()
        try:
            found[name] = play(*arguments)
        except (ValueError, ThinwireError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        found[f"{name}, seconds"] = time.monotonic() - began
        dist.barrier()

    for kind, method in IGNORING.items():
        for name in ("outer", "one.weight", "other.weight"):
            say(f"ignored {name} {kind}", ignored, method, name)
    for kind, hook in SKIPPING.items():
        say(f"skipped {kind}", skipped, hook)
    say("thrown away", thrown_away, METHODS["error feedback"])
    old = dumps([complete(EF(4)), 0, False, []])
    say("version", with_another, "code_version", lambda: "0.0.9+g12345678")
    say("commit", with_another, "code_version", lambda: code_version().partition("+")[0] + "+g12345678-dirty")
    say("format", with_another, "VERSION", 9)
    say("no version", with_another, "dumps", lambda asked: old)
    say("unreadable", with_another, "dumps", lambda asked: bytes([9]) + old[1:])
    say("join EF", uneven, EF(4))
    say("join Hook", uneven, Hook(tw.Half()))
    say("compress in join", inside_join, EF(4))
    for kind in ("plain", "EF", "error feedback", "dense"):
        say(f"zero {kind}", sharded, METHODS.get(kind))
    (Path(folder) / f"among-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def among(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("among")
    launched(among_ranks, folder)
    return [json.loads((folder / f"among-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("method", IGNORING)
def test_parameters_that_ddp_was_told_to_ignore_stay_each_ranks_own(method, among):
    shared = [-1.0, -10.0]
    for found, own in zip(among, ([-2.0, 0.0], [0.0, -20.0]), strict=True):
        assert found[f"ignored one.weight {method}"] == [shared, own, shared]
        assert found[f"ignored other.weight {method}"] == [shared, shared, own]
        # By such a name torch does not find a parameter of the outermost module, and averages it.
        assert found[f"ignored outer {method}"] == [shared, shared, shared]


@pytest.mark.slow
@pytest.mark.parametrize("link", SKIPPING)
def test_a_rank_that_skips_its_step_is_named_by_all_at_the_next_message(link, among):
    for found in among:
        said = found[f"skipped {link}"]
        assert said == (
            "OutOfSync: message 2: since the one before rank 1 has made 0 optimiser step(s), and rank 0 1: their "
            "models are no longer the same. Let all ranks step, or skip a step, together"
        )


@pytest.mark.slow
def test_ranks_that_treat_a_gradient_otherwise_are_told_of_which_layer(among):
    for found in among:
        assert found["thrown away"].startswith(
            "OutOfSync: message 1: rank 1 did something else with the averaged gradient of 'b' than rank 0"
        )


@pytest.mark.slow
def test_ranks_with_other_versions_of_the_library_or_of_its_messages_are_refused(among):
    number = code_version().partition("+")[0]
    for found in among:
        assert found["version"] == (
            f"OutOfSync: rank 1 has thinwire 0.0.9, messages 1, and rank 0 has thinwire {number}, messages 1: install "
            "one version on all ranks"
        )
        assert found["format"].startswith(f"OutOfSync: rank 1 has thinwire {number}, messages 9, and rank 0 has")
        assert found["no version"].startswith("OutOfSync: rank 1 has a thinwire that does not say its version, and")
        assert found["unreadable"].startswith("OutOfSync: rank 1 has a thinwire of other messages, and rank 0 has")
        assert found["commit"] is None


@pytest.mark.slow
@pytest.mark.parametrize("where", ["join EF", "join Hook", "compress in join"])
def test_uneven_inputs_under_join_are_refused_at_once(where, among):
    for found in among:
        assert found[where].startswith("CombinationError: uneven inputs under Join (model.join()) are not for a comp")
        assert found[f"{where}, seconds"] < 30  # and not the process group's thirty minutes


@pytest.mark.slow
def test_a_sharded_optimiser_steps_averaged_gradients_and_no_local_ones(among):
    for found in among:
        assert found["zero EF"].startswith("CombinationError: EF sends each rank's step of all parameters, and ZeroRed")
        for kind in ("error feedback", "dense"):
            for layer, expected in found["zero plain"].items():
                assert found[f"zero {kind}"][layer] == pytest.approx(expected, rel=1e-5)
