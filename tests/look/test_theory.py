"""The theorems' quantities by hand, by numpy, and by a literal listing of DOMO; and measured of real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Size, nn

from thinwire.dice import seeded
from thinwire.errors import RunError
from thinwire.federated.setting import Setting
from thinwire.key import Key
from thinwire.local import LocalSGD
from thinwire.look.constants import Constants, PathSlot, Point, Trained, descend, measure, ways
from thinwire.look.recycling import beyond_sgd
from thinwire.look.theorems import (
    Recycling,
    Steps,
    def_,
    domo_round,
    errors_of,
    flss,
    intrinsic,
    largest_loss,
    lbgm,
    luar,
    recycled_noise,
    steps_of,
)
from thinwire.look.theory import Federated, Theory
from thinwire.params import Layout, Params
from thinwire.studies import KINDS
from thinwire.studies.read import RecordedRun, arms
from thinwire.task import Supervised


def tasks(count: int = 3, examples: int = 12) -> tuple[list[Any], list[np.ndarray], list[np.ndarray]]:
    """Clients with classes of their own shares, and their numbers."""
    draw = np.random.default_rng(2)
    x = [draw.normal(size=(examples, 4)).astype("f") + k for k in range(count)]
    y = [draw.integers(0, 3, examples) for _ in range(count)]
    return [Supervised(torch.tensor(a), torch.tensor(b)) for a, b in zip(x, y, strict=True)], x, y


def softmax_gradients(w: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cross-entropy of each example, and its gradient [n, 15]: weights [3, 4] row by row, then biases."""
    z = x.astype(float) @ w.T + b
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    off = p - np.eye(3)[y]
    loss = -np.log(p[np.arange(len(y)), y])
    return loss, np.concatenate([(off[:, :, None] * x[:, None, :]).reshape(len(y), -1), off], 1)


def seen(trainer: LocalSGD, batches: int = 4, sketch: Any = None) -> tuple[Constants, list[np.ndarray], Any, Any]:
    """Three models, measured; their numbers; and the clients' data."""
    clients, x, y = tasks()
    slot = PathSlot(nn.Linear(4, 3))
    draw = torch.Generator().manual_seed(1)
    models = [torch.randn(15, generator=draw) for _ in range(3)]
    weights = [0.5, 0.25, 0.25]
    given = [(t, Params(slot.layout, m)) for t, m in enumerate(models)]
    found = Constants(measure(slot, clients, weights, trainer, given, batches, sketch=sketch), weights)
    return found, [m.double().numpy() for m in models], x, y


def by_numpy(models: list[np.ndarray], x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """F_k [3 models, 3 clients], and their gradients [3, 3, 15]."""
    pairs = [[softmax_gradients(m[:12].reshape(3, 4), m[12:], a, b) for a, b in zip(x, y, strict=True)] for m in models]
    return np.array([[f.mean() for f, _ in row] for row in pairs]), np.array(
        [[g.mean(0) for _, g in row] for row in pairs]
    )


def test_constants_are_those_of_the_losses_by_numpy() -> None:
    found, models, x, y = seen(LocalSGD(0.1, batch=None))
    losses, g = by_numpy(models, x, y)
    w = np.array([0.5, 0.25, 0.25])
    assert np.array([p.losses for p in found.points]) == pytest.approx(losses, rel=1e-5)
    mean = np.einsum("k,tkd->td", w, g)
    assert found.loss(found.points[1]) == pytest.approx(losses[1] @ w, rel=1e-5)
    assert found.mean_square == pytest.approx((mean**2).sum(1).mean(), rel=1e-4)
    assert found.whole == pytest.approx((mean**2).sum(1).max(), rel=1e-4)
    far = ((g - mean[:, None]) ** 2).sum(2)
    assert found.apart() == pytest.approx((far @ w).max(), rel=1e-4)
    assert found.farthest == pytest.approx(far.max(), rel=1e-4)
    alike = ((g - g.mean(1, keepdims=True)) ** 2).sum(2).mean(1).max()
    assert found.apart([1 / 3] * 3) == pytest.approx(alike, rel=1e-4)
    steps = [(g[t + 1] - g[t], models[t + 1] - models[t]) for t in range(2)]
    turns = [np.linalg.norm(dg, axis=1) / np.linalg.norm(dx) for dg, dx in steps]
    assert found.smoothness == pytest.approx(np.max(turns), rel=1e-4)
    bends = [dg @ dx / (dx @ dx) for dg, dx in steps]
    assert found.convexity == pytest.approx(max(0, np.min(bends)), rel=1e-3)
    assert np.min(bends) > 0  # cross-entropy of a linear model is convex
    assert found.noise == 0
    assert found.second == pytest.approx((g**2).sum(2).max(), rel=1e-4)


def test_the_noise_of_a_mini_batch_is_the_variance_of_an_example_s_gradient() -> None:
    found, models, x, y = seen(LocalSGD(0.1, batch=1), batches=80)
    for point, m in zip(found.points, models, strict=True):
        for k in range(3):
            _, g = softmax_gradients(m[:12].reshape(3, 4), m[12:], x[k], y[k])
            variance, second = ((g - g.mean(0)) ** 2).sum(1).mean(), (g**2).sum(1).mean()
            assert point.noise[k] == pytest.approx(variance, rel=0.35)
            assert point.second[k] == pytest.approx(second, rel=0.35)
    assert found.noise == max(max(point.noise) for point in found.points)


def test_a_sketch_is_of_a_client_s_gradient_less_the_mean() -> None:
    a = np.random.default_rng(3).normal(size=(15, 4)).astype("f")
    found, models, x, y = seen(LocalSGD(0.1, batch=None), sketch=lambda v: v.flat @ torch.tensor(a))
    _, g = by_numpy(models, x, y)
    w = np.array([0.5, 0.25, 0.25])
    apart = (g - np.einsum("k,tkd->td", w, g)[:, None]) @ a
    expected = np.einsum("k,tkd->t", w, apart**2)
    assert [p.sketched for p in found.points] == pytest.approx(expected.tolist(), rel=1e-4)


def test_descent_takes_no_step_that_raises_the_loss() -> None:
    tried = list[float]()

    def bowl(x: torch.Tensor) -> Trained:
        tried.append(float(x @ x))
        return Trained(tried[-1], 2 * x)

    start = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert descend(bowl, start, 0, 0.1) == 25.0
    assert descend(bowl, start, 40, 3.0) < 1e-6  # the first rate leads away
    assert max(tried) > 25.0


def test_ways_are_the_models_after_every_step_of_sgd() -> None:
    clients, x, y = tasks(2)
    slot = PathSlot(nn.Linear(4, 3))
    start = Params(slot.layout, torch.zeros(15))
    paths = ways(slot, clients, start, LocalSGD(0.5, batch=None, epochs=3, momentum=0.5), seed=0, round=1)
    for path, a, b in zip(paths, x, y, strict=True):
        w, m, expected = np.zeros(15), np.zeros(15), [np.zeros(15)]
        for _ in range(3):
            m = 0.5 * m + softmax_gradients(w[:12].reshape(3, 4), w[12:], a, b)[1].mean(0)
            w = w - 0.5 * m
            expected.append(w)
        assert torch.stack(path).numpy() == pytest.approx(np.array(expected), abs=1e-5)


def constants(**values: float) -> Constants:
    """Constants as if they had been measured, and F = 3 at the start."""
    apart = values.pop("apart", 0.0)
    fixed = {**values, "loss": lambda *_: 3.0, "apart": lambda *_: apart}
    start = Point(0, Params(Layout(("a",), (Size([1]),)), torch.zeros(1)), [3.0], [torch.zeros(1)], [0.0], [0.0])
    return type("Constants", (Constants,), fixed)([start], [1.0])


def of(rows: list[Any]) -> dict[str, Any]:
    return {row.name: row for row in rows}


def test_bound_3_of_lbgm_by_hand() -> None:
    measured = constants(smoothness=2.0, noise=0.5, apart=0.25, mean_square=1.5)
    rows = lbgm(measured, Steps(10, 2.0, 0.1), 0.01)
    terms = [row.value for row in rows if row.meaning == "a term of bound (3)"]
    assert terms == pytest.approx([12.0, 0.16, 0.8, 0.1, 0.4])
    bound = of(rows)["bound (3)"]
    assert (bound.value, bound.beside) == (pytest.approx(13.46), 1.5)
    assert (of(rows)["eta beta"].value, of(rows)["eta beta"].beside) == pytest.approx((0.2, 0.15811), rel=1e-4)


def test_delta_is_what_a_recycled_client_loses_over_its_recycled_layers() -> None:
    one = {"client": 0, "field": "update", "rates": 0.5, "norm": 2.0, "sin2": 0.25, "recycled": True}
    rounds = [
        # d = 4 and 2: 16 / 4 + 4 / 4; the layer that was sent loses nothing, nor does one without a look-back.
        {"looks": [one, {**one, "norm": 1.0}, {**one, "norm": 50.0, "recycled": False}, {**one, "sin2": None}]},
        {"looks": [{**one, "client": 1}]},
        {},
    ]
    assert largest_loss(rounds) == 5.0
    assert largest_loss([]) == 0.0
    assert steps_of([{}, {"change": {"norm": 1.0, "of": "server"}}]) is None
    lines = [{"change": {"steps": 4.0, "rates": 0.4}}, {"change": {"steps": 6.0, "rates": 1.2}}, {}]
    assert steps_of(lines) == (3, 5.0, pytest.approx(0.16))


LAYOUT = Layout(("a", "b"), (Size([2]), Size([1])))


def test_the_noise_of_recycled_layers_is_the_last_sent_change_less_today_s() -> None:
    rows = [torch.tensor(r) for r in ([3.0, 4.0, 1.0], [0.0, 0.0, 2.0], [3.0, 0.0, 2.0], [1.0, 1.0, 1.0])]
    unsent = [[], ["a"], ["a"], ["b"]]
    change = {"steps": 2.0, "rates": 1.0}
    lines = [{"round": t + 1, "unsent": u, "change": change} for t, u in enumerate(unsent)]
    # a of round 1 less a of rounds 2 and 3: 5^2 and 4^2; b of round 3 less that of round 4: 1. eta = 1/2.
    assert recycled_noise(lines, LAYOUT, rows) == [
        (2, pytest.approx(100), pytest.approx(5 / 2), 1),
        (3, pytest.approx(64), pytest.approx(4 / 13**0.5), 2),
        (4, pytest.approx(4), pytest.approx(1 / 3**0.5), 1),
    ]


def test_lemma_3_1_of_luar_by_hand() -> None:
    measured = constants(smoothness=2.0, noise=0.5, farthest=0.25, mean_square=1.0)
    rounds = [Recycling(2, 6.0, 0.5, 1), Recycling(3, 2.0, 0.25, 2)]
    rows = of(luar(measured, Steps(4, 2.0, 0.1), rounds, [0.5, 0.25], 0.125))
    assert (rows["||n_t||^2"].value, rows["||n_t||^2"].beside) == (2.0, pytest.approx(48.0))
    assert (rows["kappa"].value, rows["mean kappa"].value, rows["k"].value) == (0.5, 0.375, 2.0)
    assert rows["eta"].beside is None  # the theorem has no rate where kappa is 1/16 or more
    rows = of(luar(measured, Steps(4, 2.0, 0.1), [], [0.03125], 0.0))
    assert rows["eta"].beside == pytest.approx(0.5 / (6 * 5.477226 * 4))


def test_b_and_c_of_flss_by_hand() -> None:
    measured = constants(smoothness=1.0, convexity=0.5, second=4.0)
    rows = of(flss(measured, Steps(9, 2.0, 0.1), 0.1, 0.25, 4))
    assert rows["B"].value == pytest.approx(4 / 3)
    assert [rows[f"C, {part}"].value for part in ("local steps", "clients", "subspace")] == pytest.approx([50, 1.6, 10])
    assert rows["C"].value == pytest.approx(61.6)
    assert (rows["eta"].value, rows["eta"].beside) == (0.1, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("alpha", "beta", "mu_s", "mu_l"), [(1.0, 0.9, 0.9, 0.6), (0.1, 0.9, 0.9, 0.6), (0.5, 0.0, 0.8, 0.0)]
)
def test_the_inconsistency_of_domo_is_that_of_the_listing(alpha: float, beta: float, mu_s: float, mu_l: float) -> None:
    """Algorithm 4 (Option I, momenta reset), on quadratics, with y-hat and z written as Lemma 4.4.1 defines them."""
    draw, eta, steps, clients = np.random.default_rng(0), 0.05, 4, 3
    curves, minima = draw.uniform(0.5, 2, (clients, 5)), draw.normal(size=(clients, 5))
    x0 = draw.normal(size=5)
    x, m_r, every = x0.copy(), np.zeros(5), np.zeros(5)  # every: the sum of the means of all m so far
    for _ in range(5):
        means, paths, sums = [], [], []
        for k in range(clients):
            y, m = x - eta * beta * steps * m_r, np.zeros(5)
            path, momenta = [y], []
            for _ in range(steps):
                m = mu_l * m + curves[k] * (y - minima[k])
                y = y - eta * m
                path.append(y)
                momenta.append(m)
            paths.append(path)
            sums.append(momenta)
        means = np.mean(sums, 0)  # m_(r, p+1), its mean over clients
        consistent, free, apart = [], [], []
        for p in range(steps):
            hat = [x0 - alpha * eta / (1 - mu_s) * (every + means[: max(0, q)].sum(0)) for q in (p, p - 1)]
            hat[1] = hat[0] if p == 0 else hat[1]  # the local momentum is zero there
            z = hat[0] / (1 - mu_l) - mu_l / (1 - mu_l) * hat[1]
            now = np.mean([path[p] for path in paths], 0)
            consistent.append(((z - now) ** 2).sum())
            free.append(((z - now - eta * beta * steps * m_r) ** 2).sum())  # from where nothing is fused
            apart.append(np.mean([((path[p] - now) ** 2).sum() for path in paths]))
        found = domo_round(
            [[torch.tensor(y) for y in path] for path in paths],
            torch.tensor(-eta * steps * m_r),
            alpha,
            beta,
            mu_s,
            mu_l,
        )
        assert found == pytest.approx((np.mean(consistent), np.mean(free), np.mean(apart)), rel=1e-9, abs=1e-15)
        every = every + means.sum(0)
        m_r = mu_s * m_r + means.mean(0)
        x = x - alpha * eta * steps * m_r


def test_rho_is_what_is_left_of_the_loss_in_the_worst_and_the_middle_subspace() -> None:
    x = Params(Layout(("a",), (Size([2]),)), torch.zeros(2))
    point = Point(0, x, [2.0], [torch.tensor([3.0, 4.0])], [1.5], [0.0], 7.0)
    rows = intrinsic(Constants([point], [1.0]), [1.0, 0.2, 0.4, 0.6], 0.5, 3, 8)
    assert [(r.value, r.beside) for r in rows[:2]] == [(0.5, 0.25), (0.2, 0.25)]
    assert (rows[2].value, rows[2].beside) == (7.0, 1.5)
    assert [(r.name, r.value) for r in rows[3:]] == [("rho^E", 0.125), ("C", 7 / 25)]


def test_the_detached_error_is_that_of_the_residuals() -> None:
    e = np.random.default_rng(5).normal(size=(2, 3, 6))  # evaluations, workers
    lines = [
        {"residual": (each**2).sum(1).mean() ** 0.5, "distance": (each.mean(0) ** 2).sum() ** 0.5, "lam": lam}
        for each, lam in zip(e, (0.3, 0.8), strict=True)
    ]
    expected = [((each.mean(0) - lam * each) ** 2).sum(1).mean() for each, lam in zip(e, (0.3, 0.8), strict=True)]
    found = errors_of([*lines, {}])
    assert found is not None
    assert found == pytest.approx((np.mean(expected), (e.mean(1) ** 2).sum(1).mean()))
    assert errors_of([{}]) is None


def test_theorem_2_4_1_of_def_by_hand() -> None:
    rows = of(def_(constants(noise=1.0, whole=4.0), (0.25, 0.5), 2, 0.5, 0.1, 2.0))
    assert rows["its bound"].value == pytest.approx(0.44545, rel=1e-4)  # .01 * 2.25 / (sqrt(1.5) - 1)^2
    assert rows["lambda"].beside == pytest.approx(8.5 / 9)
    assert (rows["sigma^2 / M^2"].value, rows["||e - lambda e_k||^2"].beside) == (0.25, 0.5)
    assert of(def_(constants(noise=1.0, whole=4.0), (0.0, 0.0), 2, 0.5, 0.1, 1.0))["its bound"].value == 0
    assert of(def_(constants(noise=1.0, whole=4.0), (0.0, 0.0), 2, 0.5, 0.1, None))["its bound"].value is None


METHODS = (
    "FedAvg(up=LBGM(threshold=0.9))",
    "LUAR(FedAvg(), recycle=1, layers='tensors')",
    "FLSS(FedAvg(), rank=1, start=2, every=2)",
    "DOMO(beta=0.9, local=LocalSGD(0.1, steps=3, momentum=0.6))",
    "Intrinsic(20)",
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each method that has a theorem, everything recorded."""
    out = tmp_path_factory.mktemp("theory") / "study"
    study = KINDS["federated"](
        METHODS, data="digits", clients=3, rounds=3, setting=Setting(record="all", evaluate_every=1)
    )
    study.run(out)
    return out


def run_of(study: Path, place: int) -> RecordedRun:
    return arms([study])[place].runs[0]


@pytest.mark.slow
def test_every_method_that_has_a_theorem_fills_it_in(study: Path, tmp_path: Path) -> None:
    look = Theory(points=3, batches=1, descent=2, draws=2)
    for place, name in enumerate(("LBGM", "LUAR", "FLSS", "DOMO", "Intrinsic")):
        reading = look.read(run_of(study, place))
        assert {row.theorem.partition(",")[0] for row in reading.rows} == {name}
        for row in reading.rows:
            assert row.value is not None
            assert row.value >= 0
        assert len(json.dumps(look.values(reading))) > 100
        table, sentence = look.rows(reading)
        assert len(table.cells) == len(reading.rows)  # type: ignore[union-attr]
        assert "largest that were seen" in str(sentence)
    (path,) = look.draw(reading, tmp_path)
    assert path.exists()


@pytest.mark.slow
def test_the_steps_of_a_round_lead_to_the_model_that_the_run_recorded(study: Path) -> None:
    there = Federated(Theory(), run_of(study, 3))
    method: Any = there.method
    for number in (0, 2):
        x = there.model(number).flat.double()
        momentum = x - there.model(number - 1).flat.double() if number else torch.zeros_like(x)
        fused = Params(there.slot.layout, (x + 0.9 * momentum).float())
        paths = there.trajectories(fused, number + 1)
        assert [len(path) for path in paths] == [4, 4, 4]
        mean = sum(w * (path[-1] - path[0]) for w, path in zip(there.weights, paths, strict=True))
        after = x + method.opt.beta * momentum + mean
        assert after.numpy() == pytest.approx(there.model(number + 1).flat.double().numpy(), abs=1e-5)


@pytest.mark.slow
def test_a_run_that_lacks_what_a_theorem_needs_is_refused(study: Path) -> None:
    run = run_of(study, 0)
    bare = RecordedRun(
        run.path, run.about, [{k: v for k, v in r.items() if k != "looks"} for r in run.rounds], run.summary
    )
    with pytest.raises(RunError, match="tests of LBGM: train it with --record all"):
        Theory(points=2).read(bare)
    gone = RecordedRun(
        run.path, run.about, [{k: v for k, v in r.items() if k != "model"} for r in run.rounds], run.summary
    )
    with pytest.raises(RunError, match="--record models"):
        Theory(points=2).read(gone)


@pytest.mark.slow
def test_def_s_constants_are_those_of_its_first_and_its_last_model(tmp_path: Path) -> None:
    study = KINDS["data-parallel"](
        ("DEF(16)", "EF21(16)", "DEF(16, steps=2)"), data="digits", workers=2, steps=4, evaluate_every=2, lr=0.05
    )
    study.run(tmp_path / "study")
    run, other, of_rounds = (arm.runs[0] for arm in arms([tmp_path / "study"]))
    problem = study.problem(0)
    whole = []
    for trained in (False, True):
        with seeded(Key(0).number("model") % (1 << 32)):
            module = problem.model() if not isinstance(problem.model, nn.Module) else problem.model
        if trained:
            module.load_state_dict(load_file(run.path / "model.safetensors"))
        task: Any = problem.tasks[0]
        batch = task.batch(torch.arange(len(task)))
        nn.functional.cross_entropy(module(batch[0]), batch[1]).backward()
        whole.append(sum(float(p.grad.double().square().sum()) for p in module.parameters() if p.grad is not None))
        module.zero_grad()
    look = Theory(batches=2)
    reading = look.read(run)
    rows = of(reading.rows)
    assert rows["M^2"].value == pytest.approx(max(whole), rel=1e-4)
    assert rows["sigma^2"].value is not None
    assert rows["sigma^2"].value > 0
    assert (rows["||e - lambda e_k||^2"].value, rows["||e - lambda e_k||^2"].beside) == errors_of(run.rounds)
    assert [path.name for path in look.draw(reading, tmp_path)] == ["theory.png"]
    for another, said in (
        (other, "methods DEF has a theorem here"),
        (of_rounds, "every step at once"),
    ):
        with pytest.raises(RunError, match=said):
            look.read(another)


@pytest.mark.parametrize(
    ("about", "by"),
    [
        ({"method": "FedAvg(local=LocalSGD(0.1))"}, None),
        ({"method": "LUAR(FedAvg(local=LocalAdamW(0.01)), recycle=1)"}, "LocalAdamW(0.01)"),
        ({"method": "FedAvg(local=LocalSGD(0.1, momentum=0.5))"}, "LocalSGD(0.1, momentum=0.5)"),
        ({"method": "Mine(local=LocalAdamW(0.01))"}, None),
        ({"method": "DEF(64)", "kind": "data-parallel", "momentum": 0.9}, "SGD with a momentum of 0.9"),
        ({"method": "DEF(64)", "kind": "data-parallel", "momentum": 0.9, "adamw": True}, "AdamW"),
        ({"method": "DEF(64)", "kind": "data-parallel", "momentum": 0.0}, None),
    ],
)
def test_bounds_of_plain_sgd_are_said_to_be_so_of_runs_by_another_optimiser(
    about: dict[str, object], by: str | None
) -> None:
    run = RecordedRun(Path(), about, [], None)
    said = [] if by is None else [f"note: the bounds are those of plain SGD, and this run was trained by {by}"]
    assert beyond_sgd(run) == said
