"""The networks for texts, larger pictures and masks: sizes, what they accept, and that they learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thinwire import models
from thinwire.data import load
from tiers import tiers


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def losses(model: nn.Module, loss: Callable[[], Tensor], lr: float, steps: int) -> list[float]:
    """The loss before and after a few steps on the same examples."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        seen.append(float(value.detach()))
    with torch.no_grad():
        return [seen[0], float(loss())]


# ---- sizes --------------------------------------------------------------------------------


def test_resnet9_has_the_parameters_of_the_paper() -> None:
    # 3x3: 3*64 + 64*128 + 2*128*128 + 128*256 + 256*512 + 2*512*512 = 729,280 (times 9); dense 5,120: 6,568,640,
    # and one bias for each of 64 + 3*128 + 256 + 3*512 = 2,240 outputs
    assert size(models.resnet9((3, 32, 32), 10)) == 729_280 * 9 + 5_120 + 2_240 == 6_570_880
    assert list(models.resnet9().buffers()) == []


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet56_is_resnet20_with_nine_blocks_a_stage(norm: str) -> None:
    # resnet20 (272,762) and six blocks more a stage, each of two convolutions and two norms
    more = 6 * sum(2 * 9 * width**2 + 4 * width for width in (16, 32, 64))
    assert size(models.resnet56(norm=norm)) == 272_762 + more == 856_058


def test_resnet8_is_resnet20_with_one_block_a_stage() -> None:
    # resnet20 (272,762) and two blocks fewer a stage
    assert size(models.resnet8()) == 272_762 - 2 * sum(2 * 9 * w**2 + 4 * w for w in (16, 32, 64)) == 78_330
    # 3x3: 3*8 + 2*64 + 8*16 + 256 + 16*32 + 1,024 = 2,072 (times 9); 1x1: 64 + 128 + 512; norms: 2*(8*4 + 16*3 + 32*3)
    assert size(models.resnet8(width=8)) == 2_072 * 9 + 704 + 352 + 330


@pytest.mark.slow
def test_vgg16_has_thirteen_convolutions_and_one_dense_layer() -> None:
    # 3*64 + 64*64 + 64*128 + 128*128 + 128*256 + 2*256*256 + 256*512 + 5*512*512 = 1,634,496 (times 9); 4,224 channels
    assert size(models.vgg16(norm="none")) == 1_634_496 * 9 + 4_224 + 5_130 == 14_719_818
    for norm in ("batch", "group"):
        assert size(models.vgg16(norm=norm)) == 1_634_496 * 9 + 2 * 4_224 + 5_130 == 14_724_042
    assert len(list(models.vgg16().buffers())) == 3 * 13
    assert list(models.vgg16(norm="group").buffers()) == []


def test_vgg11_has_eight_convolutions_and_one_dense_layer() -> None:
    # 3*64 + 64*128 + 128*256 + 256*256 + 256*512 + 3*512*512 = 1,024,192 (times 9); 2,752 channels; dense 5,130
    assert size(models.vgg11(norm="none")) == 1_024_192 * 9 + 2_752 + 5_130 == 9_225_610
    for norm in ("batch", "group"):
        assert size(models.vgg11(norm=norm)) == 1_024_192 * 9 + 2 * 2_752 + 5_130 == 9_228_362


@pytest.mark.parametrize("side", [128, 256])
def test_vgg11_takes_the_retina_s_pictures_and_one_class_a_site(side: int) -> None:
    assert models.vgg11((3, side, side), 7)(torch.rand(2, 3, side, side)).shape == (2, 7)


def test_the_small_vgg_has_a_quarter_of_a_million_parameters() -> None:
    # 9 * (3*32 + 32*64 + 64*128 + 128*128) = 240,480; 352 channels; dense 1,290
    assert size(models.vgg_small()) == 240_480 + 2 * 352 + 1_290 == 242_474
    assert size(models.vgg_small(norm="none")) == 240_480 + 352 + 1_290


def test_the_unet_has_two_convolutions_at_each_width_down_and_up() -> None:
    widths = (16, 32, 64, 128, 256)
    down = sum(9 * (a + b) * b + 4 * b for a, b in zip((3, *widths), widths, strict=False))
    up = sum(4 * 2 * b * b + b + 9 * (2 * b + b) * b + 4 * b for b in widths[:-1])
    assert size(models.unet()) == down + up + 17 == 1_942_577


def test_fasttext_is_an_embedding_and_a_dense_layer() -> None:
    assert size(models.fasttext(20_002, 4)) == 20_002 * 16 + 17 * 4 == 320_100
    assert size(models.fasttext(100, 2, width=64)) == 100 * 64 + 65 * 2


# ---- what they accept ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("resnet9", (1, 7, 8), "resnet9 needs pictures of 8 x 8 pixels or more, not 7 x 8"),
        ("vgg16", (3, 28, 28), "vgg16 needs pictures of 32 x 32 pixels or more, not 28 x 28"),
        ("vgg_small", (1, 8, 7), "vgg_small needs pictures of 8 x 8 pixels or more, not 8 x 7"),
        ("fasttext", (3, 32, 32), r"fasttext takes texts \(length,\), not examples of shape \(3, 32, 32\)"),
        ("fasttext", (64,), "fasttext has to know the number of ids in texts: give vocabulary=data.vocabulary"),
    ],
)
def test_data_of_another_kind_are_refused(name: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        models.build(name, shape, 10)


def test_a_model_that_continues_texts_is_not_built_to_classify_them() -> None:
    assert size(models.build("char_transformer", (80,), 65, vocabulary=65)) == 423_745
    with pytest.raises(ValueError, match="its 4 classes should be the 20002 ids; to classify texts take fasttext"):
        models.build("char_transformer", (64,), 4, vocabulary=20_002)


def test_an_unknown_norm_is_refused() -> None:
    for make in (models.resnet56, models.unet):
        with pytest.raises(ValueError, match='norm must be "batch" or "group", not \'none\''):
            make(norm="none")
    with pytest.raises(ValueError, match='norm must be "batch", "group" or "none", not \'layer\''):
        models.vgg16(norm="layer")


def test_other_pictures_than_cifars_are_taken() -> None:
    digits, wide = torch.rand(2, 1, 8, 8), torch.rand(2, 3, 40, 48)
    assert models.resnet9((1, 8, 8), 10)(digits).shape == (2, 10)
    assert models.vgg_small((1, 8, 8), 10)(digits).shape == (2, 10)
    assert models.resnet9((3, 40, 48), 7)(wide).shape == (2, 7)
    assert models.vgg16((3, 40, 48), 7).eval()(wide).shape == (2, 7)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_mask_has_the_size_of_its_picture(norm: str) -> None:
    model = models.unet((3, 64, 32), outputs=2, norm=norm)
    out = model(torch.rand(2, 3, 64, 32))
    assert out.shape == (2, 2, 64, 32)
    out.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    with pytest.raises(ValueError, match="sides are multiples of 16 pixels, not 64 x 40"):
        models.unet((3, 64, 40))


def test_the_unet_s_norm_layers_are_those_that_fedbn_keeps_at_home() -> None:
    names = [name for name, _ in models.unet((3, 32, 32), widths=(2, 4)).named_parameters() if "norm" in name]
    assert len(names) == 3 * 2 * 2  # down, down, up: two norms each, of weights and biases


# ---- fastText -----------------------------------------------------------------------------


def test_a_text_is_the_mean_of_its_words_without_the_filling() -> None:
    model = models.fasttext(vocabulary=4, classes=1, width=2)
    with torch.no_grad():
        model.words.weight[1:] = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
        model.dense.weight.copy_(torch.tensor([[1.0, 10.0]]))
        model.dense.bias.fill_(0.5)
        # words 1, 2, 2: mean (1/3, 4/3); word 3: (3, 3); nothing: the bias
        out = model(torch.tensor([[1, 2, 2, 0], [3, 0, 0, 0], [0, 0, 0, 0]]))
    torch.testing.assert_close(out, torch.tensor([[1 / 3 + 40 / 3 + 0.5], [33.5], [0.5]]))


def test_the_filling_is_never_trained() -> None:
    model = models.fasttext(vocabulary=5, classes=2)
    model(torch.tensor([[1, 2, 0, 0]])).sum().backward()
    assert model.words.weight.grad.abs().sum(1).gt(0).tolist() == [False, True, True, False, False]
    assert model.words.weight[0].tolist() == [0.0] * 16
    with pytest.raises(ValueError, match="vocabulary=1: id 0 is no word, so that there must be 2 ids or more"):
        models.fasttext(vocabulary=1, classes=2)


def test_texts_of_many_clients_can_be_computed_together() -> None:
    clients = [models.fasttext(vocabulary=9, classes=3) for _ in range(2)]
    texts = torch.randint(9, (2, 4, 6), generator=torch.Generator().manual_seed(0))
    stacked, _ = torch.func.stack_module_state(clients)  # type: ignore[arg-type]

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(clients[0], parameters, (x,))
        return out.square().sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked, texts)
    for k, client in enumerate(clients):
        client(texts[k]).square().sum().backward()
        for name, parameter in client.named_parameters():
            torch.testing.assert_close(together[name][k], parameter.grad)


# ---- they learn ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    tiers(["resnet9", "vgg_small", "resnet56", "resnet56_group", "vgg16", "vgg16_group", "vgg16_none"], slow=2),
)
def test_a_few_steps_on_real_pictures_lower_the_loss(data_dir: Path, name: str) -> None:
    path = data_dir / "cifar10/cifar10_first4000_lossless.npz"
    if not path.exists():
        pytest.skip(f"THINWIRE_DATA names a folder without {path.name}")
    with np.load(path) as file:
        x = torch.from_numpy(file["image"][:4]).permute(0, 3, 1, 2).float() / 255 - 0.5
        y = torch.from_numpy(file["label"][:4]).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.build(name, (3, 32, 32), 10)
    before, after = losses(model, lambda: F.cross_entropy(model(4 * x), y), lr=0.005, steps=4)
    assert after < 0.9 * before


def test_a_few_steps_on_real_vessels_lower_the_loss_of_the_unet(data_dir: Path) -> None:
    path = data_dir / "retina_vessels/retina_256.npz"
    if not path.exists():
        pytest.skip(f"THINWIRE_DATA names a folder without {path.name}")
    with np.load(path) as file:
        x = torch.from_numpy(file["image"][:2, 96:160, 96:160]).permute(0, 3, 1, 2).float() / 255
        y = torch.from_numpy(file["vessel"][:2, None, 96:160, 96:160]).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.unet()
    before, after = losses(model, lambda: F.binary_cross_entropy_with_logits(model(x), y), lr=0.1, steps=5)
    assert after < 0.9 * before


@pytest.mark.slow
def test_a_pass_over_real_reviews_teaches_fasttext(data_dir: Path) -> None:
    if not (data_dir / "sst2").is_dir():
        pytest.skip("THINWIRE_DATA names a folder without sst2")
    reviews = load("sst2", data_dir, download=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.build("fasttext", (48,), 2, vocabulary=reviews.vocabulary)
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    for x, y in zip(reviews.inputs.split(64), reviews.targets.split(64), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(reviews.test_inputs).argmax(1) == reviews.test_targets).float().mean()
    assert right > 0.75  # half are right by chance


def test_a_few_steps_on_real_talk_lower_the_loss_of_the_transformer(data_dir: Path) -> None:
    if not (data_dir / "personachat").is_dir():
        pytest.skip("THINWIRE_DATA names a folder without personachat")
    talk = load("personachat_words", data_dir, download=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.build("char_transformer", (20,), talk.num_classes, vocabulary=talk.vocabulary)
    x, y = talk.inputs[:16], talk.targets[:16]
    before, after = losses(model, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), lr=0.1, steps=6)
    assert before == pytest.approx(8.09, abs=0.1)  # ln 3,254
    assert after < 0.9 * before
