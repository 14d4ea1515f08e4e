"""The runner where things go wrong: tasks of one's own, hostile replies, what is written and what is kept."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Size, Tensor, nn

import thinwire as tw
from test_distributed import HERE, two
from test_simulate import assert_same_run, blobs, normed, simulate
from thinwire import FedAvg, Key, Layout, LocalSGD, Params, Supervised
from thinwire.algorithms.fedavg import Reply
from thinwire.algorithms.scaffold import Reply as Both
from thinwire.errors import WireError
from thinwire.run.messages import Form, Mean

# -- several ranks -------------------------------------------------------------------


@pytest.mark.slow
def test_where_one_of_two_processes_diverges_both_go_on_to_the_next_method(tmp_path: Path) -> None:
    (tmp_path / "one_diverges.py").write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from test_simulate import blobs, mlp\n"
        "def make_task():\n"
        "    tasks = blobs((5, 5, 5, 5))\n"
        "    tasks[1] = (tasks[1].inputs * float('nan'), tasks[1].targets)\n"  # the second process trains it
        "    return mlp, tasks\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from pathlib import Path\n"
        "from thinwire.compare import Comparison\n"
        "from thinwire.run.distributed import join, rank\n"
        "join()\n"
        "methods = ('FedAvg(LocalSGD(0.2))', 'FedAvg(LocalSGD(0.3))')\n"
        "c = Comparison(methods, task='one_diverges:make_task', rounds=2)\n"
        f"print(rank(), c.run(Path({str(tmp_path / 'out')!r}))[1], flush=True)\n"
    )
    lines = sorted(line for line in two(str(script)).splitlines() if line[:1] in "01")
    said = "round 1, client 1: the loss became nan"
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


def test_the_client_whose_reply_is_refused_is_named_and_a_comparison_goes_on(
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
    from thinwire.compare import Comparison

    both = Comparison(("FedAvg(LocalSGD(0.2))",), clients=5, rounds=1, seeds=(0, 1))
    results, failures = both.run(tmp_path / "run")
    assert [r.setting["seed"] for r in results] == [1]
    assert [said in line for line in failures] == [True]
