"""Clipped replies and the server's noise, in a simulation and where clients are elsewhere."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from blobs import blobs, mlp, normed
from test_federation import Parties, Still, held, method, pulls
from thinwire import Privacy, Simulation
from thinwire.errors import CombinationError, RunError
from thinwire.federated.privacy import normal

UNIFORM = "FedAvg(weights='uniform')"
PRIVATE = [  # methods that it goes with
    UNIFORM,
    "FedAvg(opt=Adam(0.03), up=QSGD(16), weights='uniform')",
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6), down=EF21(TopK(0.3)), weights='uniform')",
    "LUAR(FedProx(mu=0.1, weights='uniform'), recycle=1, layers='tensors')",
    "Intrinsic(40, subspaces=2, varying=True, epoch=2, weights='uniform')",
]


def run(expression: str, privacy: Privacy | None, model: Any = mlp, rounds: int = 3, **options: Any) -> tw.Result:
    options = {"seed": 5, "test": blobs((60,))[0], "workers": 1, "plan": "each"} | options
    return tw.simulate(method(expression), model, blobs(), rounds, privacy=privacy, **options)


# -- what it does ---------------------------------------------------------------------


@pytest.mark.parametrize("expression", PRIVATE)
def test_without_clip_and_noise_it_is_the_inner_algorithm(expression: str) -> None:
    plain, private = run(expression, None), run(expression, Privacy(float("inf"), 0.0))
    assert torch.equal(plain.params.flat, private.params.flat)
    assert [r["up_bytes"] for r in plain.rounds] == [r["up_bytes"] for r in private.rounds]


@pytest.mark.parametrize("up", ["Dense()", "TopK(1.0)"])
def test_a_reply_counts_as_if_it_were_as_long_as_the_clip(up: str) -> None:
    algorithm = tw.parse(f"FedAvg(LocalSGD(1.0), up={up}, weights='uniform')")
    result = tw.simulate(algorithm, Still, pulls(3.0, 1.0, -50.0), 1, privacy=Privacy(2.0, 0.0), workers=1)
    assert result.params.flat.tolist() == [pytest.approx((2 + 1 - 2) / 3)]


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 3000), nn.Linear(3000, 3))  # 30,003 parameters


def test_noise_is_as_wide_as_it_says() -> None:
    clean, private = (run(UNIFORM, Privacy(0.5, noise), wide, 1).params.flat for noise in (0.0, 3.0))
    found = private - clean
    assert float(found.std()) == pytest.approx(0.25, rel=0.02)  # 3 * 0.5 / 6 clients
    assert abs(float(found.mean())) < 4 * 0.25 / 30_003**0.5
    # Of those who did not reply there is no share: the mean of fewer has more noise.
    clean, private = (run(UNIFORM, Privacy(0.5, noise), wide, 1, sample=2).params.flat for noise in (0.0, 3.0))
    assert float((private - clean).std()) == pytest.approx(0.75, rel=0.02)


def test_layers_that_are_not_sent_get_no_noise() -> None:
    """What LUAR recycles is private already: it is the update of the round before, noise and all."""
    one = Simulation(
        method("LUAR(FedAvg(weights='uniform'), recycle=1, layers='tensors')"),
        mlp,
        blobs(),
        seed=5,
        workers=1,
        plan="each",
        privacy=Privacy(0.5, 3.0),
    )
    with one.pool:
        one.step()
        before, recycled = one.server.last, one.server.recycled
        one.step()
    names = before.layout.named(recycled)
    assert len(names) == 1
    assert torch.equal(one.server.last.only(names).flat, before.only(names).flat)
    assert not torch.equal(one.server.last.drop(names).flat, before.drop(names).flat)


def test_draws_are_standard_normal_and_those_of_each_round_their_own() -> None:
    first, second = normal(400_001, "a"), normal(400_001, "b")
    for drawn in (first, second):
        assert drawn.dtype == torch.float64
        assert drawn.shape == (400_001,)
        assert float(drawn.mean()) == pytest.approx(0, abs=0.008)
        assert float(drawn.std()) == pytest.approx(1, abs=0.006)
        assert float((drawn > 1.959964).double().mean()) == pytest.approx(0.025, rel=0.05)
        assert float((drawn[1:] * drawn[:-1]).mean()) == pytest.approx(0, abs=0.008)
    assert float((first * second).mean()) == pytest.approx(0, abs=0.008)
    assert torch.equal(normal(400_001, "a"), first)
    assert normal(0, "a").shape == (0,)


def test_each_mean_has_noise_of_its_own_and_the_same_again() -> None:
    mean = tw.Params.of([("a", torch.zeros(500)), ("b", torch.zeros(500))])
    other = tw.Params.of([("a", torch.zeros(500)), ("c", torch.zeros(500))])
    moved = mean + tw.Params.of([("a", torch.full((500,), 1e-9)), ("b", torch.zeros(500))])
    privacy = Privacy(1.0, 2.0)
    found = privacy.hide(mean, 4.0, "s", 3).flat
    assert torch.equal(privacy.hide(mean, 4.0, "s", 3).flat, found)
    for x, replies, secret, round in (
        (moved, 4.0, "s", 3),
        (other, 4.0, "s", 3),
        (mean, 5.0, "s", 3),
        (mean, 4.0, "t", 3),
        (mean, 4.0, "s", 4),
    ):
        noise = privacy.hide(x, replies, secret, round).flat
        assert float((noise * found).mean()) == pytest.approx(0, abs=0.04)  # of independent draws, each of std 0.5


def test_nobody_moves_the_model_by_more_than_the_clip() -> None:
    tasks = blobs()
    hostile = [*tasks[:5], tw.Supervised(torch.randn(40, 6) * 1e3, torch.randint(3, (40,)))]
    options: dict[str, Any] = {"seed": 5, "workers": 1, "plan": "each", "privacy": Privacy(0.01, 0.0)}
    models = [tw.simulate(method(UNIFORM), mlp, t, 1, **options).params for t in (tasks, hostile)]
    assert 0 < (models[0] - models[1]).norm() <= 2 * 0.01 / 6 * (1 + 1e-5)


# -- the same everywhere --------------------------------------------------------------


@pytest.mark.parametrize("expression", PRIVATE)
def test_a_run_that_is_resumed_draws_the_noise_that_it_would_have_drawn(expression: str, tmp_path: Path) -> None:
    privacy = Privacy(0.5, 1.0)
    whole = run(expression, privacy, rounds=4)
    run(expression, privacy, rounds=2, out=tmp_path, checkpoint_every=1)
    assert torch.equal(run(expression, privacy, rounds=4, out=tmp_path, resume=True).params.flat, whole.params.flat)


@pytest.mark.parametrize("expression", PRIVATE)
def test_a_deployment_with_the_secret_of_a_simulation_is_the_simulation(expression: str, tmp_path: Path) -> None:
    parties = Parties(expression, tmp_path, privacy=Privacy(0.5, 1.0))
    parties.server.secret = "5"
    for _ in range(2):
        parties.round()
    parties.serve()  # killed, and started again
    parties.round()
    simulated = Simulation(
        method(expression), mlp, blobs(), test=blobs((60,))[0], seed=5, workers=1, plan="each", privacy=Privacy(0.5, 1)
    )
    with simulated.pool:
        for _ in range(3):
            simulated.step()
    assert parties.held() == held(simulated)


def test_the_secret_of_a_deployment_is_its_own_and_outlives_the_server(tmp_path: Path) -> None:
    first, second = (Parties(UNIFORM, tmp_path / name, privacy=Privacy(0.5, 1.0)) for name in "ab")
    for parties in (first, second):
        parties.round()
    assert first.held() != second.held()
    secret = first.server.secret
    assert len(secret) == 64
    first.serve()
    assert first.server.secret == secret
    call = first.server.begin()[0]
    assert secret.encode() not in call


def test_another_copy_of_the_servers_folder_does_not_tell_what_a_client_sent(tmp_path: Path) -> None:
    clean = Parties(UNIFORM, tmp_path / "clean", privacy=Privacy(0.5, 0.0))
    before = clean.server.server.x.flat.clone()
    clean.round([2])
    sent = clean.server.server.x.flat - before  # what client 2 adds, clipped
    private = Parties(UNIFORM, tmp_path / "private", privacy=Privacy(0.5, 1.0))
    private.server.save(private.folder)
    shutil.copytree(tmp_path / "private" / "server" / "checkpoint", tmp_path / "copy")
    models = []
    for lost in ([], [2]):
        private.serve()  # from the checkpoint before the round
        private.round(lost=lost)
        models.append(private.server.server.x.flat - before)
        shutil.rmtree(tmp_path / "private" / "server" / "checkpoint")
        shutil.copytree(tmp_path / "copy", tmp_path / "private" / "server" / "checkpoint")
    error = 6 * models[0] - 5 * models[1] - sent
    # What is left is 0.5 times the difference of two draws from the normal distribution, each of 83 numbers. The secret
    # is another in every run of this test, and the deviation of 83 numbers is itself off by a thirteenth.
    assert float(error.std()) == pytest.approx(0.5 * 2**0.5, rel=0.4)


def test_who_is_clipped_by_privacy_is_not_in_the_log(tmp_path: Path, caplog: Any) -> None:
    Parties(UNIFORM, tmp_path / "a", privacy=Privacy(1e-6, 1.0)).round()
    assert "sent a norm of" not in caplog.text
    Parties(UNIFORM, tmp_path / "b", clip=1e-6).round()
    assert "sent a norm of" in caplog.text


def test_the_folder_of_another_privacy_is_another_run(tmp_path: Path) -> None:
    run(UNIFORM, None, rounds=1, out=tmp_path / "a")
    run(UNIFORM, Privacy(1.0, 1.0), rounds=1, out=tmp_path / "b")
    for name, privacy in (("a", Privacy(1.0, 1.0)), ("b", None), ("b", Privacy(1.0, 2.0))):
        with pytest.raises(RunError, match="is another run: its privacy"):
            run(UNIFORM, privacy, out=tmp_path / name, resume=True)


# -- what is refused ------------------------------------------------------------------

REFUSED = {
    "FedAvg()": "Privacy(1.0, noise=1.0): with weights='examples' a client's share has no bound; "
    "give FedAvg(LocalSGD(0.2, batch=8)) weights='uniform'",
    "SCAFFOLD(weights='uniform')": "have update, control",
    "FedDyn(alpha=0.1, weights='uniform')": "have update, replies",
    "FLSS(FedAvg(weights='uniform'), rank=1, start=1, every=2)": "have inner/update, coefficients",
    "ClusteredLBGM(2, weights='uniform')": "have whole, recycled, examples",
    "SoftPull(FedAvg())": "have inner/update, buffers, some of them one client's alone, which no mean hides",
}


@pytest.mark.parametrize(("expression", "said"), REFUSED.items())
def test_a_method_whose_server_sees_more_than_one_mean_is_refused(expression: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CombinationError, match=re.escape(said)):
        Simulation(method(expression), mlp, blobs(), privacy=Privacy(1.0, 1.0))
    with pytest.raises(CombinationError, match=re.escape(said)):
        Parties(expression, tmp_path, privacy=Privacy(1.0, 1.0))


def test_norm_statistics_stay_with_the_clients() -> None:
    with pytest.raises(CombinationError, match="keep norm statistics with the clients: buffers='local'"):
        run(UNIFORM, Privacy(1.0, 1.0), normed)
    run("FedAvg(weights='uniform', buffers='local')", Privacy(1.0, 1.0), normed, 1)


def test_two_clips_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"clip=2.0: Privacy\(1.0, noise=1.0\) has a clip of its own"):
        Parties(UNIFORM, tmp_path, privacy=Privacy(1.0, 1.0), clip=2.0)


# -- epsilon --------------------------------------------------------------------------

# dp-accounting 0.6.0 (Google):
#   accountant = dp_accounting.pld.PLDAccountant()
#   accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
#   accountant.get_epsilon(delta)
EPSILON = {
    (1.0, 1, 1e-5): 4.37717810,
    (2.0, 50, 1e-5): 20.67550805,
    (1.1, 100, 1e-6): 83.73214190,
    (5.0, 1000, 1e-5): 46.21121019,
}


@pytest.mark.parametrize(("about", "expected"), EPSILON.items())
def test_epsilon_is_that_of_another_accountant(about: tuple[float, int, float], expected: float) -> None:
    noise, rounds, delta = about
    assert Privacy(1.0, noise).epsilon(rounds, delta) == pytest.approx(expected, abs=1e-6)


def test_epsilon_is_that_of_the_analytic_gaussian_mechanism() -> None:
    # Balle, Wang, ICML 2018, arXiv:1805.06530, the authors' calibrateAnalyticGaussianMechanism(1, 1e-5, 1).
    assert Privacy(1.0, 3.730631634816464).epsilon(1, 1e-5) == pytest.approx(1.0, abs=1e-9)
    assert Privacy(0.1, 3.730631634816464 * 3).epsilon(9, 1e-5) == pytest.approx(1.0, abs=1e-9)  # nine are as one


def test_without_noise_nothing_is_private_and_without_rounds_all_is() -> None:
    assert Privacy(1.0, 0.0).epsilon(1) == float("inf")
    assert Privacy(1.0, 1.0).epsilon(0) == 0.0
    assert Privacy(1.0, 1e6).epsilon(1) == pytest.approx(0.0, abs=1e-12)  # delta alone covers it
    for delta in (0, 1, "0.1", math.nan):
        with pytest.raises(ValueError, match=r"delta=.*: a probability between 0 and 1"):
            Privacy(1.0, 1.0).epsilon(1, delta=delta)
    for rounds in (-1, 1.5, "3", None):
        with pytest.raises(ValueError, match=r"rounds=.*: a whole number"):
            Privacy(1.0, 1.0).epsilon(rounds)
