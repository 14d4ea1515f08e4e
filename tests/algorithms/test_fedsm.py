"""FedSM and its kin: three models a client, and which of them an example is for."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from problems import handwriting, mlp, normed
from thinwire import Ensemble, FedAvg, FedSM, FedSMExtra, LocalAdam, LocalSGD, Params, Simulation, Supervised
from thinwire.algorithms.fedsm import Change, Held, Reply, Server
from thinwire.algorithms.selector import Labelled, Mixture, Nearest, join_selector
from thinwire.algorithms.softpull import SiteModel
from thinwire.errors import CombinationError, RunError
from thinwire.federated.messages import Form
from thinwire.key import Key
from thinwire.local import Memory
from thinwire.models import linear
from thinwire.report.table import markdown, rows
from thinwire.studies.read import arms
from thinwire.wire import Several

LOCAL = LocalSGD(0.1, batch=16)
WG, WS = 910, 64 * 64 + 64 + 64 * 3 + 3  # the model; a selector of three outputs


def run_of(method: tw.Algorithm, rounds: int, model: Any = mlp, tasks: Any = None, **more: Any) -> Simulation:
    run = Simulation(method, model, handwriting()[0][:3] if tasks is None else tasks, workers=1, plan="each", **more)
    with run.pool:
        for _ in range(rounds):
            run.step(evaluate=False)
    return run


# -- training -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [mlp, normed])
def test_the_global_model_is_that_of_fedavg_bit_for_bit(model: Any) -> None:
    global_model = run_of(FedSM(LOCAL), 2, model).result().module.state_dict()
    for name, value in run_of(FedAvg(LOCAL), 2, model).result().module.state_dict().items():
        assert torch.equal(value, global_model[name])


IN_PLACE = {  # of SoftPull: Table 14 of the thesis, and Ditto; what is trained alike is sent once
    "FT": "FT(FedAvg({local}), epochs=2.0)",
    "APFL": "APFL({local}, adaptive=True)",
    "Ditto": "Ditto({local}, lam=0.5)",
    "Per-FedAvg": "PerFedAvg({local}, alpha=0.1)",
    "pFedMe": "pFedMe({local}, lam=2.0, eta=0.25, weights='examples')",
    "Ditto, trained in another way": "Ditto({other}, lam=0.5)",
    "APFL with an optimiser of its own": "APFL({local}, opt=Adam(0.03))",
}


@pytest.mark.parametrize("model", [mlp, normed])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_softpulls_place_a_method_makes_the_models_that_it_makes_alone(name: str, model: Any) -> None:
    """To the bit, as it is FedAvg's global model; a client that was never drawn has what it has alone too."""
    alone = IN_PLACE[name].format(local="LocalSGD(0.1, batch=16)", other="LocalAdam(0.01, batch=8)")
    methods = [FedAvg(LOCAL), tw.parse(alone), tw.parse(f"FedSM(LocalSGD(0.1, batch=16), personal={alone})")]
    fedavg, method, fedsm = (run_of(each, 2, model, sample=2, seed=3, dropout=0.2).result() for each in methods)
    pairs = [(fedavg.module, fedsm.module), *((method.personal(k), fedsm.personal(k)) for k in range(3))]
    for one, other in pairs:
        values = other.state_dict()
        assert all(torch.equal(value, values[layer]) for layer, value in one.state_dict().items())


@pytest.mark.parametrize(("method", "up", "down"), [("FT(FedAvg())", 1, 1), ("Ditto()", 2, 1), ("pFedMe()", 3, 2)])
def test_a_method_in_softpulls_place_sends_what_its_models_are_made_of(method: str, up: int, down: int) -> None:
    """Models beside a selector: FT's are made of examples, Ditto's are sent up, pFedMe's w goes both ways."""
    for entry in run_of(tw.parse(f"FedSM(personal={method})"), 1).ledger:
        assert entry.floats == (up if entry.direction == "up" else down) * WG + WS


def test_the_selector_chooses_among_the_models_of_a_method_in_softpulls_place() -> None:
    result = run_of(FedSM(LOCAL, personal=tw.Ditto(LOCAL)), 2).result()
    inputs = handwriting()[1].batch(torch.arange(40))[0]
    shares = result.beside["selector"](inputs).softmax(1)
    expected = torch.stack([result.personal(int(k))(x[None])[0] for k, x in zip(shares.argmax(1), inputs, strict=True)])
    torch.testing.assert_close(result.predict(inputs), expected)


def test_models_made_of_examples_are_trained_once_for_all_predictions() -> None:
    run = run_of(FedSM(LOCAL, personal=tw.FT(FedAvg(LOCAL))), 1)
    asked, adapt = [], run.adapt
    run.adapt = lambda client, kept: asked.append(client) or adapt(client, kept)  # type: ignore[method-assign]
    result, inputs = run.result(), handwriting()[1].batch(torch.arange(40))[0]
    assert torch.equal(result.predict(inputs), result.predict(inputs))
    assert sorted(asked) == sorted(set(result.selected(inputs).tolist()))
    run.step(evaluate=False)
    with pytest.raises(ValueError, match="this result is of round 1"):
        result.predict(inputs)


def test_what_clients_send_of_their_own_models_is_never_shortened() -> None:
    with pytest.raises(CombinationError, match="own/state is a model as it is, and clip= bounds changes"):
        Simulation(FedSM(LOCAL, personal=tw.Ditto(LOCAL)), mlp, handwriting()[0][:3], clip=1.0)


def layers(**named: list[float]) -> Params:
    return Params.of([(name.replace("_", "."), torch.tensor(value)) for name, value in named.items()])


def test_the_servers_step_is_that_worked_out_by_hand() -> None:
    first = Held(-1, SiteModel(layers(model_w=[1.0, 2.0]), layers(v=[4.0])))
    held = Several([Held(0, SiteModel(layers(model_w=[0.0, 4.0]), layers(v=[2.0])))], first)
    x, no = layers(model_w=[1.0, 1.0], selector_w=[5.0]), layers(model_w=[0.0]).only(())
    server = Server(x, None, Memory((no, no), 0), first, held, 3)
    own = Change(
        {0: layers(model_w=[2.0, 2.0]), 1: layers(model_w=[1.0, 0.0])}, {0: layers(v=[8.0]), 1: layers(v=[6.0])}
    )
    mean = Reply(layers(model_w=[0.5, -1.0], selector_w=[2.0]), no, no, own)
    after = FedSM(lam=0.75).server(server, None, mean, tw.Key(0, 4))
    assert after.x.flat.tolist() == [1.5, 0.0, 7.0]
    # client 0: 0 + 2, 4 + 2; client 1 begins at 1, 2: 1 + 1, 2 + 0. Then .75 and .25 of (2, 6) and (2, 2), of 8 and 6
    assert [(one.client, one.model.x.flat.tolist(), one.model.buffers.flat.tolist()) for one in after.held] == [
        (0, [2.0, 5.0], [7.5]),
        (1, [2.0, 3.0], [6.5]),
    ]


@pytest.mark.parametrize(("form", "selectors"), [("batch", 1), ("epoch", 3)])
def test_a_round_takes_two_models_and_one_or_three_selectors_each_way(form: Any, selectors: int) -> None:
    for entry in run_of(FedSM(LOCAL, form=form), 1).ledger:
        assert entry.floats == 2 * WG + selectors * WS


def test_of_both_models_of_a_round_one_is_the_clients_own() -> None:
    result = run_of(FedSM(LOCAL), 2).result()
    for personal, everything in (
        (result.personal_up, result.bytes_up),
        (result.personal_down, result.bytes_down),
    ):
        assert 2 * 3 * 3640 <= personal <= 2 * 3 * 3700  # rounds, clients, 910 parameters
        assert everything > 2 * personal
    assert result.summary()["up_personal"] == result.personal_up


def test_an_epoch_of_the_selector_is_one_step_of_adam_along_the_whole_gradient() -> None:
    method = FedSM(LOCAL, selecting=LocalAdam(0.01), form="epoch", selector="linear", weights="uniform")
    tasks = handwriting()[0][:2]
    run = run_of(method, 2, tasks=tasks)
    begun = run.slot.module.selector[1]
    start = {name: run.start.server.x[f"selector.1.{name}"].clone() for name in ("weight", "bias")}
    assert begun.weight.shape == (2, 64)
    # the same with torch.optim.Adam, whose moments are averaged over the two clients after each round
    state: dict[str, Any] = {}
    for _ in range(2):
        ends = []
        for label, task in enumerate(tasks):
            layer = nn.Linear(64, 2)
            layer.load_state_dict(start)
            adam = torch.optim.Adam(layer.parameters(), lr=0.01)
            for parameter, (m, v, steps) in zip(layer.parameters(), state.values(), strict=False):
                adam.state[parameter] = {
                    "step": torch.tensor(float(steps)),
                    "exp_avg": m.clone(),
                    "exp_avg_sq": v.clone(),
                }
            inputs, _ = task.batch(torch.arange(len(task)))
            nn.functional.cross_entropy(layer(inputs.flatten(1)), torch.full((len(task),), label)).backward()
            adam.step()
            ends.append((layer, [adam.state[p] for p in layer.parameters()]))
        start = {name: sum(layer.state_dict()[name] for layer, _ in ends) / 2 for name in start}
        pairs = zip(*(states for _, states in ends), strict=True)
        state = {
            str(i): (*(sum(s[kind] for s in pair) / 2 for kind in ("exp_avg", "exp_avg_sq")), int(pair[0]["step"]))
            for i, pair in enumerate(pairs)
        }
    for name, value in start.items():
        assert torch.allclose(run.server.x[f"selector.1.{name}"], value, atol=1e-6)
    assert run.server.moments.steps == 2


def test_replies_weigh_by_examples_by_steps_or_alike() -> None:
    assert [FedSM(LOCAL, weights=how).weigh(33) for how in ("examples", "steps", "uniform")] == [33.0, 3.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "links",
    [
        {"up": tw.ErrorFeedback(tw.TopK(0.3))},
        {"up": tw.ErrorFeedback(tw.ScaledSign())},
        {"up": tw.Half(), "down": tw.Half()},
        {"down": tw.EF21(tw.TopK(0.1))},
    ],
    ids=str,
)
def test_lossy_links_leave_the_moments_as_they_are(links: dict[str, tw.Link]) -> None:
    own = {"local": LocalSGD(0.2, batch=8), "selecting": LocalAdam(0.01), "form": "epoch", "selector": "mlp"}
    result = tw.simulate(FedSM(**own, shape=(4,), **links), small, sites(), 40, workers=1, plan="each")  # type: ignore[arg-type]
    right = [float((result.selected(task.inputs) == site).float().mean()) for site, task in enumerate(sites())]
    assert min(right) > 0.8, right
    weights = torch.cat([p.detach().flatten() for p in result.beside["selector"].parameters()])
    assert float(weights.abs().max()) < 2


def test_a_dict_of_links_may_name_the_moments() -> None:
    form = FedSM(LOCAL, form="epoch", up=tw.Half())
    start = form.init(Params.of([("model.w", torch.zeros(2)), ("selector.w", torch.zeros(2))]), 2, Key(0))
    links = {leaf.name: leaf.link for leaf in Form.of(start.reply, form.up, "up").leaves}
    assert (links["update"], links["first"], links["second"]) == (tw.Half(), tw.Dense(), tw.Dense())
    named = {leaf.name: leaf.link for leaf in Form.of(start.reply, {"first": tw.Half()}, "up").leaves}
    assert (named["update"], named["first"], named["second"]) == (tw.Dense(), tw.Half(), tw.Dense())


# -- prediction ---------------------------------------------------------------------------


def sites(num: int = 3) -> list[Supervised]:
    """Clients whose inputs lie in places of their own, and whose labels mean different things."""
    draw, found = torch.Generator().manual_seed(5), []
    for site in range(num):
        x = torch.randn(40, 4, generator=draw) + 4 * torch.eye(4)[site]
        found.append(Supervised(x, ((x[:, 3] > 0).long() + site) % 2))
    return found


def small() -> nn.Module:
    return linear(4, 2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[tw.Result, Path]:
    folder = tmp_path_factory.mktemp("fedsm")
    method = FedSM(LocalSGD(0.2, batch=8), lam=0.9, selecting=LocalAdam(0.1), form="epoch", selector="linear")
    return tw.simulate(method, small, sites(), 8, workers=1, plan="each", out=folder), folder


def test_the_selector_tells_clients_apart_and_its_client_answers(trained: tuple[tw.Result, Path]) -> None:
    result, _ = trained
    for site, task in enumerate(sites()):
        chosen = result.selected(task.inputs)
        assert (chosen == site).float().mean() > 0.8
        answer = result.predict(task.inputs)
        for client in range(3):
            own = result.predict(task.inputs, client)
            assert torch.allclose(answer[chosen == client], own[chosen == client])  # rows of products of other sizes
    right = [(result.predict(task.inputs).argmax(1) == task.targets).float().mean().item() for task in sites()]
    alone = [(result.module(task.inputs).argmax(1) == task.targets).float().mean().item() for task in sites()]
    assert np.mean(right) > np.mean(alone) + 0.1


def test_below_gamma_the_global_model_answers(trained: tuple[tw.Result, Path]) -> None:
    result, _ = trained
    sure = replace(result, algorithm=replace(result.algorithm, gamma=1.0))
    x = sites()[1].inputs
    assert sure.selected(x).tolist() == [-1] * 40  # no confidence is above 1
    assert torch.equal(sure.predict(x), result.module(x))


def test_a_client_is_chosen_where_the_selector_is_surer_than_gamma_and_not_where_it_is_as_sure(
    trained: tuple[tw.Result, Path],
) -> None:
    result, _ = trained
    x = torch.cat([task.inputs for task in sites()])
    with torch.no_grad():
        sure = result.beside["selector"](x).softmax(-1).max(-1)
    middle = float(sure.values.median())  # the confidence of one of the examples
    found = replace(result, algorithm=replace(result.algorithm, gamma=middle)).selected(x)
    above, below = sure.values > middle, sure.values < middle
    assert min(int(above.sum()), int(below.sum())) > 0
    assert torch.equal(found[above], sure.indices[above])
    assert found[below].unique().tolist() == found[sure.values == middle].unique().tolist() == [-1]


def test_a_model_that_is_cut_or_gone_is_named(trained: tuple[tw.Result, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(trained[1], tmp_path / "run")
    whole = (folder / "personal/1.safetensors").read_bytes()
    (folder / "personal/1.safetensors").write_bytes(whole[: len(whole) // 2])
    loaded = tw.load(folder, small)
    with pytest.raises(RunError, match=r"personal/1\.safetensors is damaged \(.*\): take a copy of it, or train"):
        loaded.personal(1)
    (folder / "selector.safetensors").unlink()
    with pytest.raises(ValueError, match=r"selector\.safetensors is missing: the run has not ended, or"):
        tw.load(folder, small)


def test_a_run_that_is_loaded_predicts_to_the_bit_what_it_did(trained: tuple[tw.Result, Path]) -> None:
    result, folder = trained
    loaded, x = tw.load(folder, small), sites()[2].inputs
    assert torch.equal(loaded.predict(x), result.predict(x))
    assert torch.equal(loaded.model(x), result.model(x))
    for client in range(3):
        assert torch.equal(loaded.personal(client)(x), result.personal(client)(x))
    assert sorted(path.name for path in folder.glob("**/*.safetensors")) == [
        "0.safetensors",
        "1.safetensors",
        "2.safetensors",
        "model.safetensors",
        "selector.safetensors",
    ]


def test_what_cannot_be_loaded_says_what_is_missing(trained: tuple[tw.Result, Path], tmp_path: Path) -> None:
    _, folder = trained
    with pytest.raises(ValueError, match="is the run of no study: give its model too"):
        tw.load(folder)
    with pytest.raises(ValueError, match="was trained with another model"):
        tw.load(folder, linear(4, 3))
    with pytest.raises(RunError, match="has no complete run"):
        tw.load(tmp_path, small)


# -- the selector after the models ----------------------------------------------------------


@pytest.fixture(scope="module", params=[FedSMExtra, Ensemble])
def later(request: pytest.FixtureRequest) -> Simulation:
    method = request.param(LocalSGD(0.2, batch=8), selecting=LocalAdam(0.02), selector="linear", start=2)
    return run_of(method, 4, small, sites())


def test_models_come_first_then_all_of_them_once_then_the_selector_alone(later: Simulation) -> None:
    wg, ws = 4 * 2 + 2, 4 * 4 + 4  # an output for the global model too
    floats = {(e.direction, e.round): e.floats for e in later.ledger}
    assert [floats["up", number] for number in (1, 2, 3, 4)] == [2 * wg, 2 * wg, ws, ws]
    assert [floats["down", number] for number in (1, 2, 3, 4)] == [2 * wg, 2 * wg, wg + ws + 3 * wg, ws]


def test_the_selector_of_extra_rounds_takes_a_step_of_adam_an_epoch_whose_moments_are_averaged() -> None:
    """Two clients, one after the other by hand: full-batch Adam at the mean selector and the mean moments."""
    method = FedSMExtra(LOCAL, selecting=LocalAdam(0.02), form="epoch", selector="linear", start=1, weights="uniform")
    run = run_of(method, 1, small, sites())
    before = run.server
    assert [e.floats for e in run.ledger if e.direction == "up"] == [2 * 10] * 3  # no moments in the models' rounds
    with run.pool:
        for _ in range(2):
            run.step(evaluate=False)
    wg, ws = 4 * 2 + 2, 4 * 4 + 4
    assert [e.floats for e in run.ledger if e.round == 3 and e.direction == "up"] == [3 * ws] * 3
    assert [e.floats for e in run.ledger if e.round == 2 and e.direction == "down"] == [wg + 3 * ws + 3 * wg] * 3
    models = [run.module(client) for client in (None, 0, 1, 2)]
    weight, bias = (before.x[f"selector.1.{name}"].double() for name in ("weight", "bias"))
    m, v = torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, 5, dtype=torch.float64)
    for step in (1, 2):
        results = []
        for task in sites():
            x, y = task.batch(torch.arange(len(task)))
            losses = torch.stack([torch.nn.functional.cross_entropy(f(x), y, reduction="none") for f in models])
            w = torch.cat([weight, bias[:, None]], 1).requires_grad_()
            scores = x.flatten(1).double() @ w[:, :4].T + w[:, 4]
            (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, losses.argmin(0)), w)
            m_k, v_k = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            moved = w - 0.02 * (m_k / (1 - 0.9**step)) / ((v_k / (1 - 0.999**step)).sqrt() + 1e-8)
            results.append((moved.detach(), m_k, v_k))
        whole, m, v = (torch.stack(each).mean(0) for each in zip(*results, strict=True))
        weight, bias = whole[:, :4], whole[:, 4]
    torch.testing.assert_close(run.server.x["selector.1.weight"].double(), weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.server.x["selector.1.bias"].double(), bias, rtol=1e-4, atol=1e-5)


def test_models_stand_still_while_the_selector_is_trained(later: Simulation) -> None:
    before = run_of(later.algorithm, 2, small, sites())
    for client in (None, 0, 1, 2):
        one, other = (run.whose(client)[0] for run in (before, later))
        names = [name for name in one.names if name.startswith("model.")]
        assert torch.equal(one.only(names).flat, other.only(names).flat)
    assert not torch.equal(before.server.x["selector.1.weight"], later.server.x["selector.1.weight"])


def test_an_ensemble_adds_up_outputs_by_the_selectors_shares() -> None:
    class Constant(nn.Module):
        def __init__(self, *values: float) -> None:
            super().__init__()
            self.values = torch.tensor(values)

        def forward(self, x: Tensor) -> Tensor:
            return self.values.expand(len(x), -1)

    mixture = Mixture([Constant(1.0, 2.0), Constant(5.0, -2.0)], Constant(0.0, float(np.log(3.0))))
    assert mixture(torch.zeros(2, 1)).tolist() == [pytest.approx([4.0, -1.0])] * 2  # a quarter and three quarters


def test_the_label_of_fedsm_extra_is_the_model_with_the_smallest_loss() -> None:
    whole = join_selector(linear(1, 2), "linear", None, 2)

    class Net:
        module, generator = whole, torch.Generator()

        def other(self, x: Params, buffers: Params | None = None) -> nn.Module:
            found = linear(1, 2)
            nn.init.zeros_(found[1].weight)
            found[1].bias.data.copy_(x["b"])
            return found

    models = [Params.of([("b", torch.tensor(b))]) for b in ([2.0, 0.0], [0.0, 2.0])]  # for class 0, for class 1
    task = Supervised(torch.tensor([[1.0], [1.0]]), torch.tensor([1, 0]))
    losses = Nearest(models, [None, None])(Net(), task, task.batch(torch.arange(2)))
    scores = whole.selector(torch.tensor([[1.0]])).log_softmax(1)[0]
    assert losses.tolist() == pytest.approx([-scores[1].item(), -scores[0].item()])
    labelled = Labelled(1)(Net(), task, task.batch(torch.arange(2)))
    assert labelled.tolist() == pytest.approx([-scores[1].item()] * 2)


# -- selectors, and what is refused -------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape"),
    [(nn.Sequential(nn.Conv2d(3, 4, 3)), (2, 3, 16, 24)), (nn.Linear(7, 2), (2, 7)), (nn.Embedding(9, 4), (2, 5))],
    ids=["pictures", "rows", "texts"],
)
def test_the_selector_follows_from_the_models_first_layer(model: nn.Module, shape: tuple[int, ...]) -> None:
    inputs = torch.ones(shape, dtype=torch.int64 if isinstance(model, nn.Embedding) else torch.float32)
    one, other = join_selector(model, "", None, 5), join_selector(model, "", None, 5)
    assert one.selector(inputs).shape == (2, 5)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)  # every process makes the same


def twice(outputs: int) -> nn.Module:
    return nn.Linear(7, 2 * outputs)


def test_a_selector_may_be_ones_own_and_must_have_no_norm_statistics() -> None:
    assert join_selector(nn.Linear(7, 2), "test_fedsm:twice", None, 5).selector(torch.ones(1, 7)).shape == (1, 10)
    with pytest.raises(ValueError, match="has norm statistics"):
        join_selector(nn.Conv2d(3, 4, 3), "vgg16", None, 5)
    with pytest.raises(ValueError, match="the model begins with LSTM, for which there is no selector"):
        join_selector(nn.LSTM(3, 4), "", None, 5)


def test_a_single_client_is_refused() -> None:
    with pytest.raises(ValueError, match="there is one client: use FedAvg"):
        Simulation(FedSM(), mlp, handwriting()[0][:1])


def test_a_method_without_a_selector_selects_nothing() -> None:
    result = tw.simulate(FedAvg(LOCAL), mlp, handwriting()[0][:2], 1, workers=1)
    with pytest.raises(ValueError, match="selects no client's model"):
        result.selected(handwriting()[0][0].inputs)
    with pytest.raises(CombinationError, match="averages the moments of Adam"):
        FedSM(form="epoch", selecting=LocalSGD(0.1))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", [FedSM(LOCAL, form="epoch"), Ensemble(LOCAL, start=1)], ids=["FedSM", "Ensemble"])
def test_a_selector_has_the_models_type_of_floats(method: FedSM, kind: torch.dtype) -> None:
    result = tw.simulate(method, lambda: small().to(kind), sites(), 2, workers=1, plan="each")
    assert {p.dtype for p in result.beside["selector"].parameters()} == {kind}
    assert result.predict(sites()[0].inputs[:3].to(kind)).shape == (3, 2)


def test_what_it_predicts_is_in_the_records_and_in_the_table(tmp_path: Path) -> None:
    tests = sites()
    test = Supervised(torch.cat([t.inputs for t in tests]), torch.cat([t.targets for t in tests]))
    method = FedSM(LocalSGD(0.2, batch=8), lam=0.9, selecting=LocalAdam(0.1), form="epoch", selector="linear")
    out = tmp_path / "run"
    result = tw.simulate(method, small, tests, 8, test=test, workers=1, plan="each", out=out)
    right = (result.predict(test.inputs).argmax(1) == test.targets).float().mean()
    last = result.rounds[-1]
    assert last["predicted_accuracy"] == pytest.approx(float(right), abs=1e-6)
    assert last["predicted_accuracy"] > last["accuracy"] + 0.2
    assert result.summary()["predicted_accuracy"] == last["predicted_accuracy"]
    assert markdown(rows(arms([out]))).startswith("| method | accuracy | best | predicted | MB up |")
    plain = tw.simulate(FedAvg(LOCAL), small, tests, 1, test=test, workers=1, plan="each")
    assert not [name for name in plain.rounds[0] if name.startswith("predicted")]


def test_no_examples_are_predicted_as_none(trained: tuple[tw.Result, Path]) -> None:
    result, _ = trained
    assert result.predict(torch.zeros(0, 4)).shape == (0, 2)


def test_what_a_selector_cannot_do_is_said_in_one_line(trained: tuple[tw.Result, Path]) -> None:
    def refused(**more: Any) -> str:
        with pytest.raises(ValueError, match=r"selector") as caught:
            tw.simulate(FedSM(LOCAL, **more), small, sites(), 1, workers=1, plan="each")
        return str(caught.value)

    assert refused(selector="os:nof") == "selector='os:nof': os has no function nof"
    assert "selector='nothere:f': there is no module nothere" in refused(selector="nothere:f")
    assert refused(shape=(4,)).startswith("shape=(4,) is that of examples for a selector of thinwire.models: name one")
    assert "the selector cannot take examples of [4]" in refused(selector="mlp", shape=(9,))
    assert "the selector gives [6] numbers an example, and 3 are needed" in refused(selector="test_fedsm:double")
    for later in (FedSMExtra, Ensemble):  # which ask it after 100 rounds
        with pytest.raises(ValueError, match=r"the selector cannot take examples of \[4\]"):
            Simulation(later(LOCAL, selector="mlp", shape=(9,)), small, sites())
    with pytest.raises(ValueError, match=r"the selector cannot take examples of \[4\]"):
        Mixture([small()], nn.Linear(9, 2))(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="examples in one tensor, not in a tuple"):
        trained[0].predict((torch.zeros(2, 4),))


def double(outputs: int) -> nn.Module:
    return nn.Linear(4, 2 * outputs)


def test_the_global_model_of_fedsm_extra_goes_out_once_as_it_is() -> None:
    method = FedSMExtra(LOCAL, start=2, down=tw.EF21(tw.TopK(0.1)))
    with Simulation(method, small, sites(), workers=1, plan="each") as run:
        run.until(3, run.step)
        view = run.stream.view.state
        model = run.server.x.only(tuple(name for name in run.server.x.names if name.startswith("model.")))
        assert torch.equal(view.models[0].x.flat, model.flat)
        assert torch.equal(view.x.only(model.names).flat, model.flat)
