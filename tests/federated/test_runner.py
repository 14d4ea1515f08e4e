"""The runner where things go wrong: tasks of one's own, hostile replies, what is written and what is kept."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from collections.abc import Generator
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from torch import Size, Tensor, nn

import thinwire as tw
from blobs import assert_same_run, blobs, chosen, mlp, normed, simulate
from test_distributed import two
from thinwire import FedAvg, Key, Layout, LocalSGD, Params, Simulation, Supervised
from thinwire.algorithms.fedavg import Reply
from thinwire.algorithms.flss import combine
from thinwire.algorithms.scaffold import Reply as Both
from thinwire.errors import RunError, WireError
from thinwire.federated import storage
from thinwire.federated.mean import Mean
from thinwire.federated.messages import Form
from thinwire.federated.stream import Parcel, catch_up
from thinwire.run.folder import Folder
from thinwire.run.identity import data_digest
from thinwire.run.ranks import join, rank
from thinwire.studies import Federated

# -- several ranks -------------------------------------------------------------------


def one_diverges() -> Any:
    tasks: list[Any] = blobs((5, 5, 5, 5))
    tasks[1] = (tasks[1].inputs * float("nan"), tasks[1].targets)  # the second process trains it
    return mlp, tasks


def compared(folder: Path) -> None:
    join()
    methods = ("FedAvg(LocalSGD(0.2))", "FedAvg(LocalSGD(0.3))")
    failures = Federated(methods, task="test_runner:one_diverges", rounds=2).run(folder)
    os.write(1, f"{rank()} {failures}\n".encode())  # at once, so that two lines stay two


@pytest.mark.slow
def test_where_one_of_two_processes_diverges_both_go_on_to_the_next_method(tmp_path: Path) -> None:
    lines = sorted(line for line in two(compared, tmp_path / "out").splitlines() if line[:1] in "01")
    said = "round 1, client 1: the inputs have NaN or infinity in them"
    assert [(line[0], line.count(said), line.count("seed 0")) for line in lines] == [("0", 2, 2), ("1", 2, 2)]


# -- tasks of one's own --------------------------------------------------------------


class Zeroing(Supervised):
    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        module.zero_grad()
        return super().loss(module, batch)


@pytest.mark.parametrize("method", ["FedAvg()", "FedAvg(LocalSGD(momentum=0.5, prox=0.1))"])
def test_a_loss_that_forgets_gradients_trains_like_one_that_does_not(method: str) -> None:
    own: list[Any] = [Zeroing(t.inputs, t.targets, t.indices) for t in blobs()]
    assert_same_run(simulate(method, tasks=own), simulate(method))
    assert_same_run(simulate(method, tasks=own[:1] + blobs()[1:], sample=6), simulate(method, sample=6))


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class Named(Supervised):
    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Any:
        return Pair(*super().batch(indices, generator))

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        return super().loss(module, (batch.x, batch.y))


def test_a_batch_may_be_a_named_tuple() -> None:
    own: list[Any] = [Named(t.inputs, t.targets, t.indices) for t in blobs()]
    assert_same_run(simulate("FedAvg()", tasks=own), simulate("FedAvg()"))


def test_a_batch_of_one_is_refused_for_batch_norm_with_the_client_named() -> None:
    with pytest.raises(ValueError, match=r"^client \d: batch norm needs 2 examples at a time, not 1$"):
        simulate("FedAvg(LocalSGD(batch=1))", normed, 1)


@dataclass(frozen=True)
class Quiet(FedAvg):
    """In the first ``silent`` rounds the client whose number is odd, or everyone, answers without training."""

    silent: int = 1
    odd: bool = False

    def client(self, view: Any, state: Any, task: Any, key: Key) -> Generator[Any, Any, Any]:
        if key.round <= self.silent and (not self.odd or (key.client or 0) % 2):
            return Reply(view.x.zeros()), state
        return (yield from super().client(view, state, task, key))


@pytest.mark.parametrize("plan", ["each", "together", None])
@pytest.mark.parametrize("odd", [False, True])
def test_a_client_may_answer_without_training(plan: Any, odd: bool) -> None:
    result = simulate(Quiet(LocalSGD(0.2), odd=odd), rounds=2, sample=6, plan=plan)
    first = result.rounds[0]
    assert first["clients"] == 6
    if odd:  # the loss is that of the clients that trained
        alone = simulate(FedAvg(LocalSGD(0.2)), rounds=1, sample=3, tasks=blobs()[::2])
        assert first["train_loss"] == pytest.approx(alone.rounds[0]["train_loss"], rel=0.2)
    else:
        assert first["train_loss"] is None
        assert result.rounds[1]["train_loss"] == pytest.approx(
            simulate(FedAvg(LocalSGD(0.2)), rounds=1, sample=6).rounds[0]["train_loss"], rel=0.2
        )


# -- hostile replies -----------------------------------------------------------------

W = Layout(("w",), (Size([4]),))
ONES = Params(W, torch.ones(4))
KEY = Key(0, 1, 0)


def test_a_reply_that_is_refused_at_its_second_field_has_moved_nothing() -> None:
    form = Form.of(Both(W.zeros(), W.zeros()), {"control": tw.TopK(0.5)}, "up")
    mean, (tx, rx) = Mean(form), form.open()
    body, _, _ = form.send([ONES, ONES], tx, KEY)
    mean.add(0, 1.0, tw.loads(tw.dumps(body)), rx, KEY)
    with pytest.raises(WireError):
        mean.add(1, 1.0, [[None, torch.full((4,), 1000.0)], [None, [[None, torch.zeros(3)]]]], rx, KEY)
    assert mean.whole == 1.0
    assert mean.result(KEY)[0].update.flat.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    "link",
    [tw.LBGM(threshold=0.5), tw.EF21(tw.TopK(1.0)), tw.RandK(0.25, unbiased=True), tw.Projection(2), tw.Dense()],
    ids=repr,
)
def test_finite_bytes_that_would_make_the_mean_infinite_are_refused(link: tw.Link) -> None:
    form = Form.of(Reply(W.zeros()), link, "up")
    mean, (tx, rx) = Mean(form), form.open()
    body, _, tx = form.send([ONES * 10.0], tx, KEY)
    rx = mean.add(0, 20.0, tw.loads(tw.dumps(body)), rx, KEY)

    def huge(packet: Any) -> Any:
        if isinstance(packet, list):
            return [huge(part) for part in packet]
        wide = isinstance(packet, Tensor) and packet.is_floating_point()
        return torch.full_like(packet, 3e38) if wide else packet

    bad = [[None, torch.tensor(3e38)]] if isinstance(link, tw.LBGM) else huge(body)
    with pytest.raises(WireError, match=r"update: numbers of at most 8e\+28 expected"):
        mean.add(0, 20.0, tw.loads(tw.dumps(bad)), rx, KEY)
    assert mean.result(KEY)[0].update.finite()


def test_the_client_whose_reply_is_refused_is_named_and_a_study_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Form.send

    def hostile(form: Form, values: Any, tx: Any, key: Key) -> Any:
        body, seen, ends = real(form, values, tx, key)
        if form.where == "up" and key.client == 3 and key.seed == 0:
            body = [[None, torch.zeros(1)]]
        return body, seen, ends

    monkeypatch.setattr(Form, "send", hostile)
    said = "round 1, client 3: "
    with pytest.raises(WireError, match=f"^{said}"):
        simulate("FedAvg()", seed=0, sample=6)
    from thinwire.studies import Federated

    both = Federated(("FedAvg(LocalSGD(0.2))",), clients=5, rounds=1, seeds=(0, 1))
    failures = both.run(tmp_path / "run")
    assert [path.parent.name for path in (tmp_path / "run").rglob("summary.json")] == ["seed-1"]
    assert [said in line for line in failures] == [True]


@pytest.mark.parametrize("which", [2, -1, 1 << 40, 0.0, True, torch.zeros(3, dtype=torch.bool)])
def test_a_layer_that_there_is_not_is_refused(which: Any) -> None:
    two = Params(Layout(("a", "b"), (Size([2]), Size([2]))), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    form = Form.of(Reply(two), tw.Dense(), "up")
    body, _, _ = form.send([two.only(["b"])], form.open()[0], KEY)
    assert body[0][0] == 1
    values, _ = form.recv(tw.loads(tw.dumps(body)), form.open()[1], KEY)
    assert (values[0].names, values[0].flat.tolist()) == (("b",), [3.0, 4.0])
    with pytest.raises(WireError, match=r"a layer expected|a bit a layer"):
        form.recv([[which, body[0][1]]], form.open()[1], KEY)


# -- the downlink ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("down", "size"),
    [
        # Version 1, lists 4, a number 2, tensors 3 and 3, no buffers 1, padding 2 and 332 for the 83 parameters.
        ("EF21(TopK(0.1))", 348),
        # A dict 2 of four names 36, three tensors 9 and three numbers 6 more, padding 5.
        ("Layerwise(EF21(TopK(0.1)))", 404),
    ],
)
def test_a_snapshot_holds_the_model_once(down: str, size: int) -> None:
    methods = [f"FedAvg(down={down})", f"LUAR(SCAFFOLD(down={{'x': {down}}}), recycle=1)"]
    for method, model in zip(methods, (mlp, normed), strict=True):
        run = Simulation(tw.parse(method, {"lr": 0.2}), model, blobs(), sample=2, workers=1, plan="each")
        with run.pool:
            run.step()
            held = run.stream.view
            run.step()
            run.step()
        parcel = Parcel(True, [run.stream.snapshot()])
        if model is mlp:
            assert parcel.size == size
        found = catch_up(run.algorithm, run.stream.form, held, parcel, Key(0))
        assert tw.dumps(found) == tw.dumps(run.stream.view)


def test_differences_cost_less_than_models_where_few_clients_take_part() -> None:
    wide = nn.Linear(60, 3)
    inputs = torch.randn(20, 4, 60, generator=torch.Generator().manual_seed(0))
    tasks = [(x, torch.zeros(4, dtype=torch.long)) for x in inputs]
    dense, thin = (simulate(m, wide, 10, tasks=tasks, test=None, sample=2) for m in ("FedAvg()", THIN))
    assert thin.bytes_down < 0.95 * dense.bytes_down  # 1.49 when a snapshot held the model twice


THIN = "FedAvg(down=EF21(TopK(0.1)))"


def test_a_client_that_comes_in_the_next_epoch_is_sent_the_newest_broadcast_alone() -> None:
    # Epochs of four rounds, 56 bytes a message. Client 0 hears rounds 1, 2 and 6, client 1 all; client 2 round 2 alone
    # and then 10: of the two epochs between only the final coefficients of the first are missing, which round 8 has.
    cohorts: list[Any] = [([1], set()) for _ in range(10)]
    for t, more in ((1, [0, 1]), (2, [0, 1, 2]), (6, [0, 1]), (10, [1, 2])):
        cohorts[t - 1] = (more, set())
    run = chosen("Intrinsic(4, varying=True, epoch=4, known=True)", cohorts)
    found = {c: [(e.round, e.payload) for e in run.ledger.of("down") if e.client == c] for c in (0, 2)}
    assert found == {0: [(1, 56), (2, 56), (6, 56)], 2: [(2, 56), (10, 112)]}


# -- what is written ---------------------------------------------------------------------


def test_a_checkpoint_is_written_without_a_copy_of_it(tmp_path: Path) -> None:
    state = {"a": torch.zeros(5_000_000), "b": [torch.ones(3, dtype=torch.bool), b"x" * 5_000_000]}
    tracemalloc.start()
    Folder(tmp_path).save(state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    found = Folder(tmp_path).load()
    assert tw.dumps(tw.restore(found, state)) == tw.dumps(state)


def test_what_a_checkpoint_refers_to_is_there_while_the_next_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"rounds": 6, "sample": 6, "checkpoint_every": 2, "states": "disk"}
    real, told = Folder.save, list[bool]()

    def fails(folder: Folder, state: Any) -> None:
        if state["round"] == 4:
            raise OSError("the disk is full")
        real(folder, state)

    def watched(path: Path) -> None:
        told.append(path.suffix == ".thinwire")

    monkeypatch.setattr(Folder, "save", fails)
    monkeypatch.setattr(storage, "to_disk", watched)
    with pytest.raises(OSError, match="full"):
        simulate("FedAvg(up=LBGM())", out=tmp_path / "run", **options)
    assert told.count(True) == 24  # every state was put on disk before a checkpoint that refers to it
    monkeypatch.setattr(Folder, "save", real)
    resumed = simulate("FedAvg(up=LBGM())", out=tmp_path / "run", resume=True, **options)
    assert_same_run(resumed, simulate("FedAvg(up=LBGM())", rounds=6, sample=6))


class Drawing(Supervised):
    """Augments with torch's own generator."""

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Any:
        x, y = super().batch(indices)
        return x + torch.rand(x.shape) * 1e-3, y


@pytest.mark.parametrize("change", ["labels", "test", "client tests", "loss", "plan"])
def test_a_run_of_other_labels_tests_or_loss_is_another_run(change: str, tmp_path: Path) -> None:
    tasks, test = blobs(), blobs((60,))[0]
    options: dict[str, Any] = {"tasks": tasks, "test": test, "client_tests": tasks, "out": tmp_path / "run"}
    simulate("FedAvg()", rounds=1, **options)
    others = tasks[0].targets.clone()
    others[10] = (others[10] + 1) % 3
    other = [replace(task, targets=others) for task in tasks]
    more: dict[str, Any] = {
        "labels": {"tasks": other},
        "test": {"test": replace(test, targets=(test.targets + 1) % 3)},
        "client tests": {"client_tests": other},
        "loss": {"tasks": [replace(task, loss_of=huber) for task in tasks]},
        "plan": {"plan": "together"},
    }[change]
    named = {"plan": "began with plan='each'", "labels": "its data is", "loss": "its data is"}
    with pytest.raises(RunError, match=named.get(change, "its test is")):
        simulate("FedAvg()", rounds=2, resume=True, **options | more)
    assert len(simulate("FedAvg()", rounds=2, resume=True, **options).rounds) == 2


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.huber_loss(outputs[:, 0], targets.float(), reduction="none")


def test_a_task_that_draws_from_torchs_generator_is_resumed_and_what_is_looked_at_moves_nothing(tmp_path: Path) -> None:
    own: list[Any] = [Drawing(t.inputs, t.targets, t.indices) for t in blobs()]
    assert data_digest(own) == data_digest(own)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    data_digest(own)
    assert torch.equal(before, torch.get_rng_state())
    simulate("FedAvg()", rounds=1, tasks=own, out=tmp_path / "run")
    assert len(simulate("FedAvg()", rounds=2, tasks=own, out=tmp_path / "run", resume=True).rounds) == 2


def test_what_a_result_holds_may_be_written_into() -> None:
    run = Simulation(tw.parse("Intrinsic(8)", {"lr": 0.2}), mlp, blobs(), workers=1, plan="each")
    with run.pool:
        run.step()
        before = run.algorithm.model(run.server).clone()
        run.result().params.flat.zero_()
        assert torch.equal(run.algorithm.model(run.server).flat, before.flat)


def test_a_view_is_written_once_a_round_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    submit = futures.ProcessPoolExecutor.submit

    def watched(pool: Any, function: Any, *arguments: Any) -> Any:
        sizes.append(len(pickle.dumps(arguments)))
        return submit(pool, function, *arguments)

    monkeypatch.setattr(futures.ProcessPoolExecutor, "submit", watched)
    wide = nn.Sequential(nn.Linear(1000, 3), nn.Dropout(0.1))
    tasks = [(torch.ones(4, 1000), torch.zeros(4, dtype=torch.long)) for _ in range(4)]
    simulate("FedAvg()", wide, 2, tasks=tasks, test=None, sample=4, workers=2)
    assert len(sizes) == 9  # one starts the processes
    assert max(sizes) < 1000  # the view has 12,012 bytes


# -- counts that are wholes ----------------------------------------------------------------


def test_a_basis_of_another_model_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match=r"^a basis for 7 parameters, and a model of 4: it has changed$"):
        combine([torch.ones(7)], torch.ones(1), W)


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 4), (0.9, 4), (0.6, 2), (1.4, 6), (0.01, 1)])
def test_a_fraction_of_an_epoch_is_the_nearest_number_of_batches(epochs: float, steps: int) -> None:
    assert LocalSGD(epochs=epochs, batch=8).num_steps(32) == steps


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    # The library draws the order of its metadata anew for every file.
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2, dtype=torch.float64)}
    about = {f"key {i}": f"value {i}" for i in range(8)}
    folder = Folder(tmp_path)
    files = []
    for turned in (False, True, False):
        order = slice(None, None, -1 if turned else 1)
        folder.model(dict(list(tensors.items())[order]), dict(list(about.items())[order]))
        files.append((tmp_path / "model.safetensors").read_bytes())
    assert files[0] == files[1] == files[2]
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == about
        assert all(file.get_tensor(name).equal(tensor) for name, tensor in tensors.items())


# -- methods of one's own that return something else -------------------------------------


@dataclass(frozen=True)
class Silent(FedAvg):
    def client(self, view: Any, state: Any, task: Any, key: Key) -> Any:
        return Reply(view.x), state


class Heavy(NamedTuple):
    update: tw.Params
    weight: float


@dataclass(frozen=True)
class Alone(FedAvg):
    """A reply of two fields is not taken for the pair that it is a half of."""

    def client(self, view: Any, state: Any, task: Any, key: Key) -> Any:
        trained = yield tw.Local(view.x, self.local)
        return Heavy(trained.x - view.x, 1.0)


@dataclass(frozen=True)
class Bare(FedAvg):
    def server(self, server: Any, view: Any, mean: Any, key: Key) -> Any:
        return server.x + mean.update


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Silent(), r"Silent\.client has no yield: it asks for training by `trained = yield Local"),
        (Alone(), r"Alone\.client returned Heavy: it returns \(reply, state\)$"),
        (Bare(), r"Bare\.server returned Params: it returns a state as `init` made it, Server"),
    ],
)
def test_what_a_method_of_ones_own_returns_has_to_be_what_it_says(method: FedAvg, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tw.simulate(method, mlp, blobs(), 1, workers=1)


@pytest.mark.parametrize("body", [5, None, {"x": torch.zeros(3)}, [], [None] * 4], ids=repr)
def test_what_is_no_message_is_refused_before_its_numbers_are_looked_at(body: Any) -> None:
    form = Form.of(Reply(W.zeros()), tw.Dense(), "up")
    with pytest.raises(WireError):
        Mean(form).add(0, 1.0, body, form.open()[1], KEY)
