"""The module that is trained is the module that was given: a table of modules, through every runner that trains here.

What a bare loop of torch makes of a module is the expected value: one client with all examples, a step a round. Then a
run is that loop, and every parameter and buffer has to be the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import thinwire as tw
from test_serve import Post, _task  # noqa: F401  _task: a fixture of every test
from thinwire.ddp import DEF, EF, Hook, PSync, compress
from thinwire.ddp.simulation import simulate as ddp_sim
from thinwire.deploy import flower
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.pipeline import BPK, simulate_pipeline, split
from thinwire.run.folder import Folder
from thinwire.train.given import copy_module
from tiers import tiers

STEPS = 4
LOCAL = tw.LocalSGD(0.1, batch=None, steps=1)
X = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 3

Run = Callable[[nn.Module, Path], nn.Module]


def bare(module: nn.Module) -> nn.Module:
    """A loop of torch, over the module itself."""
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(module(X), Y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module


def simulated(module: nn.Module, folder: Path) -> nn.Module:
    return tw.simulate(tw.FedAvg(LOCAL), module, [(X, Y)], STEPS, test=(X, Y)).module


def resumed(module: nn.Module, folder: Path) -> nn.Module:
    options: dict[str, Any] = {"out": folder / "run", "test": (X, Y)}
    tw.simulate(tw.FedAvg(LOCAL), module, [(X, Y)], STEPS // 2, **options)
    return tw.simulate(tw.FedAvg(LOCAL), module, [(X, Y)], STEPS, resume=True, **options).module


def by_hand(module: nn.Module, folder: Path) -> nn.Module:
    method, tasks = tw.FedAvg(LOCAL), [(X, Y)]
    server, client = tw.start(method, module, tasks)
    for _ in range(STEPS):
        reply, client = tw.client_round(method, server.view, client, tasks[0], 0)
        server = tw.server_round(method, server, [reply])
    server.view.setup.slot.load(method.model(server.state))
    server.view.setup.slot.load_buffers(server.buffers)
    return server.view.setup.slot.module


def deployed(module: nn.Module, folder: Path) -> nn.Module:
    server = Deployment(tw.FedAvg(LOCAL), module, 1, test=(X.flip(0), Y.flip(0)))  # in another order than the client
    server.open(Folder(folder / "server"), resume=True)
    for _ in range(STEPS):
        for call in server.begin([0]).values():
            assert server.accept(0, Node(tw.FedAvg(LOCAL), module, (X, Y), folder / "client").answer(call))
        server.end()
    return server.result().module


def data_parallel(module: nn.Module, folder: Path) -> nn.Module:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 0.1)

    task = tw.Supervised(X, Y)
    options: dict[str, Any] = {"workers": 1, "steps": STEPS, "batch": 12, "evaluate_every": 2, "test": task}
    return ddp_sim(Hook(tw.Dense()), module, task, optimizer=sgd, **options).module


def over_flower(module: nn.Module, folder: Path) -> nn.Module:
    def make(context: Any) -> Any:
        return Node(tw.FedAvg(LOCAL), module, (X, Y), flower.folder_of(context))

    return served(flower.client_app(make), module, folder)


def with_mod(module: nn.Module, folder: Path) -> nn.Module:
    """A train function of the user's own, which trains a module of its own for a step."""

    def theirs(message: Any, context: Any) -> Any:
        own = copy_module(module)
        own.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], 0.1)
        F.cross_entropy(own(X), Y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        metrics = MetricRecord({"num-examples": len(X)})
        return Message(RecordDict({"arrays": ArrayRecord(own.state_dict()), "metrics": metrics}), reply_to=message)

    app = ClientApp(mods=[flower.mod(tw.FedAvg(LOCAL), module)])
    app.train()(theirs)
    return served(app, module, folder)


def served(app: Any, module: nn.Module, folder: Path) -> nn.Module:
    """A federation of one client."""
    post = Post({11: app}, {11: {"partition-id": 0, "folder": str(folder / "client")}})
    return flower.serve(post, tw.FedAvg(LOCAL), module, 1, STEPS, poll=0.0, test=(X, Y)).module


def pipelined(module: nn.Module, folder: Path) -> nn.Module:
    if not isinstance(module, nn.Sequential):
        pytest.skip("a pipeline takes chains")
    own = copy_module(module)
    assert isinstance(own, nn.Sequential)
    parts = 1 if sum(any(p.requires_grad for p in m.parameters()) for m in own) < 2 else 2
    stages = split(own, parts, costs=[1.0] * len(own))
    simulate_pipeline(stages, lambda p: torch.optim.SGD(p, 0.1), BPK(), [(X, Y)] * STEPS)
    return own


RUNNERS: dict[str, Run] = {
    "simulate": simulated,
    "resumed": resumed,
    "by hand": by_hand,
    "deployment": deployed,
    "flower": over_flower,
    "mod": with_mod,
    "ddp-sim": data_parallel,
    "pipeline": pipelined,
}


def net(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def frozen_norm() -> nn.Module:
    norm = nn.BatchNorm2d(4).eval()
    norm.running_mean.fill_(3.0)  # type: ignore[union-attr]
    return net(norm)


def frozen_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.9).eval(), nn.Linear(192, 3))


class FreezesItself(nn.BatchNorm2d):
    """A norm layer whose class keeps it frozen, whatever ``train()`` says."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


class Counter(nn.Module):
    """Scales by how often it was called in training, and knows whether it was."""

    calls: Tensor
    begun: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(192, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("begun", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.begun.fill_(True)
        return self.line(x.flatten(1)) / (1 + self.calls.float())


class WholeFirst(nn.Module):
    """Its first parameter is of whole numbers, and frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.arange(192).flip(0), requires_grad=False)
        self.line = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x.flatten(1)[:, self.places])


class LastOutput(nn.Module):
    """Keeps what it gave last, graph and all."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.last = nn.Linear(192, 3), [torch.zeros(0)]
        self(X)

    def forward(self, x: Tensor) -> Tensor:
        self.last = [self.line(x.flatten(1))]
        return self.last[0]


def weight_normed() -> nn.Module:
    module = net(nn.Identity())
    module[0] = nn.utils.weight_norm(module[0])  # type: ignore[index,operator]
    return module


def spectral_normed() -> nn.Module:
    module = net(nn.Identity())
    module[5] = nn.utils.spectral_norm(module[5])  # type: ignore[index,operator]
    return module


def pruned() -> nn.Module:
    module = net(nn.Identity())
    prune.l1_unstructured(module[5], "weight", 0.5)  # type: ignore[index,operator]
    return module


AS_TORCH: dict[str, Callable[[], nn.Module]] = {
    "a norm layer": lambda: net(nn.BatchNorm2d(4)),
    "a norm layer in eval mode": frozen_norm,
    "a norm layer that freezes itself": lambda: net(FreezesItself(4)).train(),
    "dropout in eval mode": frozen_dropout,
    "a norm layer whose mean is over all batches": lambda: net(nn.BatchNorm2d(4, momentum=None)),
    "a norm layer without running statistics": lambda: net(nn.BatchNorm2d(4, track_running_stats=False)),
    "counters": Counter,
    "whole numbers first": WholeFirst,
    "its last output": LastOutput,
    "the old weight_norm": weight_normed,
    "the old spectral_norm": spectral_normed,
    "spectral_norm": lambda: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(192, 3))),
    "pruned": pruned,
    "traced by torch.fx": lambda: torch.fx.symbolic_trace(net(nn.BatchNorm2d(4))),
}


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", tiers(AS_TORCH, fast=7))
def test_a_module_is_trained_as_a_bare_loop_trains_it(name: str, runner: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    module = AS_TORCH[name]()
    given = {n: t.clone() for n, t in module.state_dict().items()}
    made = RUNNERS[runner](module, tmp_path).state_dict()
    torch.testing.assert_close(module.state_dict(), given, rtol=0, atol=0)  # the caller's own stays as it was
    expected = bare(module).state_dict()
    assert made.keys() == expected.keys()
    for key, value in expected.items():
        if key.endswith("num_batches_tracked") and "all batches" not in name:
            continue  # with a momentum it decides nothing, and is not sent
        torch.testing.assert_close(made[key], value, rtol=1e-5, atol=1e-6)


def tied_through_data() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192))
    module[3].weight.data = module[1].weight.data  # type: ignore[union-attr]
    return module


def buffer_of_a_weight() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    module.register_buffer("copy", module[1].weight.data)  # type: ignore[arg-type]
    return module


class View(nn.Module):
    """Computes with a view of its weight that no gradient passes."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(192, 3)
        self.view = self.line.weight.data

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.view, self.line.bias)


class NoGradient(nn.Module):
    """Computes with what no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.line(x.flatten(1))


class Elsewhere(NoGradient):
    """Gives its weight other memory as it computes."""

    def forward(self, x: Tensor) -> Tensor:
        self.line.weight.data = self.line.weight.data.clamp(-0.05, 0.05)
        return self.line(x.flatten(1))


class Grows(NoGradient):
    """Remembers every batch in a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, x.mean().detach().view(1)])
        return self.line(x.flatten(1))


class Observer(NoGradient):
    """The range of what it was given, as quantisation-aware training observes it."""

    low: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        self.low.copy_(torch.minimum(self.low, x.detach().min()))
        return self.line(x.flatten(1))


class ExtraState(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"scale": 1.0}


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "scripted": (lambda: torch.jit.script(net(nn.BatchNorm2d(4))), "was compiled by torch.jit"),
    "traced": (lambda: torch.jit.trace(net(nn.Identity()), X), "was compiled by torch.jit"),  # type: ignore[no-untyped-call]
    "a scripted layer": (lambda: net(torch.jit.script(nn.BatchNorm2d(4))), "layer '1' was compiled by torch.jit"),
    "lazy": (lambda: net(nn.LazyBatchNorm2d()), "layer '1' has no shape yet"),
    "without numbers": (lambda: nn.Linear(64, 10, device="meta"), "a Linear, has no numbers yet"),
    "tied through .data": (tied_through_data, "'3.weight' lies in the memory of '1.weight'"),
    "a buffer in a weight's memory": (buffer_of_a_weight, "'copy' lies in the memory of '1.weight'"),
    "a view of a weight": (View, "attribute 'view' of layer '' is a tensor in the memory of a trained parameter"),
    "no gradient": (NoGradient, "no gradient of the loss reaches a parameter"),
    "a weight given other memory": (Elsewhere, "parameter 'line.weight' was given other memory in training"),
    "a buffer that grows": (Grows, r"buffer 'seen' grew from \[0\] to \[1\]"),
    "a buffer that begins at infinity": (Observer, "buffer 'low' moves in training and begins at NaN or infinity"),
    "extra state": (
        lambda: nn.Sequential(nn.Flatten(), ExtraState(192, 3)),
        r"layer '1' has a state of its own kind \(get_extra_state\)",
    ),
}


KEPT_BY_RANKS = (
    "a view of a weight",
    "no gradient",
    "a weight given other memory",
    "a buffer that grows",
    "a buffer that begins at infinity",
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("runner", ["simulate", "by hand", "deployment", "flower", "ddp-sim"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_by_name(name: str, runner: str, tmp_path: Path, caplog: Any) -> None:
    torch.manual_seed(3)
    make, message = REFUSED[name]
    if runner == "ddp-sim" and name in KEPT_BY_RANKS:
        pytest.skip("ranks keep it, as they keep their module")
    if runner == "flower" and name == "no gradient":  # which the server cannot know, and clients tell it
        RUNNERS[runner](make(), tmp_path)
        assert message in caplog.text
        return
    with pytest.raises(ValueError, match=message):
        RUNNERS[runner](make(), tmp_path)


@pytest.mark.parametrize("method", [EF(4), DEF(4), PSync(4)], ids=repr)
def test_parameters_tied_through_data_are_refused_where_they_would_be_moved(method: Any) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(tied_through_data())
        with pytest.raises(ValueError, match=r"'3.weight' lies in the memory of '1.weight'"):
            compress(model, torch.optim.SGD(model.parameters(), 0.1), method)
        with pytest.raises(ValueError, match=r"lies in the memory of .*weight"):
            split(model.module, 2, costs=[1.0] * 4)
    finally:
        dist.destroy_process_group()


# -- one client does not see another --------------------------------------------------------------


class Recurrent(nn.Module):
    """What it computes depends on what it computed before, in attributes of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.state, self.calls = nn.Linear(6, 3), None, 0
        self.log: list[Tensor] = []
        self.drift = torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.line(x + self.drift + (0.0 if self.state is None else self.state))
        self.state = x.mean(0).detach()  # type: ignore[assignment]
        self.log.append(x.mean().detach())
        self.calls += 1
        self.drift.add_(0.1)
        self.late = len(self.log)
        return out * (1 + self.calls + self.late + float(torch.stack(self.log).sum()))


def rows(num: int = 40) -> tuple[Tensor, Tensor]:
    return torch.randn(num, 6, generator=torch.Generator().manual_seed(0)), torch.arange(num) % 3


def test_a_clients_training_begins_with_the_module_as_it_was_given() -> None:
    x, y = rows()
    tasks = [(x[part], y[part]) for part in torch.arange(40).split(10)]
    local = tw.LocalSGD(0.01, batch=5)
    together = [tw.simulate(tw.FedAvg(local), Recurrent, tasks, 2, workers=w, test=(x, y)) for w in (1, 2, 4)]
    assert len({tuple(r.params.flat.tolist()) for r in together}) == 1
    assert len({r.rounds[-1]["test_loss"] for r in together}) == 1
    # The mean of what each of them comes to alone, from the same model.
    alone = [tw.simulate(tw.FedAvg(local), Recurrent, tasks, 1, cohort=[[c]]).params.flat for c in range(4)]
    first = tw.simulate(tw.FedAvg(local), Recurrent, tasks, 1).params.flat
    torch.testing.assert_close(first, torch.stack(alone).mean(0))


class Hooked(nn.Module):
    """It holds the handles of its hooks, as transformers' models do when they recompute activations."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.handles = [self.line.register_forward_hook(lambda _, inputs, out: 2 * out)]
        self.handle = self.line.register_forward_hook(lambda _, inputs, options, out: out + 1, with_kwargs=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.line(x)
        return out


def test_handles_of_hooks_stay_those_of_the_module() -> None:
    x, y = rows()
    trained = tw.simulate(tw.FedAvg(tw.LocalSGD(0.1, batch=5)), Hooked, [(x, y)], 2).module
    plain = x @ trained.line.weight.T + trained.line.bias
    torch.testing.assert_close(trained(x), 2 * plain + 1)
    trained.handle.remove()
    torch.testing.assert_close(trained(x), 2 * plain)
    trained.handles[0].remove()
    torch.testing.assert_close(trained(x), plain)


# -- which buffers move is a matter of the module -------------------------------------------------


class Peak(nn.Module):
    """The largest number it was given in training, of those above 2."""

    peak: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.register_buffer("peak", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.max() > 2:
            self._raise_to(x.max().detach())
        return self.line(x) / (1 + self.peak)

    def _raise_to(self, value: Tensor) -> None:
        self.peak = torch.maximum(self.peak, value)


def centred() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3))


@pytest.mark.parametrize("model", [Peak, centred])
def test_a_run_does_not_depend_on_the_order_of_a_clients_examples(model: Any) -> None:
    x, y = rows()
    # Of the first order the first two examples are small, and their mean is zero: they move no statistics.
    x = torch.cat([torch.zeros(2, 6), x[x.abs().amax(1).argsort()][:-2]])
    results = []
    for order in (torch.arange(40), torch.arange(40).flip(0)):
        run = tw.simulate(tw.FedAvg(tw.LocalSGD(0.1, batch=None)), model, [(x[order], y[order])], 3)
        results.append((run.ledger.bytes(), run.module.state_dict()))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)
    moved = [t for n, t in results[0][1].items() if n in ("peak", "0.running_mean")]
    assert all(t.abs().max() > 0 for t in moved)


def test_a_deployment_does_not_depend_on_the_order_of_its_test_set(tmp_path: Path) -> None:
    x, y = rows()
    held = []
    for name, test in (("small first", torch.zeros(4, 6)), ("large first", x[:4]), ("none", None)):
        folder = tmp_path / name
        server = Deployment(tw.FedAvg(LOCAL), Peak, 1, test=None if test is None else (test, y[:4]))
        server.open(Folder(folder / "server"), resume=True)
        for call in server.begin([0]).values():
            assert server.accept(0, Node(tw.FedAvg(LOCAL), Peak, (x, y), folder / "client").answer(call))
        server.end()
        held.append(server.result().module.state_dict())
    torch.testing.assert_close(held[0], held[1], rtol=0, atol=0)
    torch.testing.assert_close(held[0], held[2], rtol=0, atol=0)
    assert held[0]["peak"] == x.max()


def secretly() -> type[nn.Module]:
    """A module whose source cannot be read, which writes to a buffer for some examples alone."""
    space: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(
        "class Secret(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.line = nn.Linear(6, 3)\n"
        "        self.register_buffer('peak', torch.zeros(()))\n"
        "    def forward(self, x):\n"
        "        if x.max() > 2:\n"
        "            self.peak.fill_(1.0)\n"
        "        return self.line(x)\n",
        space,
    )
    return space["Secret"]  # type: ignore[no-any-return]


def test_a_buffer_that_moves_where_nothing_said_so_is_refused_by_name() -> None:
    x, y = torch.zeros(4, 6), torch.arange(4) % 3
    x[3] = 3.0
    with pytest.raises(ValueError, match="buffer 'peak' moved in training, which nothing said before"):
        tw.simulate(tw.FedAvg(LOCAL), secretly(), [(x, y)], 1)


# -- batch norm needs more than one value a channel -----------------------------------------------


def test_batch_norm_trains_on_one_picture_as_torch_does() -> None:
    torch.manual_seed(0)
    module = net(nn.BatchNorm2d(4))
    run = tw.simulate(tw.FedAvg(LOCAL), module, [(X[:1], Y[:1])], 1)
    F.cross_entropy(module(X[:1]), Y[:1]).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(run.module[5].weight, module[5].weight - 0.1 * module[5].weight.grad)  # type: ignore[index,operator]


def test_of_pictures_the_last_batch_of_one_is_trained_on_and_of_rows_it_is_left_out() -> None:
    # Of nine examples in fours: three steps with pictures of many values a channel, two with rows of one.
    pictures, vectors = (X[:9], Y[:9]), rows(9)
    method = tw.FedAvg(tw.LocalSGD(0.1, batch=4))
    steps = [
        tw.start(method, model, [task])[0].view.setup.slot.fewest
        for model, task in ((lambda: net(nn.BatchNorm2d(4)), pictures), (centred, vectors))
    ]
    assert steps == [1, 2]
    assert [method.local.num_steps(9, fewest) for fewest in steps] == [3, 2]


@pytest.mark.parametrize("size", [2, 101, 201, 1001])
def test_a_test_set_of_any_size_is_evaluated_with_batch_norm_that_keeps_no_statistics(size: int) -> None:
    x, y = rows(size)
    module = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3))
    run = tw.simulate(tw.FedAvg(LOCAL), module, [(x, y)], 1, test=(x, y))
    assert 0 <= run.rounds[-1]["accuracy"] <= 1


# -- one seed, one run ----------------------------------------------------------------------------


class Drawing:
    """A task whose batches are drawn from a generator that all share."""

    def __init__(self, where: Tensor, draw: Callable[[], float], when: str = "always") -> None:
        self.where, self.draw, self.when = where, draw, when

    def __len__(self) -> int:
        return len(self.where)

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = rows()
        at = self.where[indices]
        if self.when == "always" or (self.when == "training" and generator is not None):
            return x[at] * (1 + self.draw()), y[at]
        return x[at] * (1 + (self.draw() if self.when == "many" and len(indices) > 2 else 0.0)), y[at]

    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(module(batch[0]), batch[1], reduction="none")

    def metrics(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"loss": self.loss(module, batch)}


DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002
    "python": random.random,
}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["always", "training"])
@pytest.mark.parametrize("draw", DRAWS)
def test_what_a_task_draws_from_shared_generators_is_a_function_of_the_seed(
    draw: str, when: str, tmp_path: Path
) -> None:
    parts = torch.arange(40).split(10)
    tasks: list[Any] = [Drawing(part, DRAWS[draw], when) for part in parts]
    options: dict[str, Any] = {"test": Drawing(torch.arange(40), DRAWS[draw], when)}

    def outcome(rounds: int = 3, **more: Any) -> tuple[Any, ...]:
        run = tw.simulate(
            tw.FedAvg(tw.LocalSGD(0.1, batch=4)), lambda: nn.Linear(6, 3), tasks, rounds, **options, **more
        )
        return tuple(run.params.flat.tolist()), run.rounds[-1]["test_loss"]

    first = outcome(workers=1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert outcome(workers=1) == first
    assert outcome(workers=2) == first
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]  # a script's own draws go on as if nothing had been
    outcome(2, out=tmp_path / "run")
    DRAWS[draw]()
    assert outcome(out=tmp_path / "run", resume=True) == first
    assert outcome(seed=1) != first


@pytest.mark.parametrize("when", ["always", "training"])
@pytest.mark.parametrize("draw", DRAWS)
def test_what_ranks_of_one_process_draw_is_a_function_of_the_seed(draw: str, when: str) -> None:
    task: Any = Drawing(torch.arange(40), DRAWS[draw], when)

    def outcome() -> tuple[Any, ...]:
        options: dict[str, Any] = {"workers": 2, "steps": 6, "batch": 4, "evaluate_every": 2, "test": task}
        run = ddp_sim(DEF(2), lambda: nn.Linear(6, 3), task, optimizer=lambda p: torch.optim.SGD(p, 0.1), **options)
        return run.module.weight.tolist(), [r["test_loss"] for r in run.records]  # type: ignore[union-attr,operator]

    first = outcome()
    DRAWS[draw]()
    assert outcome() == first


def test_draws_that_the_first_examples_do_not_show_are_refused() -> None:
    task: Any = Drawing(torch.arange(40), random.random, "many")
    with pytest.raises(ValueError, match="its work drew from the generators of torch, numpy or Python"):
        tw.simulate(tw.FedAvg(tw.LocalSGD(0.1, batch=4)), lambda: nn.Linear(6, 3), [task], 1)


# -- autocast -------------------------------------------------------------------------------------


def test_workers_compute_under_the_autocast_of_the_script() -> None:
    x, y = rows()
    tasks = [(x[part], y[part]) for part in torch.arange(40).split(10)]

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def run(**more: Any) -> Tensor:
        return tw.simulate(tw.FedAvg(tw.LocalSGD(0.1, batch=5)), model, tasks, 2, **more).params.flat

    plain = run()
    with torch.autocast("cpu", torch.bfloat16):
        narrow = [run(workers=workers, plan=plan) for workers in (1, 2) for plan in (None, "each")]
    assert all(torch.equal(x, narrow[0]) for x in narrow)
    assert 0 < (narrow[0] - plain).norm() < 0.05 * plain.norm()
    # A step by hand, from the same model: what was narrowed once would stay at the first step's weights.
    module = model_of(tasks, model)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(module(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.autocast("cpu", torch.bfloat16):
        made = tw.simulate(tw.FedAvg(tw.LocalSGD(0.1, batch=None, steps=3)), model, [(x, y)], 1).module
    torch.testing.assert_close(made.state_dict(), module.state_dict(), rtol=2e-3, atol=2e-3)


def model_of(tasks: Any, model: Any) -> nn.Module:
    """The module before any round."""
    return tw.Simulation(tw.FedAvg(), model, tasks).result().module.train()
