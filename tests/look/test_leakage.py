"""Pictures from gradients: the measures against scikit-image, the label by hand, and what each uplink lets through."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import thinwire as tw
from problems import Supervised
from thinwire.look.inversion import idlg, invert, rough
from thinwire.look.leakage import Leak, Leakage, leak
from thinwire.look.similarity import psnr, ssim
from thinwire.models import dlg_lenet

ROW = torch.arange(12, dtype=torch.float64)
X, Y = ((ROW[:, None] * 7 + ROW * 3) % 11) / 11, ((ROW[:, None] * 5 + ROW * 2) % 13) / 13
SGD = tw.LocalSGD(1.0)


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Sigmoid(), nn.Linear(12, 3))


def pictures(count: int = 3) -> Supervised:
    draw = torch.Generator().manual_seed(8)
    return Supervised(torch.rand(count, 1, 6, 6, generator=draw), torch.arange(count) % 3)


def leaked(method: tw.Algorithm, **more: object) -> Leak:
    return leak(method, small, pictures(), **{"iterations": 100, "tries": 1, **more})  # type: ignore[arg-type]


def test_ssim_and_psnr_are_those_of_scikit_image() -> None:
    # from skimage.metrics import structural_similarity as s, peak_signal_noise_ratio as p
    # s(X.numpy(), Y.numpy(), data_range=1); s(X.numpy(), (.8 * X + .1).numpy(), data_range=1)
    # s(torch.stack([X, Y, X * Y]).numpy(), torch.stack([Y, X, X * X]).numpy(), data_range=1, channel_axis=0)
    # p(X.numpy(), Y.numpy(), data_range=1)
    assert ssim(X[None], Y[None]) == pytest.approx(0.03418607264009317)
    assert ssim(X[None], 0.8 * X[None] + 0.1) == pytest.approx(0.9755727187306253)
    assert ssim(torch.stack([X, Y, X * Y]), torch.stack([Y, X, X * X])) == pytest.approx(0.22194592775090805)
    assert psnr(X, Y) == pytest.approx(7.50518761740884)


def test_equal_pictures_have_ssim_one_and_endless_psnr_and_a_tenth_off_is_20_db() -> None:
    assert ssim(X[None], X[None]) == pytest.approx(1.0)
    assert psnr(X, X) == math.inf
    assert psnr(torch.zeros(4), torch.full((4,), 0.1)) == pytest.approx(20.0)
    with pytest.raises(ValueError, match="pictures of 1 x 9 pixels are too small for SSIM"):
        ssim(torch.zeros(1, 1, 9), torch.zeros(1, 1, 9))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("label", [0, 2])
def test_the_label_is_the_output_that_should_grow(bias: bool, label: int) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3, bias=bias))
    loss = nn.functional.cross_entropy(module(torch.randn(1, 5)), torch.tensor([label]))
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    assert idlg(module, gradient, 3) == label
    with pytest.raises(ValueError, match="no row for each of 7 classes"):
        idlg(module, gradient, 7)


@pytest.mark.parametrize("label", [1, None])
def test_a_picture_is_found_from_its_gradient(label: int | None) -> None:
    torch.manual_seed(2)
    module, x = small(), pictures().inputs[:1]
    loss = nn.functional.cross_entropy(module(x), torch.tensor([1]))
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    found = invert(module, gradient, (1, 6, 6), 3, label, iterations=150, tries=1)
    assert found.label == 1
    assert psnr(x[0], found.inputs[0]) > 30
    assert found.match < 1e-6


def test_dense_updates_give_the_picture_away() -> None:
    found = leaked(tw.FedAvg(SGD))
    assert (found.label, found.guess, found.compared) == (0, 0, "whole")
    assert found.psnr > 30
    assert found.ssim is not None
    assert found.ssim > 0.99
    assert torch.equal(found.original, pictures().inputs[0].double())


@pytest.mark.parametrize("hessian", ["FO", "HF"])
def test_a_reply_that_is_made_of_looks_at_gradients_has_their_sign_and_length(hessian: str) -> None:
    method = tw.parse(f"PerFedAvg(local=LocalSGD(0.1, batch=1), hessian={hessian!r})")
    found = leaked(method)
    assert found.compared == "whole"
    assert found.fits == pytest.approx(1, abs=1e-3)  # the gradient is one step of rate .01 away


@pytest.mark.parametrize("method", ["pFedMe(local=LocalSGD(0.1))", "FedRep(LocalSGD(0.1))", "FedPer(LocalSGD(0.1))"])
def test_a_client_that_trains_otherwise_than_by_one_step_is_matched_in_length(method: str) -> None:
    found = leaked(tw.parse(method), iterations=60)
    assert found.compared == "through the link"
    assert found.match < 0.9  # of the squared length, so nearer than none; at a wrong length it is many times that


def test_a_random_subspace_that_everyone_knows_is_no_privacy() -> None:
    found = leaked(tw.Intrinsic(120, local=SGD), iterations=70)
    assert found.compared == "through the link"
    assert found.psnr > 30


def test_what_top_k_sends_is_compared_where_it_sent_something() -> None:
    found = leaked(tw.FedAvg(SGD, up=tw.TopK(0.2)))
    assert found.compared == "where something was sent"
    assert found.bytes < leaked(tw.FedAvg(SGD), iterations=1).bytes / 2


@pytest.mark.parametrize("distance", ["squares", "cosine"])
def test_noise_on_the_mean_hides_the_picture_and_clipping_does_not(distance: str) -> None:
    method = tw.FedAvg(SGD, weights="uniform")
    noisy = leaked(method, privacy=tw.Privacy(clip=0.1, noise=1.0), attack="label", distance=distance)
    assert noisy.psnr < 15
    assert noisy.fits == pytest.approx(1)  # it is the picture's gradient, under the noise
    clipped = leaked(method, privacy=tw.Privacy(clip=0.1, noise=0.0), distance=distance)
    assert clipped.psnr > 30
    with pytest.raises(ValueError, match="bounds what a client adds to the mean of one field"):
        leaked(tw.SCAFFOLD(SGD), privacy=tw.Privacy(clip=0.1, noise=0.0))


@pytest.mark.slow
def test_under_noise_too_small_to_hide_a_picture_what_top_k_sent_gives_it_away() -> None:
    method = tw.FedAvg(SGD, up=tw.TopK(0.5), weights="uniform")
    for privacy in (None, tw.Privacy(clip=10.0, noise=1e-7)):
        assert leaked(method, privacy=privacy, attack="label").psnr > 60


def test_a_client_that_clips_its_gradients_hides_nothing() -> None:
    assert leaked(tw.FedAvg(tw.LocalSGD(1.0, clip=0.1))).psnr > 30
    both = tw.FedAvg(tw.LocalSGD(1.0, clip=0.1), weights="uniform")
    assert leaked(both, privacy=tw.Privacy(clip=0.05, noise=0.0)).psnr > 30


def test_what_is_sent_and_is_no_gradient_of_the_picture_is_told_from_one() -> None:
    assert leaked(tw.FedAvg(SGD), iterations=1).fits == pytest.approx(1)
    assert leaked(tw.FedAvg(SGD, up=tw.TopK(0.2)), iterations=1).fits == pytest.approx(1, abs=1e-6)
    assert leaked(tw.FedAvg(tw.LocalAdam(0.01)), iterations=1).fits < 0.9


def test_of_a_recycled_round_the_server_rebuilds_the_picture_of_the_round_before() -> None:
    data = Supervised(pictures().inputs, torch.zeros(3, dtype=torch.int64))
    method = tw.FedAvg(SGD, up=tw.LBGM(threshold=0.98))
    found = leak(method, small, data, 0, round=2, attack="label", distance="cosine", tries=1)
    assert found.bytes < 20
    # Round 1 had the next picture, at another model: it is nearer to what was rebuilt than the one that was trained on.
    assert psnr(data.inputs[1], found.rebuilt) > psnr(data.inputs[0], found.rebuilt)


def test_layers_without_second_derivatives_are_named() -> None:
    assert rough(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.MaxPool1d(2), nn.ReLU())) == ["MaxPool1d", "ReLU"]
    assert rough(dlg_lenet((1, 8, 8))) == []


def test_what_cannot_be_rebuilt_is_refused() -> None:
    words = Supervised(torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="inputs of floats, such as pictures"):
        leak(tw.FedAvg(), small, words)
    values = Supervised(torch.zeros(3, 4), torch.zeros(3))
    with pytest.raises(ValueError, match="the leakage check needs batches of"):
        leak(tw.FedAvg(), small, values)
    with pytest.raises(ValueError, match="picture 3: the data have examples 0 to 2"):
        leaked(tw.FedAvg(), picture=3)


@pytest.mark.parametrize(("name", "value"), [("data", "mnist"), ("model", "mlp")])
def test_what_a_task_makes_itself_is_not_asked_for_beside_it(name: str, value: str) -> None:
    said = f"^--{name} is not used with --task mine:make, which makes model and data itself: leave --{name} out$"
    with pytest.raises(ValueError, match=said):
        Leakage(("FedAvg()",), task="mine:make", **{name: value})  # type: ignore[arg-type]
