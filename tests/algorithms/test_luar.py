"""LUAR: hand values, how layers are drawn, what is recycled and what is sent."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from problems import LOCAL, ONCE, Quadratic, approx, handwriting, mlp, normed, trained
from thinwire import (
    LUAR,
    SGD,
    Adagrad,
    Adam,
    Averaged,
    ErrorFeedback,
    FedAvg,
    FedProx,
    Key,
    Momentum,
    Params,
    Simulation,
    Start,
    TopK,
    Yogi,
    parse,
    simulate,
)
from thinwire.algorithms import fedavg
from thinwire.errors import CombinationError
from thinwire.optimizers import Optimizer

COMPRESSED = ErrorFeedback(TopK(0.1))


class Tower(nn.Module):
    """Three kernels and a bias: entries 0-1, 3-4, 5 and 2 of the vector."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 1), nn.Linear(1, 2, bias=False), nn.Linear(1, 1, bias=False)
        start = torch.tensor([1.0, -1.0, 0.0, 2.0, 1.0, 2.0])
        nn.utils.vector_to_parameters(start, self.parameters())

    def vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters())


TOWER = [
    Quadratic(torch.tensor([1.0, 2, 3, 1, 2, 3]), torch.tensor([[1.0, 0, 1, 2, 0, 1]])),
    Quadratic(
        torch.tensor([1.0, 2, 3, 1, 2, 3]),
        torch.tensor([[0.0, 1, 3, 1, 1, -1], [1.0, 0, 3, 2, 2, -2], [-1.0, 2, 3, 0, 0, 0]]),
    ),
]


@pytest.mark.parametrize(
    ("drop", "x", "score"),
    [
        (
            False,
            [
                [0.925, -0.65, 0.75, 1.925, 0.95, 1.25],
                [0.8575, -0.37, 1.275, 1.85, 0.9, 0.725],
                [0.79675, -0.146, 1.6425, 1.79, 0.87, 0.2],
                [0.736, 0.078, 1.89975, 1.736, 0.846, -0.01],
            ],
            [0.2485135, 0.0296917, 1.05],
        ),
        (
            True,
            [
                [0.925, -0.65, 0.75, 1.925, 0.95, 1.25],
                [0.8575, -0.37, 1.275, 1.925, 0.95, 0.725],
                [0.79675, -0.146, 1.6425, 1.8575, 0.91, 0.725],
                [0.79675, -0.146, 1.89975, 1.79675, 0.878, 0.3575],
            ],
            [0.2485135, 0.0331955, 0.5068966],
        ),
    ],
)
def test_four_rounds_of_luar_in_turn_are_those_worked_out_by_hand(
    drop: bool, x: list[list[float]], score: list[float]
) -> None:
    # h = np.array([1, 2, 3, 1, 2, 3.]); a = np.array([[1, 0, 1, 2, 0, 1], [0, 1, 3, 1, 1, -1.]]); n = np.array([1, 3])
    # x, last, s = np.array([1, -1, 0, 2, 1, 2.]), np.zeros(6), {}
    # layers = {"a": slice(0, 2), "b": slice(3, 5), "c": slice(5, 6)}   # kernels; entry 2 is a's bias, always sent
    # for recycled in ["", "b", "c", "a"]:
    #     d = (n[:, None] * np.array([-0.1 * h * (x - a[i]) for i in (0, 1)])).sum(0) / 4
    #     if recycled: d[layers[recycled]] = 0 if drop else last[layers[recycled]]
    #     for k, at in layers.items():
    #         if k != recycled: s[k] = np.linalg.norm(d[at]) / np.linalg.norm(x[at])
    #     x, last = x + d, d; print(x, s)
    run = Simulation(LUAR(FedAvg(ONCE), 1, select="round-robin", drop=drop), Tower(), TOWER, workers=1, plan="each")
    floats, unsent = [], []
    with run.pool:
        for t in range(4):
            unsent.append(run.server.recycled.tolist())
            run.step()
            assert run.server.inner.x.flat.tolist() == approx(x[t])
            floats.append(run.records[-1]["up_floats"])
    assert run.server.score.tolist() == approx(score)
    # a.weight, a.bias, b.weight, c.weight
    assert unsent == [
        [False, False, False, False],
        [False, False, True, False],
        [False, False, False, True],
        [True, False, False, False],
    ]
    assert floats == [12, 8, 10, 8]


def after_one_round(luar: LUAR, x: Params, update: Params, seed: int) -> Any:
    """The server's state, of a LUAR over FedAvg, after a round with this mean update."""
    start = luar.init(x, 2, Key(seed))
    return luar.server(start.server, start.view, fedavg.Reply(update), Key(seed, 1))


def three_kernels(*values: float) -> Params:
    return Params.of((name, torch.tensor([[value]])) for name, value in zip("pqr", values, strict=True))


# x = (2, 4, 8), |update| = (2, 2, 2): s = 1, 1/2, 1/4. How often a layer is drawn, without replacement:
#   p = 1 / s
#   for order in itertools.permutations(range(3), recycle):
#       share, rest = 1, p.sum()
#       for i in order: share *= p[i] / rest; rest -= p[i]
#       for i in order: drawn[i] += share
# For |update| = (1, 1, 4) and select="gradient-norm" the same with s = |update|.
@pytest.mark.soak
@pytest.mark.parametrize(
    ("select", "recycle", "update", "expected"),
    [
        ("metric", 1, (2.0, -2.0, 2.0), (0.142857, 0.285714, 0.571429)),
        ("metric", 2, (2.0, -2.0, 2.0), (0.390476, 0.714286, 0.895238)),
        ("gradient-norm", 1, (1.0, 1.0, -4.0), (0.444444, 0.444444, 0.111111)),
        ("gradient-norm", 2, (1.0, 1.0, -4.0), (0.855556, 0.855556, 0.288889)),
        ("uniform", 1, (1.0, 1.0, -4.0), (0.333333, 0.333333, 0.333333)),
        ("uniform", 2, (1.0, 1.0, -4.0), (0.666667, 0.666667, 0.666667)),
    ],
)
def test_layers_are_drawn_as_often_as_their_scores_say(
    select: Any, recycle: int, update: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    luar, x, draws = LUAR(FedAvg(), recycle, select=select), three_kernels(2.0, 4.0, 8.0), 800
    drawn = torch.zeros(3)
    for seed in range(draws):
        drawn += after_one_round(luar, x, three_kernels(*update), seed).recycled
    assert int(drawn.sum()) == draws * recycle
    assert (drawn / draws).tolist() == pytest.approx(expected, abs=0.06)  # 3.4 standard deviations at least


def test_the_score_of_a_layer_is_its_update_over_its_weights() -> None:
    x, update = three_kernels(2.0, 4.0, 8.0), three_kernels(2.0, -2.0, 2.0)
    assert after_one_round(LUAR(FedAvg(), 1), x, update, 0).score.tolist() == pytest.approx([1.0, 0.5, 0.25])
    norms = after_one_round(LUAR(FedAvg(), 1, select="gradient-norm"), x, update, 0).score
    assert norms.tolist() == pytest.approx([2.0, 2.0, 2.0])


def test_a_layer_that_does_not_move_or_starts_at_zero_has_a_finite_chance() -> None:
    seen: Counter[int] = Counter()
    for seed in range(20):
        state = after_one_round(LUAR(FedAvg(), 1), three_kernels(0.0, 1.0, 1.0), three_kernels(1.0, 0.0, 1.0), seed)
        seen.update(state.recycled.nonzero().flatten().tolist())
        assert torch.isfinite(state.score).all()
    assert seen == {1: 20}  # a frozen layer costs nothing to recycle


def test_a_recycled_layer_repeats_its_last_update_bit_for_bit() -> None:
    tasks, _ = handwriting()
    for inner in (FedAvg(LOCAL), FedAvg(LOCAL, up=COMPRESSED, weights="uniform")):
        run = Simulation(LUAR(inner, recycle=2, layers="tensors"), mlp, tasks, sample=4, workers=1, plan="each")
        recycled = 0
        with run.pool:
            for _ in range(6):
                x, last, unsent = run.server.inner.x, run.server.last, run.server.recycled
                run.step()
                for name in x.layout.named(unsent):
                    recycled += 1
                    assert torch.equal(run.server.last[name], last[name])
                    assert torch.equal(run.server.inner.x[name], x[name] + last[name])
                for name in set(x.names) - set(x.layout.named(unsent)):
                    assert not torch.equal(run.server.last[name], last[name])
        assert recycled == 10


def test_units_are_kernels_tensors_or_modules() -> None:
    layout = Params.trainable(normed()).layout
    assert LUAR(FedAvg(), 0).units(layout) == [["1.weight"], ["4.weight"]]
    assert LUAR(FedAvg(), 0, layers="tensors").units(layout) == [
        ["1.weight"],
        ["1.bias"],
        ["2.weight"],
        ["2.bias"],
        ["4.weight"],
        ["4.bias"],
    ]
    assert LUAR(FedAvg(), 0, layers="modules").units(layout) == [
        ["1.weight", "1.bias"],
        ["2.weight", "2.bias"],
        ["4.weight", "4.bias"],
    ]


def test_tensors_without_entries_are_no_units_and_are_always_sent() -> None:
    named = [("a", torch.zeros(0, 3)), ("b", torch.ones(2, 2)), ("c", torch.zeros(0)), ("d", torch.ones(()))]
    layout = Params.of(named).layout
    assert LUAR(FedAvg(), 0).units(layout) == [["b"]]
    assert LUAR(FedAvg(), 0, layers="tensors").units(layout) == [["b"], ["d"]]


@pytest.mark.parametrize(
    ("layers", "recycle", "once"),
    [("kernels", 1, [{"1.weight"}, {"4.weight"}]), ("modules", 2, None), ("tensors", 5, None)],
)
def test_what_is_recycled_is_not_sent_and_the_rest_is(layers: Any, recycle: int, once: Any) -> None:
    tasks, _ = handwriting()
    run = Simulation(LUAR(FedAvg(LOCAL), recycle, layers=layers), normed, tasks, sample=2, workers=1, plan="each")
    sizes = {"1.weight": 768, "1.bias": 12, "2.weight": 12, "2.bias": 12, "4.weight": 120, "4.bias": 10}
    modules = [{"1.weight", "1.bias"}, {"2.weight", "2.bias"}, {"4.weight", "4.bias"}]
    allowed = {
        "kernels": once,
        "modules": [a | b for a, b in itertools.combinations(modules, 2)],
        "tensors": [set(sizes) - {name} for name in sizes],
    }[layers]
    with run.pool:
        run.step()
        for _ in range(5):
            unsent = set(run.slot.layout.named(run.server.recycled))
            assert unsent in allowed
            run.step()
            sent = sum(size for name, size in sizes.items() if name not in unsent) + 24  # and the norm's statistics
            assert [e.floats for e in run.ledger.of("up", run.round)] == [sent, sent]


@pytest.mark.parametrize(
    ("layers", "recycle", "message"),
    [
        ("kernels", 2, r"LUAR\(recycle=2\): at most 1, the model has 2 kernels and one must be sent"),
        ("modules", 2, r"LUAR\(recycle=2\): at most 1, the model has 2 modules and one must be sent"),
        ("tensors", 4, r"LUAR\(recycle=4\): at most 3, the model has 4 tensors and one must be sent"),
    ],
)
def test_recycling_every_layer_is_refused_with_the_largest_number(layers: Any, recycle: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trained(LUAR(FedAvg(), recycle, layers=layers), rounds=1)
    trained(LUAR(FedAvg(), recycle - 1, layers=layers), rounds=2)


# -- recycled layers downwards -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "inner", [FedAvg(LOCAL), FedAvg(LOCAL, opt=SGD(0.7)), FedProx(mu=0.1, local=LOCAL), FedAvg(LOCAL, up=COMPRESSED)]
)
@pytest.mark.parametrize("drop", [False, True])
def test_clients_that_repeat_recycled_updates_train_the_same_model_bit_for_bit(inner: Any, drop: bool) -> None:
    up, both = (trained(LUAR(inner, recycle=1, drop=drop, both=both), mlp, rounds=5) for both in (False, True))
    assert torch.equal(up.params.flat, both.params.flat)
    assert [r["train_loss"] for r in up.rounds] == [r["train_loss"] for r in both.rounds]


@pytest.mark.parametrize("select", ["round-robin", "metric"])
def test_layers_that_are_recycled_are_not_sent_down_either(select: Any) -> None:
    # All take part, and each holds the newest: of two kernels one goes neither up nor down from round 2 on.
    method = LUAR(FedAvg(LOCAL), recycle=1, select=select, both=True)
    run = trained(method, mlp, rounds=6, sample=None, record="bytes", dropout=0.0)
    for before, now in itertools.pairwise(run.rounds):
        up, down = before["layer_bytes"]["up"], now["layer_bytes"]["down"]
        sent = {name: size for name, size in down.items() if name.startswith("update/")}
        assert sent == {name: size for name, size in up.items() if name.startswith("update/")}
        assert now["down_payload"] - before["up_payload"] < 60 * len(handwriting()[0])


def test_a_client_that_was_away_is_sent_no_more_than_the_model_and_what_is_recycled_now() -> None:
    cohort = [[0, 1], [0], [0], [0], [0, 1], [0, 2]]
    method = LUAR(FedAvg(LOCAL), recycle=1, select="round-robin", both=True)
    run = simulate(method, mlp, handwriting()[0], 6, cohort=cohort, workers=1, plan="each")
    one, two = (4 * mlp_.numel() for mlp_ in (w for w in mlp().parameters() if w.ndim > 1))
    model = sum(4 * p.numel() for p in mlp().parameters())
    down = {(e.round, e.client): e.payload for e in run.ledger if e.direction == "down"}
    assert model <= down[5, 1] <= model + max(one, two) + 100
    assert model <= down[6, 2] <= model + max(one, two) + 100
    assert all(down[number, 0] < model for number in range(3, 7))
    plainly = simulate(
        method.__class__(FedAvg(LOCAL), 1, select="round-robin"), mlp, handwriting()[0], 6, cohort=cohort
    )
    assert torch.equal(run.params.flat, plainly.params.flat)


# -- past what the server keeps ------------------------------------------------------------------

STATEFUL = {  # a method whose server keeps something of each layer: its rate, and where in its state that is
    "FedAvg({}, opt=Momentum(0.5, beta=0.9))": (0.5, "opt"),
    "FedAvg({}, opt=Adam(0.03))": (0.03, "opt"),
    "FedAvg({}, opt=Yogi(0.02))": (0.02, "opt"),
    "FedAvg({}, opt=Adagrad(0.01, beta1=0.5))": (0.01, "opt"),
    "FedAvgSM({})": (1.0, "opt"),
    "FedAvgSLM({})": (1.0, "opt"),
    "FedAvgSLMZ({})": (1.0, "opt"),
    "FedProx({}, opt=Adam(0.03))": (0.03, "opt"),
    "FedNTD({}, opt=Momentum(1.0, beta=0.5))": (1.0, "opt"),
    "MOON({}, opt=Yogi(0.02))": (0.02, "opt"),
    "FedACG({}, momentum=0.7)": (1.0, "m"),
    "DOMO(0.5, {}, opt=Momentum(0.5, beta=0.5))": (0.5, "momentum"),
    "DOMO(0.5, {}, opt=Momentum(0.5, beta=0.5), momentum='sent')": (0.5, "momentum"),
    "DOMO(0.5, {}, intra=True)": (1.0, "momentum"),
    "SCAFFOLD(LocalSGD(0.1, batch=16), opt=Adam(0.03))": (0.03, "opt"),
    "PruneFL(FedAvg({}, opt=Momentum(0.5, beta=0.9)), every=99)": (0.5, "opt"),
    "FedPara(FedAvg({}, opt=Momentum(0.5, beta=0.9)), rank=4)": (0.5, "opt"),
    "FT(FedAvg({}, opt=Momentum(0.5, beta=0.9)))": (0.5, "opt"),
    "Averaged(FedACG({}))": (1.0, "m"),
    "FedPer({}, stay=('3.bias',), opt=Adam(0.03))": (0.03, "opt"),
    "Ditto({}, opt=Momentum(0.5, beta=0.9))": (0.5, "opt"),
    "APFL({}, opt=Adam(0.03))": (0.03, "opt"),
}


def vectors(state: Any) -> list[Params]:
    """Those in what a server keeps of its optimiser."""
    return [state] if isinstance(state, Params) else list(state)


def looked_at(expression: str, **fields: Any) -> Any:
    """Rounds of LUAR over a method: before and after each the model, what the server keeps beside it, what was last."""
    rate, where = STATEFUL[expression]
    inner = parse(expression.format("LocalSGD(0.1, batch=16, momentum=0.6)"))
    method = LUAR(inner, 2, layers="tensors", select="round-robin", **fields)
    run = Simulation(method, mlp, handwriting()[0], sample=4, workers=1, plan="each")

    def kept() -> Any:
        state = run.server.inner
        while hasattr(state, "inner"):
            state = state.inner
        return vectors(getattr(state, where))

    with run.pool:
        for _ in range(5):
            x, last, before = method.model(run.server), run.server.last, kept()
            unsent = last.layout.named(run.server.recycled)
            run.step()
            yield rate, x, last, before, unsent, method.model(run.server), run.server.last, kept()


@pytest.mark.slow
@pytest.mark.parametrize("expression", STATEFUL)
def test_a_recycled_layer_steps_by_its_last_raw_update_and_nothing_else_that_is_kept_of_it_moves(
    expression: str,
) -> None:
    recycled = 0
    for rate, x, last, before, unsent, y, again, after in looked_at(expression):
        for name in unsent:
            recycled += 1
            assert torch.equal(again[name], last[name])
            assert last[name].any()
            assert torch.allclose(y[name], x[name] + rate * last[name], rtol=1e-6, atol=1e-8)
            assert all(torch.equal(a[name], b[name]) for a, b in zip(after, before, strict=True))
        for name in set(last.names) - set(unsent):
            assert any(not torch.equal(a[name], b[name]) for a, b in zip(after, before, strict=True))
    assert recycled == 8


@pytest.mark.slow
@pytest.mark.parametrize("expression", STATEFUL)
def test_with_past_false_what_is_recycled_goes_through_the_momentum_again(expression: str) -> None:
    moved = 0
    for _, _, last, before, unsent, _, _, after in looked_at(expression, past=False):
        for name in unsent:
            moved += any(not torch.equal(a[name], b[name]) for a, b in zip(after, before, strict=True))
            assert last[name].any()
    assert moved == 8


def test_three_rounds_over_momentum_are_those_worked_out_by_hand() -> None:
    # One client whose update is what it is told: kernel a (x = 1) and kernel b (x = 10); m <- .5 m + d, x + .1 m.
    #   round 1: a sent 2: m = 2, x = 1.2; b sent 4: m = 4, x = 10.4
    #   round 2: a recycled: x = 1.2 + .1 * 2 = 1.4, m = 2; b sent 6: m = 8, x = 11.2
    #   round 3: a sent 8: m = 9, x = 2.3; b recycled: x = 11.2 + .1 * 6 = 11.8, m = 8
    # Through the momentum: a 1.2, 1.5 (m = 3), 2.45 (m = 9.5); b 10.4, 11.2, 12.2 (m = 10).
    names = ("a", "b")
    start = Params.of([("a", torch.tensor([[1.0]])), ("b", torch.tensor([[10.0]]))])
    for past, expected in (
        (True, [(1.2, 10.4), (1.4, 11.2), (2.3, 11.8)]),
        (False, [(1.2, 10.4), (1.5, 11.2), (2.45, 12.2)]),
    ):
        luar = LUAR(FedAvg(opt=Momentum(0.1, beta=0.5)), 1, past=past)
        begun = luar.init(start, 1, Key(0))
        server = begun.server
        for sent, point in zip(({"a": 2.0, "b": 4.0}, {"b": 6.0}, {"a": 8.0}), expected, strict=True):
            update = Params.of((name, torch.tensor([[sent[name]]])) for name in names if name in sent)
            server = luar.server(server, begun.view, fedavg.Reply(update), Key(0, 1))
            assert luar.model(server).flat.tolist() == pytest.approx(point)


def test_clients_of_domo_infer_the_momentum_that_the_server_keeps_where_layers_are_recycled() -> None:
    method = LUAR(parse("DOMO(0.5, LocalSGD(0.1, momentum=0.6), opt=Momentum(0.5, beta=0.5))"), 1, select="round-robin")
    run = Simulation(method, mlp, handwriting()[0], sample=4, workers=1, plan="each")
    with run.pool:
        run.step()
        for _ in range(4):
            kept = run.server.inner.momentum
            run.step()  # which begins with a broadcast of the model that this momentum made
            held = run.stream.view.state.inner.momentum
            assert torch.allclose(held.flat, kept.flat, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "inner", ["FedAvg(opt=SGD(0.7))", "FedAvg(opt=MajorityVote(0.01))", "FedMut()", "SCAFFOLD()", "FedDC()", "FedGen()"]
)
def test_over_a_server_that_keeps_nothing_of_the_kind_both_ways_are_one_run_bit_for_bit(inner: str) -> None:
    runs = [
        trained(LUAR(parse(inner, {"lr": 0.1, "batch": 16}), 1, past=past), mlp, rounds=4) for past in (True, False)
    ]
    assert torch.equal(runs[0].params.flat, runs[1].params.flat)


@dataclass(frozen=True)
class Heavy(FedAvg):
    """Of one's own, with a momentum that is no optimiser in a field."""

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return super().init(x, num_clients, key)._replace(server=HeavyServer(x, x.zeros()))

    def server(self, server: Any, view: Any, mean: Any, key: Key) -> Any:
        m = server.m * 0.5 + mean.update
        return HeavyServer(server.x + m, m)


class HeavyServer(NamedTuple):
    """What the server keeps."""

    x: Params
    m: Params


@dataclass(frozen=True)
class Counting(Optimizer):
    """Of one's own: a state with a number and a vector, and a rate under another name."""

    step_size: float = 0.5

    @property
    def rate(self) -> float:
        return self.step_size

    def init(self, x: Params) -> Any:
        return {"steps": 0, "m": [x.zeros()]}

    def step(self, x: Params, delta: Params, state: Any) -> Any:
        steps, m = state["steps"] + 1, state["m"][0] * 0.9 + delta
        return x + m * (self.step_size / steps), {"steps": steps, "m": [m]}


@dataclass(frozen=True)
class Nameless(Counting):
    """The same, which does not say its rate."""

    rate = Optimizer.rate


@dataclass(frozen=True)
class Loose(Counting):
    """The same, with a vector that is no Params."""

    def init(self, x: Params) -> Any:
        return x.flat.clone()


def test_an_optimiser_of_ones_own_is_gone_past_by_its_rate_and_its_vectors_alone() -> None:
    #   round 1: a sent 2: m = 2, x = 1 + 2 * .5 = 2; b sent 4: m = 4, x = 10 + 4 * .5 = 12
    #   round 2, step 2: a recycled: x = 2 + .5 * 2 = 3, m = 2; b sent 6: m = 9.6, x = 12 + 9.6 * .25 = 14.4
    start = Params.of([("a", torch.tensor([[1.0]])), ("b", torch.tensor([[10.0]]))])
    luar = LUAR(FedAvg(opt=Counting()), 1)
    begun = luar.init(start, 1, Key(0))
    server = luar.server(begun.server, begun.view, fedavg.Reply(updates(2.0, 4.0)), Key(0, 1))
    server = luar.server(server, begun.view, fedavg.Reply(updates(2.0, 6.0).only(["b"])), Key(0, 2))
    assert luar.model(server).flat.tolist() == pytest.approx([3.0, 14.4])
    assert server.inner.opt["steps"] == 2
    assert server.inner.opt["m"][0].flat.tolist() == pytest.approx([2.0, 9.6])


def updates(*values: float) -> Params:
    return Params.of((name, torch.tensor([[value]])) for name, value in zip("ab", values, strict=True))


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (
            Heavy(),
            r"LUAR over Heavy: its server keeps x and m, each like the model, .* write Heavy\.bypass .*past=False",
        ),
        (
            FedAvg(opt=Nameless()),
            r"Nameless\(0\.5\) does not say at which rate .* a field lr, or a property rate",
        ),
        (
            FedAvg(opt=Loose()),
            r"Loose\(0\.5\) keeps a tensor, .* keep Params like the model, or .*past=False",
        ),
    ],
)
def test_what_does_not_say_how_a_layer_goes_past_it_is_refused_at_once(inner: Any, said: str) -> None:
    for method in (LUAR(inner, 1), LUAR(Averaged(inner), 1)):
        with pytest.raises(CombinationError, match=said):
            Simulation(method, mlp, handwriting()[0])
    Simulation(LUAR(inner, 1, past=False), mlp, handwriting()[0])


def test_clients_repeat_no_step_of_a_server_that_keeps_something() -> None:
    for opt in (Momentum(), Adam(), Yogi(), Adagrad()):
        for past in (True, False):
            with pytest.raises(CombinationError, match=r"clients repeat the server's step, which they can over FedAvg"):
                LUAR(FedAvg(opt=opt), 1, both=True, past=past)
