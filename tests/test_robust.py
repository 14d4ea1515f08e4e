"""What was once wrong: a test for every mistake that was found by trying to break things."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Size, Tensor, nn

import thinwire as tw
from thinwire.algorithms.base import Algorithm
from thinwire.errors import ExpressionError, RunError, WireError
from thinwire.links import LBGM, Dense, Flat, Partition, RandK, ScaledSign, Sparse, TopK
from thinwire.links.sparse import pack_positions, unpack_positions
from thinwire.run.folder import Folder, locked
from thinwire.run.messages import Form
from thinwire.run.stream import Stream, catch_up
from thinwire.task import Supervised
from thinwire.version import code_version

KEY = tw.Key(0)


def tasks(sizes: tuple[int, ...] = (8, 12, 16, 20), seed: int = 0) -> list[Supervised]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 6, generator=g)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return [Supervised(x, y, part) for part in torch.arange(sum(sizes)).split(list(sizes))]


def linear() -> nn.Module:
    return nn.Linear(6, 3)


# -- bytes ------------------------------------------------------------------------


def test_a_rice_parameter_that_would_wrap_round_is_refused() -> None:
    k = 65_537
    ones = torch.full((k // 8 + 1,), 255, dtype=torch.uint8)
    ones[-1] = 1  # 65,537 quotients of zero
    rests = torch.full((-(-k * 47 // 8),), 255, dtype=torch.uint8)
    rests[-1] = 127
    packet = [47, ones, rests]
    with pytest.raises(WireError, match="a Rice parameter for gaps below 65537"):
        unpack_positions(tw.loads(tw.dumps(packet)), k)


def test_clustered_positions_take_a_bit_each() -> None:
    packet = pack_positions(torch.arange(10_000), 1_000_000)
    assert len(tw.dumps(packet)) == 1_262  # 10,000 bits and what surrounds them
    assert unpack_positions(tw.loads(tw.dumps(packet)), 1_000_000).tolist() == list(range(10_000))


def test_a_message_of_very_many_values_is_refused_before_they_are_made() -> None:
    n = 300_000
    head = bytes([1, 6, 0x80 | n & 127, 0x80 | (n >> 7) & 127, n >> 14])
    with pytest.raises(WireError, match="more values than are accepted"):
        tw.loads(head + b"\x48\x01\x00" * n)


def test_a_depth_that_the_caller_allows_never_overflows_the_stack() -> None:
    with pytest.raises(WireError, match="nested deeper than 100"):
        tw.loads(b"\x01" + b"\x06\x01" * 5000 + b"\0", max_depth=10_000)


@pytest.mark.parametrize(
    "value", ["\ud800", torch.ones(2).to_sparse(), [[]] * 2 + [object()]], ids=["text", "sparse", "object"]
)
def test_what_cannot_be_sent_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"ha(s|ve) no place in a message"):
        tw.dumps(value)


def test_what_is_nested_too_deeply_is_a_type_error() -> None:
    value: list = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(TypeError, match="nested deeper than 100"):
        tw.dumps(value)


# -- expressions ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SGD(" + "-" * 1500 + "1)", "is not an expression such as"),
        ("SGD(" + "9" * 400 + ")", "is not an expression such as"),
        ("Partition({[]: Dense()})", r"its keys are different texts, \[\] is not"),
        ('Partition({"*": Dense(), "*": Half()})', "its keys are different texts, '\\*' is not"),
        ("SGD(lr=1.0, lr=2.0)", "lr is given twice"),
    ],
)
def test_an_odd_expression_is_refused_and_nothing_else_happens(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said):
        tw.parse(text)


def test_one_object_has_one_name() -> None:
    assert repr(tw.parse("SGD(1)")) == repr(tw.SGD(1.0)) == "SGD(1.0)"
    assert tw.complete(tw.LocalSGD(epochs=2)) == tw.complete(tw.LocalSGD(epochs=2.0))


def test_a_method_with_a_dict_of_links_has_a_hash() -> None:
    assert hash(tw.FedAvg(up={"update": TopK(0.1)})) == hash(tw.parse('FedAvg(up={"update": TopK(0.1)})'))


@pytest.mark.parametrize(
    "make", [lambda: tw.SGD(float("inf")), lambda: tw.Network(float("inf")), lambda: tw.Cosine(1.0, 10, -1.0)]
)
def test_rates_are_finite_and_not_negative(make) -> None:
    with pytest.raises(ValueError, match="must"):
        make()


# -- links ------------------------------------------------------------------------


def test_two_links_of_a_partition_do_not_share_a_mask() -> None:
    x = tw.Params.of([("a", torch.arange(1.0, 101)), ("b", torch.arange(1.0, 101))])
    link = Partition({"a": Flat(RandK(0.1)), "b": Flat(RandK(0.1))})
    _, seen, _ = link.send(x, link.open(x)[0], KEY)
    assert not torch.equal(seen["a"] != 0, seen["b"] != 0)


def test_the_order_of_a_partitions_rules_matters() -> None:
    one, other = {"*.bias": Dense(), "*": TopK(0.1)}, {"*": TopK(0.1), "*.bias": Dense()}
    assert Partition(one) != Partition(other)
    assert Partition(one) == Partition(dict(one))


def test_looking_back_is_a_contraction_only_over_what_loses_nothing() -> None:
    assert LBGM().contraction
    assert LBGM(Sparse()).contraction
    assert not LBGM(ScaledSign(), 0.2).contraction
    with pytest.raises(tw.errors.CombinationError, match="needs a link that always keeps a part"):
        tw.ErrorFeedback(LBGM(ScaledSign()))


def test_a_sign_of_huge_numbers_stays_finite() -> None:
    link = ScaledSign()
    packet = link.encode(torch.full((10,), 3e38), KEY)
    assert torch.isfinite(link.decode(packet, Size([10]), KEY)).all()


def test_looking_back_sends_whole_what_no_finite_multiple_reaches() -> None:
    link, layout = LBGM(threshold=1.0), tw.Layout(("a",), (Size([2]),))
    _, _, tx = link.send(tw.Params(layout, torch.tensor([1e-30, 0.0])), link.open(layout.zeros())[0], KEY)
    packet, seen, _ = link.send(tw.Params(layout, torch.tensor([1e15, 0.0])), tx, KEY)
    assert isinstance(packet, list)
    assert seen.flat.tolist() == pytest.approx([1e15, 0.0])


def test_layers_that_are_not_there_cannot_be_dropped() -> None:
    x = tw.Params.of([("a", torch.ones(2))])
    with pytest.raises(ValueError, match="no layer named 'typo'"):
        x.drop(["typo"])
    with pytest.raises(ValueError, match="two layers have the same name"):
        tw.Params.of([("a", torch.ones(2)), ("a", torch.ones(3))])


# -- the stream -------------------------------------------------------------------


class Note(NamedTuple):
    x: tw.Params
    mark: int


class Held(NamedTuple):
    x: tw.Params
    mark: int
    ballast: Tensor  # so that a snapshot is dearer than any messages


class Marked(Algorithm):
    """A broadcast with a mark of 1 moves a counter; only one with a mark of 0 may be replaced by the next."""

    def init(self, x, num_clients, key):
        raise AssertionError

    def broadcast(self, server, view):
        raise AssertionError

    def see(self, view, msg, key):
        return Held(msg.x, view.mark + msg.mark, view.ballast)

    def client(self, view, state, task, key):
        raise AssertionError

    def server(self, server, view, mean, key):
        raise AssertionError

    def model(self, server, client=None):
        raise AssertionError

    def supersedes(self, older, newer):
        return older.mark == 0


def test_a_broadcast_that_moves_something_is_kept_for_those_who_missed_it() -> None:
    x = tw.Params.of([("a", torch.arange(4.0))])
    method = Marked()
    form = Form.of(Note(x, 0), Dense(), "down")
    stream = Stream(method, form, Held(x.zeros(), 0, torch.zeros(1000)), None)
    views = [stream.view]
    for round, mark in enumerate((1, 0, 0, 1, 0), 1):
        stream.publish(Note(x * float(round), mark), None, tw.Key(0, round))
        views.append(stream.view)
    for version, view in enumerate(views):
        parcel = stream.parcel(version)
        found = catch_up(method, form, view, parcel, KEY)
        assert (found.state.mark, found.state.x.flat.tolist()) == (2, [0.0, 5.0, 10.0, 15.0])
    assert [len(stream.parcel(v).messages) for v in range(6)] == [3, 2, 2, 2, 1, 0]


# -- tasks and models --------------------------------------------------------------


class Zero(Supervised):
    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().loss(module, batch) * 0.0


def test_a_loss_of_ones_own_is_used_when_clients_are_trained_together() -> None:
    own = [Zero(t.inputs, t.targets, t.indices) for t in tasks()]
    result = tw.simulate(tw.FedAvg(), linear, own, 1, plan="together")
    assert result.rounds[-1]["train_loss"] == 0.0


class Averaged(Supervised):
    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().loss(module, batch).mean()


def test_a_loss_that_is_averaged_already_is_refused_with_what_to_do() -> None:
    own = [Averaged(t.inputs, t.targets, t.indices) for t in tasks()]
    with pytest.raises(ValueError, match=r"Averaged.loss must give one value an example, of shape \[b\]"):
        tw.simulate(tw.FedAvg(), linear, own, 1)


def cumulative() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3))


def test_counters_of_norm_layers_do_not_leak_between_clients(tmp_path: Path) -> None:
    one, two = (tw.simulate(tw.FedAvg(), cumulative, tasks(), 3, workers=w) for w in (1, 2))
    tw.simulate(tw.FedAvg(), cumulative, tasks(), 2, out=tmp_path / "run")
    resumed = tw.simulate(tw.FedAvg(), cumulative, tasks(), 3, out=tmp_path / "run", resume=True)
    for other in (two, resumed):
        for a, b in zip(one.module.state_dict().values(), other.module.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    assert not one.module.training


class Moving(nn.Module):
    """Its forward pass puts a new tensor in a buffer's place; another buffer is a constant with infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.layer(x)


def test_a_buffer_that_is_reassigned_travels_and_one_that_never_moves_does_not() -> None:
    simulation = tw.Simulation(tw.FedAvg(), Moving, tasks(), workers=1)
    with simulation.pool:
        simulation.step()
    assert simulation.buffers is not None
    assert simulation.buffers.names == ("average",)
    assert simulation.buffers.norm() > 0


def test_the_first_client_may_be_too_small_for_batch_norm_to_look_at_the_model() -> None:
    with pytest.raises(ValueError, match="client 0 has 1 example: batch norm needs 2 to train on"):
        tw.simulate(tw.FedAvg(), cumulative, tasks((1, 12, 13)), 1)


@pytest.mark.parametrize("module", [cumulative, lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))])
def test_models_that_cannot_be_batched_are_trained_one_by_one_whatever_the_plan(module) -> None:
    found = [tw.simulate(tw.FedAvg(), module, tasks(), 2, plan=plan).params.flat for plan in ("each", "together")]
    assert torch.equal(*found)


def test_the_last_round_of_a_schedule_that_ends_at_zero_leaves_the_controls_alone() -> None:
    for schedule in (tw.Cosine(0.1, 3), tw.Triangle(0.1, 1, 2)):
        assert tw.simulate(tw.SCAFFOLD(tw.LocalSGD(schedule)), linear, tasks(), 3).params.finite()


def test_a_second_training_in_a_round_draws_other_batches() -> None:
    class Twice(tw.FedAvg):
        def client(self, view, state, task, key):
            first = yield tw.Local(view.x, self.local)
            second = yield tw.Local(view.x, self.local)
            seen.append((first.x.flat, second.x.flat))
            return type(self).reply(second.x - view.x), state

    from thinwire.algorithms.fedavg import Reply

    Twice.reply = Reply  # type: ignore[attr-defined]
    seen: list[tuple[Tensor, Tensor]] = []
    tw.simulate(Twice(tw.LocalSGD(batch=4)), linear, tasks()[3:], 1)
    assert not torch.equal(*seen[0])


# -- configurations without checked annotations ------------------------------------

WRONG = {
    "LUAR(FedAvg(), 1, layers='kernel')": "LUAR(layers='kernel'): one of 'kernels', 'tensors', 'modules' is expected",
    "LUAR(FedAvg(), 1, select='best')": (
        "LUAR(select='best'): one of 'metric', 'uniform', 'round-robin', 'gradient-norm' is expected"
    ),
    "LUAR(TopK(), 1)": "LUAR(inner=TopK(0.01)): Algorithm such as FedAvg() is expected",
    "LUAR(FedAvg, 1)": (
        "LUAR(inner=<class 'thinwire.algorithms.fedavg.FedAvg'>): Algorithm such as FedAvg() is expected"
    ),
    "FedAvg(weights='example')": "FedAvg(weights='example'): one of 'examples', 'uniform' is expected",
    "FedAvg(buffers='average')": "FedAvg(buffers='average'): one of 'mean', 'local' is expected",
    "FedAvg(up='TopK(0.1)')": "FedAvg(up='TopK(0.1)'): Link such as TopK(0.01) or dict[str, Link] is expected",
    "FedAvg(opt='adam')": "FedAvg(opt='adam'): Optimizer such as Adam(0.03) is expected",
    "FedAvg(0.1)": "FedAvg(local=0.1): Trainer such as LocalSGD(0.1) is expected",
    "LUAR(FedAvg(), recycle=1.0)": "LUAR(recycle=1.0): int is expected",
    "LocalSGD(batch=2.5)": "LocalSGD(batch=2.5): int or None is expected",
    "FLSS(FedAvg(), rank=2, start=3, every=2.5)": "FLSS(every=2.5): int or None is expected",
    "FLSS(FedAvg(), rank='a', start=3)": "FLSS(rank='a'): int is expected",
    "FLSS(FedAvg(), rank=2.5, start=3)": "FLSS(rank=2.5): int is expected",
    "Intrinsic(8.5)": "Intrinsic(dim=8.5): int is expected",
    "Intrinsic(8, varying=True, epoch=2.5)": "Intrinsic(epoch=2.5): int is expected",
    "Intrinsic(8, basis=3)": "Intrinsic(basis=3): Basis such as Fastfood() is expected",
    "Projection(8, basis='x')": "Projection(basis='x'): Basis such as Fastfood() is expected",
    "Projection(8.5)": "Projection(dim=8.5): int is expected",
    "QSGD(1.5)": "QSGD(levels=1.5): int is expected",
    "QSGD(16, bucket=1.5)": "QSGD(bucket=1.5): int or None is expected",
    "LowRank(2.0)": "LowRank(rank=2.0): int is expected",
    "CountSketch(1.5, 3)": "CountSketch(rows=1.5): int is expected",
    "TopK('a')": "TopK(share='a'): float is expected",
    "TopK(True)": "TopK(share=True): float is expected",
    "RandK(0.1, unbiased=1)": "RandK(unbiased=1): bool is expected",
    "Budget(200.5)": "Budget(bytes=200.5): int is expected",
    "ATOMO(1.5)": "ATOMO(rank=1.5): int is expected",
    "PowerSGD('2')": "PowerSGD(rank='2'): int is expected",
    "FetchSGD(10.5, 5)": "FetchSGD(cols=10.5): int is expected",
    "ClusteredLBGM(None)": "ClusteredLBGM(clusters=None): int is expected",
    "Momentum(beta='0.9')": "Momentum(beta='0.9'): float is expected",
    "Decay(0.1, rounds=[100])": "Decay(rounds=[100]): tuple[int, ...] is expected",
    "MOON(layer=3)": "MOON(layer=3): str or None is expected",
    "Network('fast')": "Network(mbit='fast'): float or tuple[float, ...] is expected",
    "sets.Dirichlet('0.1')": "Dirichlet(alpha='0.1'): float is expected",
    "ddp.DEF(lam='x')": "DEF(lam='x'): float or None is expected",
    "simulate(FedAvg(), 3, [1], 1)": "int is not a task",
    "simulate(FedAvg(), 3, data, 1)": "3 is neither a module nor makes one",
    "simulate(FedAvg(), torch.nn.Linear(6, 3), data, 1, sample=2.0)": "Setting(sample=2.0): int or None is expected",
    "simulate(FedAvg(), torch.nn.Linear(6, 3), data, 1, seed='a')": "Setting(seed='a'): int is expected",
    "simulate(FedAvg(), torch.nn.Linear(6, 3), data, 1, seed=2**63)": "it must not be negative, and fit 63 bits",
}


def test_a_wrong_kind_of_argument_is_one_clear_line_for_users_of_the_library() -> None:
    lines = [
        "from thinwire import *",
        "import torch",
        "from thinwire import data as sets, ddp",
        "data = [(torch.zeros(4, 6), torch.zeros(4).long())] * 2",
    ]
    for text in WRONG:
        lines += ["try:", f"    {text}", "    print('accepted')", "except ValueError as e:", "    print(e)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for said, (text, expected) in zip(done.stdout.splitlines(), WRONG.items(), strict=True):
        assert expected in said, text


# -- folders ----------------------------------------------------------------------


def test_a_checkpoint_with_any_bit_changed_is_refused(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path)
    path = tmp_path / "checkpoint" / "state.thinwire"
    good = path.read_bytes()
    for place in range(0, len(good), len(good) // 40):
        bad = bytearray(good)
        bad[place] ^= 4
        path.write_bytes(bad)
        with pytest.raises(RunError, match="is damaged"):
            tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 3, out=tmp_path, resume=True)
    path.write_bytes(good)
    assert len(tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 3, out=tmp_path, resume=True).rounds) == 3


def test_a_line_that_is_no_round_is_an_error_that_names_it(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(), linear, tasks(), 2, out=tmp_path)
    with open(tmp_path / "rounds.jsonl", "a") as file:
        file.write("[]\n")
    with pytest.raises(RunError, match=r"rounds.jsonl has a line that is no round: \[\]"):
        tw.simulate(tw.FedAvg(), linear, tasks(), 3, out=tmp_path, resume=True)


def frozen(value: float) -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    module[0].requires_grad_(False)
    nn.init.constant_(module[0].weight, value)
    return module


def test_a_run_of_other_data_or_other_frozen_weights_is_another_run(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(), lambda: frozen(0.1), tasks(), 2, out=tmp_path)
    with pytest.raises(RunError, match="is another run: its data is"):
        tw.simulate(tw.FedAvg(), lambda: frozen(0.1), tasks(seed=9), 3, out=tmp_path, resume=True)
    with pytest.raises(RunError, match="is another run: its model is"):
        tw.simulate(tw.FedAvg(), lambda: frozen(0.2), tasks(), 3, out=tmp_path, resume=True)
    with pytest.raises(RunError, match="has 2 rounds already: rounds=1 would be fewer"):
        tw.simulate(tw.FedAvg(), lambda: frozen(0.1), tasks(), 1, out=tmp_path, resume=True)


CHILD = """
import sys, time, torch, thinwire as tw
from torch import nn
data = [(torch.randn(8, 6), torch.arange(8) % 3) for _ in range(4)]
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
tw.simulate(tw.FedAvg(), model, data, 10_000, out=sys.argv[1], workers=2, on_round=lambda r: time.sleep(0.05))
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="workers are forked")
def test_a_killed_run_with_forked_workers_leaves_its_folder_free(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(run)])
    deadline = time.monotonic() + 60
    while not (run / "rounds.jsonl").exists() or not (run / "rounds.jsonl").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with locked(run):
        pass


# -- subspaces, and states on disk ---------------------------------------------------


def test_what_a_dense_projection_sends_is_what_is_seen() -> None:
    layout = tw.Layout(("w", "scale", "b"), (Size([20, 40]), Size([]), Size([30])))
    x = tw.Params(layout, torch.randn(831, generator=torch.Generator().manual_seed(0)))
    for dim in (7, 10, 29):
        link = tw.Projection(dim, tw.Gaussian())
        for round in range(20):
            key = tw.Key(round, 0, 2, "up/update")
            packet, seen, _ = link.send(x, None, key)
            got, _ = link.recv(tw.loads(tw.dumps(packet)), layout, None, key)
            assert torch.equal(got.flat, seen.flat)


@pytest.mark.parametrize(("first", "then"), [("memory", "disk"), ("disk", "memory")])
def test_states_are_found_again_where_they_were_put(tmp_path: Path, first, then) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path, states=first)
    with pytest.raises(RunError, match=f"resume it with states='{first}'"):
        tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 3, out=tmp_path, states=then, resume=True)


def test_a_bit_that_flips_in_a_state_on_disk_is_noticed(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path, states="disk")
    path = next(tmp_path.glob("states/*/0-*.thinwire"))
    data = bytearray(path.read_bytes())
    data[60] ^= 64
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"the state of client 0 cannot be read from .*: its checksum is another"):
        tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 3, out=tmp_path, states="disk", resume=True)


def resumed(folder: Path, rounds: int = 3, **options) -> tw.Result:
    return tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), rounds, out=folder, resume=True, **options)


def test_the_state_of_another_run_client_or_version_is_refused_by_name(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for seed, run in enumerate(runs):
        tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=run, seed=seed, states="disk")
    first, second = (run / "states" / "000" / "0-2.thinwire" for run in runs)
    good = first.read_bytes()
    first.write_bytes(second.read_bytes())
    said = (
        r"0-2.thinwire is not the state that this run wrote there, but that of client 0 after version 2 of another run"
    )
    with pytest.raises(RunError, match=said):
        resumed(runs[0], states="disk")
    first.write_bytes((runs[0] / "states" / "001" / "1-2.thinwire").read_bytes())
    with pytest.raises(RunError, match="but that of client 1 after version 2 of this run: put back what was in"):
        resumed(runs[0], states="disk")
    first.write_bytes(good)
    assert len(resumed(runs[0], states="disk").rounds) == 3


CHANGED = {  # of the second line of a file
    "a number": ("ledger.jsonl", lambda line: line.replace('"payload": ', '"payload": 1')),
    "a name": ("ledger.jsonl", lambda line: line.replace('"payload"', '"bytes"')),
    "its damage": ("ledger.jsonl", lambda line: line[:-9]),
    "no line": ("ledger.jsonl", lambda line: ""),
    "a loss": ("rounds.jsonl", lambda line: line.replace('"train_loss": ', '"train_loss": 1')),
    "a field": ("rounds.jsonl", lambda line: line.replace("up_bytes", "up_byte")),
}


@pytest.mark.parametrize("change", CHANGED)
def test_lines_that_are_not_those_that_were_written_are_refused(change: str, tmp_path: Path) -> None:
    name, changed = CHANGED[change]
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path)
    path = tmp_path / name
    good = path.read_text()
    lines = good.splitlines()
    assert changed(lines[1]) != lines[1]
    text = "\n".join([lines[0], changed(lines[1]), *lines[2:]]) + "\n"
    path.write_text(text)
    where = r" \(line 2 is damaged\)" if change in ("its damage", "no line") else ""
    with pytest.raises(
        RunError, match=rf"{name} is not what this run wrote up to round 2{where}: put it back as it was"
    ):
        resumed(tmp_path)
    assert path.read_text() == text  # nothing was lost by looking
    path.write_text(good + '{"round": 3, "cli')  # a kill cut it short
    assert len(resumed(tmp_path).rounds) == 3


def test_a_ledger_of_an_older_version_is_read_and_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path)
    folder = Folder(tmp_path)
    packet = folder.load()
    del packet["lines"]  # as it was before there were digests
    folder.save(packet)
    path = tmp_path / "ledger.jsonl"
    good = path.read_text()
    path.write_text(good.replace('"framing"', '"header"', 1))
    with pytest.raises(RunError, match=r"ledger.jsonl: line 1 is no entry of a ledger .*'header'"):
        resumed(tmp_path)
    path.write_text(good)
    assert len(resumed(tmp_path).rounds) == 3


def test_a_run_that_goes_on_with_other_versions_says_so(tmp_path: Path, caplog) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 1, out=tmp_path)
    path = tmp_path / "run.json"
    about = json.loads(path.read_text())
    (now,) = about["versions"]
    assert now == f"thinwire {code_version()}, torch {torch.__version__}"
    resumed(tmp_path, 2)
    assert json.loads(path.read_text())["versions"] == [now]
    assert not caplog.records
    path.write_text(json.dumps({**about, "versions": ["thinwire 0.0.9, torch 1.0"]}))
    resumed(tmp_path, 3)
    assert f"{tmp_path} was made with thinwire 0.0.9, torch 1.0 and goes on with {now}" in caplog.text
    assert json.loads(path.read_text())["versions"] == ["thinwire 0.0.9, torch 1.0", now]
    caplog.clear()
    del about["versions"]  # as it was before they were recorded
    path.write_text(json.dumps(about))
    resumed(tmp_path, 4)
    assert not caplog.records


# -- many clients --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing here says the most memory a process had")
def test_a_client_that_is_not_sampled_takes_no_more_memory_than_is_said() -> None:
    # 18,000 more of them, 36 MB at most; a client's states, which lie on disk, would be 400 kB each.
    program = Path(__file__).parents[1] / "benchmarks" / "scale.py"
    words = ["--clients", "2000", "--clients", "20000", "--rounds", "2", "--json"]
    done = subprocess.run([sys.executable, str(program), *words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["bytes_a_client"] < 2_000
    for clients in ("2000", "20000"):
        assert 100 < found[clients]["states_on_disk"] <= 200  # of those that were sampled: 100 a round
