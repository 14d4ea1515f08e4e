"""The networks: their sizes as the papers give them, and what they accept."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from thinwire import models


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def kernels(module: nn.Module) -> int:
    return sum(parameter.ndim > 1 for parameter in module.parameters())


def test_the_numbers_of_parameters_are_those_of_the_papers() -> None:
    assert size(models.linear(784, 10)) == 7_850
    assert size(models.mlp()) == 50_890  # 784 * 64 + 64 + 64 * 10 + 10
    assert size(models.lbgm_cnn((1, 28, 28), 10)) == 431_080
    assert size(models.lbgm_cnn((3, 32, 32), 10)) == 657_080
    assert size(models.fedavg_cnn((1, 28, 28), 10)) == 582_026


def test_an_mlp_has_the_hidden_layers_asked_for() -> None:
    assert size(models.mlp(4, hidden=(3, 2), classes=5)) == 4 * 3 + 3 + 3 * 2 + 2 + 2 * 5 + 5
    assert size(models.mlp(4, hidden=(), classes=5)) == 25


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet20_has_the_23_kernels_that_fedluar_counts(norm: str) -> None:
    model = models.resnet20(norm=norm)
    assert kernels(model) == 23
    # 3x3: 3*16 + 6*16*16 + 16*32 + 5*32*32 + 32*64 + 5*64*64 = 29,744 (times 9); 1x1: 16*16 + 16*32 + 32*64 = 2,816;
    # norms: 2 * (8*16 + 7*32 + 7*64) = 1,600; dense: 650
    assert size(model) == 29_744 * 9 + 2_816 + 1_600 + 650 == 272_762


def test_only_batch_norm_keeps_statistics() -> None:
    assert len(list(models.resnet20(norm="batch").buffers())) == 3 * 22
    assert list(models.resnet20(norm="group").buffers()) == []
    with pytest.raises(ValueError, match='norm must be "batch" or "group", not \'layer\''):
        models.resnet20(norm="layer")


def built(name: str) -> tuple[nn.Module, torch.Tensor, tuple[int, ...]]:
    """A model, two examples of the kind that its arguments name, and the shape of its outputs."""
    takes = inspect.signature(models.MODELS[name]).parameters
    if "context" in takes:
        return models.build(name, (80,), 65), torch.zeros(2, 80, dtype=torch.int64), (2, 80, 65)
    if "vocabulary" in takes:
        return models.build(name, (6,), 4, vocabulary=9), torch.tensor([[3, 8, 1, 3, 0, 0], [2] * 6]), (2, 4)
    assert {"shape", "inputs"} & set(takes)
    expected = (2, 10) if {"classes"} <= set(takes) else (2, 1, 32, 32)
    return models.build(name, (3, 32, 32), 10), torch.rand(2, 3, 32, 32), expected


@pytest.mark.parametrize("name", models.names())
def test_a_model_built_by_name_gives_logits_and_gradients(name: str) -> None:
    model, examples, expected = built(name)
    out = model(examples)
    assert out.shape == expected
    out.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", models.names())
def test_the_seed_of_the_caller_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(built(name)[0].parameters())

    with torch.random.fork_rng():
        assert torch.equal(weights(1), weights(1))
        assert not torch.equal(weights(1), weights(2))


def test_the_first_models_keep_their_names() -> None:
    plain = {"linear", "mlp", "fedavg_cnn", "lbgm_cnn", "resnet9", "vgg_small", "fasttext", "char_transformer"}
    normed = {"resnet20", "resnet20_group", "resnet56", "resnet56_group", "vgg16", "vgg16_group", "vgg16_none"}
    assert plain | normed <= set(models.names())
    assert models.names() == sorted(models.names())


def test_an_unknown_model_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"no model 'resnet_20' \(did you mean resnet20\?\)"):
        models.build("resnet_20", (3, 32, 32), 10)


@pytest.mark.parametrize("name", ["lbgm_cnn", "fedavg_cnn"])
def test_a_cnn_refuses_pictures_too_small_for_it(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} needs pictures of 16 x 16 pixels or more, not 8 x 8; linear, mlp"):
        models.build(name, (1, 8, 8), 10)
    assert models.build(name, (1, 16, 16), 10)(torch.rand(2, 1, 16, 16)).shape == (2, 10)


@pytest.mark.parametrize("name", ["linear", "mlp", "resnet20", "resnet20_group"])
def test_the_other_models_take_digits(name: str) -> None:
    assert models.build(name, (1, 8, 8), 10)(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_a_model_of_another_kind_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"resnet20 takes pictures .* not examples of shape \(80,\)"):
        models.build("resnet20", (80,), 65)
    with pytest.raises(ValueError, match=r"char_transformer takes texts .* not examples of shape \(1, 8, 8\)"):
        models.build("char_transformer", (1, 8, 8), 10)


def test_the_transformer_does_not_look_ahead() -> None:
    model = models.char_transformer(vocabulary=65, context=80).eval()
    text = torch.arange(80).remainder(65).unsqueeze(0)
    other = text.clone()
    other[0, 50] = 64
    with torch.no_grad():
        before, after = model(text), model(other)
    torch.testing.assert_close(before[0, :50], after[0, :50], rtol=0, atol=1e-6)
    assert (before[0, 50:] - after[0, 50:]).abs().amax(1).min() > 1e-6  # and everything later sees it


def test_the_transformer_has_the_sizes_asked_for() -> None:
    # embeddings (65 + 80) * 128; a block 12 * 128 * 128 + 13 * 128; last norm 256; dense 129 * 65
    assert size(models.char_transformer()) == 145 * 128 + 2 * (12 * 128**2 + 13 * 128) + 256 + 129 * 65 == 423_745
    assert size(models.char_transformer(5, context=4, width=8, depth=1, heads=2)) == 72 + 768 + 104 + 16 + 45
    with pytest.raises(ValueError, match=r"width \(10\) must be a multiple of heads \(4\)"):
        models.char_transformer(width=10)


def test_the_transformer_takes_shorter_texts_and_refuses_longer_ones() -> None:
    model = models.char_transformer(context=8)
    assert model(torch.zeros(1, 3, dtype=torch.int64)).shape == (1, 3, 65)
    with pytest.raises(ValueError, match="9 characters are more than the context of 8"):
        model(torch.zeros(1, 9, dtype=torch.int64))


def test_a_transformer_of_texts_has_the_sizes_asked_for_and_refuses_others() -> None:
    # words 100 * 8; a block 12 * 8 * 8 + 13 * 8; last norm 16; dense 9 * 3
    assert size(models.text_transformer(100, 3, width=8, depth=2, heads=2)) == 800 + 2 * (768 + 104) + 16 + 27
    for arguments, said in (
        ({"vocabulary": 1}, "vocabulary=1: id 0 is no word"),
        ({"vocabulary": 5, "width": 10}, r"width \(10\) must be a multiple of heads \(4\)"),
        ({"vocabulary": 5, "width": 3, "heads": 1}, r"width \(3\) must be even"),
    ):
        with pytest.raises(ValueError, match=said):
            models.text_transformer(classes=2, **arguments)


def test_a_transformer_of_texts_reads_words_in_their_order_and_no_filling() -> None:
    torch.manual_seed(0)
    model = models.text_transformer(9, 3, width=8, depth=2, heads=2).eval()
    for p in model.parameters():  # as it begins, blocks add little
        torch.nn.init.normal_(p)
    text = torch.tensor([[3, 1, 4, 1, 5]])
    filled = torch.tensor([[3, 1, 4, 1, 5, 0, 0]])
    turned = text.flip(1)
    with torch.no_grad():
        torch.testing.assert_close(model(filled), model(text))
        beside = torch.cat([filled, torch.tensor([[2, 7, 1, 8, 2, 8, 1], [0] * 7])])  # a longer one, and one of no word
        torch.testing.assert_close(model(beside)[:1], model(text))
        torch.testing.assert_close(model(beside)[2], model.dense.bias)
        assert not torch.allclose(model(turned), model(text), atol=1e-3)
        assert not torch.allclose(model(text)[:, :1], model(torch.tensor([[3, 1, 4, 1, 6]]))[:, :1], atol=1e-3)
        torch.testing.assert_close(model(torch.zeros(1, 4, dtype=torch.int64))[0], model.dense.bias)


def test_dropout_acts_in_training_only() -> None:
    model = models.char_transformer(dropout=0.5)
    text = torch.zeros(1, 8, dtype=torch.int64)
    with torch.random.fork_rng():
        assert not torch.equal(model(text), model(text))
    model.eval()
    assert torch.equal(model(text), model(text))
    assert all(module.p == 0 for module in models.char_transformer().modules() if isinstance(module, nn.Dropout))
