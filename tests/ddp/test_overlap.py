"""Exchanges behind the training: what they add up to, that it does not matter when they come, and how they fail."""

from __future__ import annotations

import datetime
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from processes import Process
from test_local_steps import DELAYED, SMALL, G, Team, X, adamw, net, sgd, slopes, task, top
from thinwire.ddp import DEF, DEFA, EF, DiLoCo, Method, compress
from thinwire.ddp.collectives import Later, Traffic, answer_all
from thinwire.ddp.worker import batches
from thinwire.errors import NonFinite, RankLost
from thinwire.key import Key

# -- what it comes to -------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_a_delay_of_a_whole_round_by_hand(steps):
    """The next message is sent first, then the one before it is applied; lam = .5, two of four entries."""
    x, e, w, flying = X.copy(), np.zeros((2, 4)), np.stack([X, X]), np.zeros(4)
    method = DEFA(tw.TopK(0.5), lam=0.5, steps=steps, delay=steps, decay=0.9)
    for step, (seen, flats, owed) in enumerate(slopes(method, G)):
        w = w - 0.5 * G[step]
        if (step + 1) % steps == 0:
            p = (x - w) + (0.9 - 0.5) * e
            c = top(p, 2)
            e, x, flying = p - c, x - flying, c.mean(0)
            w = x - 0.5 * e
        assert np.allclose(seen, x, atol=1e-5)
        assert np.allclose(owed, e, atol=1e-5)
        assert np.allclose(flats, w, atol=1e-5)


def test_a_share_of_the_own_model_stays_after_a_whole_round_by_hand():
    x, w, flying, v = X.copy(), np.stack([X, X]), np.zeros(4), np.zeros(4)
    method = DiLoCo(2, delay=2, mix=0.25, outer=tw.Nesterov(0.5, 0.8))
    for step, (seen, flats, _) in enumerate(slopes(method, G)):
        w = w - 0.5 * G[step]
        if step % 2:
            sent = (x - w).mean(0)
            v = 0.8 * v + flying
            x = x - 0.5 * (flying + 0.8 * v)
            w, flying = 0.75 * x + 0.25 * w, sent
        assert np.allclose(seen, x, atol=1e-5)
        assert np.allclose(flats, w, atol=1e-5)


@pytest.mark.parametrize(
    "method",
    [
        DEF(8, delay=1),
        DEF(8, scope="tensor", delay=1),
        DEF(SMALL, steps=3, delay=3),
        DEFA(tw.TopK(0.2), lam=0.3, delay=1),
        EF(tw.Dense(), delay=1),
        DiLoCo(3, tw.Bins(4), delay=3, outer=tw.SGD(1.0)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("workers", [1, 3])
def test_applied_and_on_its_way_and_owed_are_all_that_the_optimisers_did(method, workers):
    """Each movement is in one message: x_0 - x_T + d + mean e = the sum of mean u, after every round."""
    team = Team(method, workers, adamw)
    begin, moved = team.x.clone(), torch.zeros(len(team.x))
    for worker in team.workers:
        before: list[Tensor] = []

        def remember(*_: Any, worker: Any = worker, before: list[Tensor] = before) -> None:
            before[:] = [worker.vector.flat.clone()]

        def add(*_: Any, worker: Any = worker, before: list[Tensor] = before) -> None:
            moved.add_(before[0] - worker.vector.flat, alpha=1 / workers)

        worker.optimizer.register_step_pre_hook(remember)
        worker.optimizer.register_step_post_hook(add)
    for _ in range(12 // method.steps):
        team.run(method.steps)
        flying = team.workers[0].memory["flying"]
        assert torch.allclose(begin - team.x + flying.d + team.e().mean(0), moved, atol=2e-6)
    assert moved.abs().max() > 0.05


def test_what_is_sent_after_a_step_is_applied_after_the_next():
    """Of plain gradient steps at one place x is a step behind, and one message is on its way."""
    gradients = np.ones((4, 2, 4))
    seen = [x[0] for x, _, _ in slopes(EF(tw.Dense(), delay=1), gradients)]
    assert seen == [1.0, 0.5, 0.0, -0.5]


# -- when it comes ------------------------------------------------------------------


class Late:
    """The futures of all workers' talks, which begin only when one of them is asked for its result."""

    def __init__(self, talks: Sequence[Any], traffic: Traffic) -> None:
        self.talks, self.traffic, self.results = talks, traffic, None

    def of(self, number: int) -> Any:
        class One(Future):  # type: ignore[type-arg]
            def result(one, timeout: Any = None) -> Any:
                if self.results is None:
                    self.results = apart(self.talks, self.traffic)
                return self.results[number]

        return One()


def apart(talks: Sequence[Any], traffic: Traffic) -> list[Any]:
    """As ``together``, with all that is asked for later as late as may be. All results are of all workers."""
    answers, results = [None] * len(talks), []
    while True:
        requests = []
        for talk, answer in zip(talks, answers, strict=True):
            try:
                requests.append(talk.send(answer))
            except StopIteration as end:
                results.append(end.value)
        if not requests:
            return results
        if isinstance(requests[0], Later):
            late = Late([r.talk for r in requests], traffic)
            answers = [late.of(number) for number in range(len(talks))]
        else:
            answers = answer_all(requests, traffic)


@pytest.mark.parametrize("method", DELAYED, ids=repr)
def test_when_an_exchange_comes_makes_no_difference_to_a_bit(method):
    """At once, or only where it is waited for: nothing that it reads or writes is touched meanwhile."""
    soon, late = Team(method, 2, adamw).run(9), Team(method, 2, adamw)
    for number, rows in zip(range(9), batches(64, 2, 4, 0), strict=False):
        keys = [Key(0, number, k, "ddp") for k in range(2)]
        for worker, indices, key in zip(late.workers, rows, keys, strict=True):
            worker.backward(late.data, indices, key)
        apart([worker.step(key) for worker, key in zip(late.workers, keys, strict=True)], late.traffic)
    for one, other in zip(soon.workers, late.workers, strict=True):
        memory, expected = other.memory, one.memory  # which wait for what is on its way
        assert torch.equal(one.vector.flat, other.vector.flat)
        assert tw.dumps(expected) == tw.dumps(memory)
    assert soon.traffic.reduced + soon.traffic.gathered == late.traffic.bytes


# -- in processes ---------------------------------------------------------------------


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


class Script:
    """A training script that says much besides: buffers, a norm, and a sum of its own, at every step; or ``quiet``."""

    def __init__(self, method: Method, debug: bool = False, quiet: bool = False) -> None:
        self.model = DistributedDataParallel(net() if quiet else normed())
        self.optimizer = sgd(self.model.parameters())
        self.c = compress(self.model, self.optimizer, method, debug=debug)
        self.data, self.quiet = task(), quiet
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=False)

    def step(self, indices: Tensor, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        loss = self.data.loss(self.model, self.data.batch(indices)).mean() * factor
        self.scaler.scale(loss).backward()
        if not self.quiet:
            self.c.clip_grad_norm_(0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not self.quiet:
            dist.all_reduce(loss.detach())

    def run(self, steps: int) -> list[Any]:
        for _, rows in zip(range(steps), batches(64, 2, 4, 0), strict=False):
            self.step(rows[dist.get_rank()])
        state = self.c.state_dict()
        flat = torch.cat([v.reshape(-1).float() for v in self.model.state_dict().values()])
        return [flat.tolist(), state["residual"].tolist(), self.c.ledger.summary()]


class Here:
    """Drives what is asked for later on the thread that asks: an exchange that is waited for where it is sent."""

    def __init__(self, line: Any) -> None:
        self.line = line

    def submit(self, talk: Any, where: str) -> Any:
        future: Future[Any] = Future()
        future.set_result(self.line.group.drive(talk, where))
        return future

    def wait(self) -> Traffic:
        return self.line.group.traffic


BESIDE: list[Method] = [DEF(8, delay=1), DEFA(SMALL, steps=2, delay=1), DiLoCo(2, tw.Bins(4), delay=2)]


def init(folder: str, rank: int, size: int = 2, seconds: float = 180.0) -> None:
    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=wait)


def beside(folder: str, rank: int) -> None:
    """Each training with the exchange waited for, behind the training, and there later or sooner by rank and step."""
    init(folder, rank)
    found = []
    for method in BESIDE:
        waited = Script(method, debug=True)
        waited.c.group.behind = Here(waited.c.line)
        found.append(waited.run(6))
        behind, draw = Script(method, debug=True), np.random.default_rng(rank)

        def slowly(of: Callable[[Any], Any], draw: Any = draw) -> Callable[[Any], Any]:
            return lambda x: (time.sleep(0.01 * draw.random()), of(x))[1]

        group = behind.c.line.group
        group.mean, group.gather = slowly(group.mean), slowly(group.gather)
        found.append(behind.run(6))
        behind.c.remove()
        assert behind.c.ledger.summary() == found[-1][2]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    # No barrier, and a message on its way: how a script ends that has made its last step.
    Script(EF(tw.Dense(), delay=1)).step(torch.arange(4))


def alone(folder: str, rank: int) -> None:
    """A message that cannot come before the next steps were made."""
    init(folder, 0, 1)
    script, gate = Script(DEF(8, steps=4, delay=3)), threading.Event()
    mean = script.c.line.group.mean

    def gated(x: Tensor) -> Tensor:
        assert gate.wait(60)
        return mean(x)

    script.c.line.group.mean = gated
    for number in range(7):
        if number == 6:  # after this step it is to be applied
            assert not script.c.line.last.done()
            gate.set()
        script.step(torch.arange(4) + number)
    assert script.c.line.last.done()
    dist.destroy_process_group()


def lose(folder: str, rank: int) -> None:
    """Rank 1 dies, and rank 0 learns of it where it would apply what rank 1 never sent."""
    init(folder, rank)
    script, steps = Script(EF(tw.Dense(), steps=2, delay=2), quiet=True), 0
    try:
        for _ in range(8):
            if rank == 1 and steps == 3:
                assert script.c.ledger.calls == 1  # the message after the second step, which is waited for
                os._exit(0)
            script.step(torch.arange(4))
            steps += 1
    except RankLost as error:
        x = torch.cat([v.reshape(-1).float() for v in script.model.state_dict().values()])
        Path(folder, "lost.json").write_text(json.dumps([steps, str(error), bool(x.isfinite().all())]))
        script.c.remove()


def overflow(folder: str, rank: int) -> None:
    """Rank 1 has an infinity in its third step and skips it."""
    init(folder, rank)
    script = Script(DEF(8, delay=1), quiet=True)
    script.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for number in range(6):
        script.step(torch.arange(4) + number, float("inf") if (rank, number) == (1, 2) else 1.0)
    script.c.state_dict()
    x = torch.cat([p.reshape(-1) for p in script.model.state_dict().values()])
    found = [x.tolist(), script.c.step, script.c.ledger.calls, script.scaler.get_scale()]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    script.c.remove()


class Refuses(tw.TopK):
    """Refuses its third message."""

    def send(self, x: Any, state: Any, key: Key) -> Any:
        if key.round == 2:
            raise NonFinite("no third message")
        return super().send(x, state, key)


def refuse(folder: str, rank: int) -> None:
    """What a link raises in the thread."""
    init(folder, 0, 1)
    script, steps = Script(DEFA(Refuses(0.2), lam=0.0, delay=1)), 0
    found = []
    for _ in range(6):
        try:
            script.step(torch.arange(4))
            steps += 1
        except NonFinite as error:
            found.append([steps, type(error).__name__, str(error)])
    Path(folder, "refused.json").write_text(json.dumps(found))
    script.c.remove()


def run(folder: Path, function: Callable[..., Any], ranks: int, codes: Sequence[int]) -> list[Process]:
    with ExitStack() as stack:
        running = [stack.enter_context(Process(function, str(folder), rank)) for rank in range(ranks)]
        ended = [process.wait(100) for process in running]
        assert ended == list(codes), "\n".join(process.stderr[-3000:] for process in running)
        assert not any("Traceback" in process.stderr for process in running)
    return running


def test_whatever_else_ranks_say_meanwhile_an_exchange_in_a_thread_is_one_that_is_waited_for(tmp_path):
    """To the bit, and to the byte. And a script that ends with a message on its way ends well."""
    run(tmp_path, beside, 2, [0, 0])
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for number in range(len(BESIDE)):
            waited, late = found[2 * number : 2 * number + 2]
            assert waited == late
            assert np.isfinite(waited[0]).all()


def test_training_goes_on_while_a_message_is_on_its_way(tmp_path):
    run(tmp_path, alone, 1, [0])


def test_a_rank_that_dies_is_an_error_where_its_message_would_be_applied(tmp_path):
    """The one after its second step is there, and applied after the fourth. That after the fourth never comes."""
    run(tmp_path, lose, 2, [0, 0])
    steps, error, finite = json.loads((tmp_path / "lost.json").read_text())
    assert steps == 5
    assert "of EF(Dense(), steps=2, delay=2), sending: another rank died" in error
    assert finite


def test_of_a_scaler_each_rank_skips_its_own_step_and_nothing_is_sent_for_it(tmp_path):
    run(tmp_path, overflow, 2, [0, 0])
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert one[0] == other[0]
    assert np.isfinite(one[0]).all()
    assert [one[1:], other[1:]] == [[6, 6, 64.0], [6, 6, 32.0]]  # steps, calls, and the scale, halved by the infinity


def test_what_a_link_raises_in_the_thread_is_raised_where_it_would_be_applied_and_again(tmp_path):
    """Sent after the third step, and to be applied after the fourth, which the optimiser has made by then."""
    run(tmp_path, refuse, 1, [0])
    assert json.loads((tmp_path / "refused.json").read_text()) == [[3, "NonFinite", "no third message"]] * 3
