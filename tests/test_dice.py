"""Pictures to segment: the Dice loss and measure, masks as targets, and masks that change with their pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire import Supervised
from thinwire.data import Crop, Flip, Rotate90
from thinwire.data.dataset import DataSet
from thinwire.losses import dice, dice_loss
from thinwire.problem import standard
from thinwire.task import as_task

V = 255  # a pixel that nobody labelled


def logits(values: list[list[float]]) -> Tensor:
    return torch.tensor(values).view(1, 1, len(values), -1)


def mask(values: list[list[int]]) -> Tensor:
    return torch.tensor([values], dtype=torch.uint8)


# Four pixels count: two vessels, of which one is found, and one found that is none. 2 * 1 / (2 + 2).
TRUE = mask([[1, 1, V], [0, 0, V]])
FOUND = logits([[3.0, -2.0, 5.0], [0.5, -1.0, -5.0]])


def test_dice_is_twice_the_shared_pixels_over_both_masks_where_pixels_are_labelled() -> None:
    assert dice(FOUND, TRUE).tolist() == [0.5]
    assert dice(-FOUND, TRUE).tolist() == [0.5]
    perfect = logits([[1.0, 1.0, 9.0], [-1.0, 0.0, 9.0]])  # a probability of .5 is not above .5
    assert dice(perfect, TRUE).tolist() == [1.0]
    assert dice(-perfect, TRUE).tolist() == [0.0]


def test_an_empty_mask_in_which_nothing_was_found_is_right() -> None:
    empty = mask([[0, 0, V], [0, 0, V]])
    assert dice(-torch.ones(1, 1, 2, 3), empty).tolist() == [1.0]
    assert dice(torch.ones(1, 1, 2, 3), empty).tolist() == [0.0]
    assert dice_loss(torch.full((1, 1, 2, 3), -50.0), empty).tolist() == [0.0]


def test_the_dice_loss_by_hand_is_one_value_a_picture() -> None:
    # p = 1/2 at every pixel: sum pt = 1, sum p = 2, sum t = 2, so 1 - (2 + 1) / (4 + 1)
    assert dice_loss(torch.zeros(1, 1, 2, 3), TRUE).tolist() == pytest.approx([0.4])
    both = dice_loss(torch.zeros(2, 1, 2, 3), torch.cat([TRUE, mask([[1, V, V], [0, V, V]])]))
    assert both.tolist() == pytest.approx([0.4, 1 - 2 / 3])  # sum pt = 1/2, sum p = 1, sum t = 1
    assert dice_loss(torch.zeros(1, 1, 2, 3).bfloat16(), TRUE).dtype == torch.float32


def test_the_gradient_of_the_dice_loss_is_that_of_numbers_and_none_where_nobody_labelled() -> None:
    x = FOUND.double().requires_grad_()
    dice_loss(x, TRUE).sum().backward()
    assert x.grad is not None
    moved = torch.zeros_like(FOUND, dtype=torch.float64)
    for place in np.ndindex(2, 3):
        step = torch.zeros_like(moved)
        step[0, 0][place] = 1e-6
        with torch.no_grad():
            moved[0, 0][place] = (dice_loss(x + step, TRUE) - dice_loss(x - step, TRUE)).sum() / 2e-6
    torch.testing.assert_close(x.grad, moved, atol=1e-8, rtol=0)
    assert x.grad[..., 2].tolist() == [[[0.0, 0.0]]]


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 2, 2, 3), (1, 1, 3, 2)])
def test_outputs_that_are_not_one_for_each_pixel_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"for masks of \[1, 2, 3\]: to segment pictures it needs one output for each"):
        dice(torch.zeros(shape), TRUE)


def test_of_several_masks_a_picture_dice_is_the_mean() -> None:
    empty = mask([[0, 0, V], [0, 0, V]])
    disc_and_cup = torch.stack([TRUE, empty], dim=1)
    found = torch.cat([FOUND, torch.full((1, 1, 2, 3), -50.0)], dim=1)
    assert dice(found, disc_and_cup).tolist() == [0.75]  # of .5 and, where nothing is and nothing was found, 1
    assert dice(found.flip(1), disc_and_cup).tolist() == [0.0]
    half = torch.cat([torch.zeros(1, 1, 2, 3), torch.full((1, 1, 2, 3), -50.0)], dim=1)
    assert dice_loss(half, disc_and_cup).tolist() == pytest.approx([0.2])  # of .4, as above, and 0
    with pytest.raises(
        ValueError, match=r"masks of \[1, 2, 2, 3\]: .* output for each pixel of each mask, \[1, 2, 2, 3\]"
    ):
        dice(FOUND, disc_and_cup)


# ---- tasks --------------------------------------------------------------------------------


def pictures(n: int = 6, side: int = 8) -> tuple[Tensor, Tensor]:
    """Noise in which bright pixels are the object; the rim is not labelled."""
    x = torch.randint(256, (n, 1, side, side), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    y = (x[:, 0] > 170).to(torch.uint8)
    y[:, 0] = y[:, -1] = y[:, :, 0] = y[:, :, -1] = V
    return x, y


def test_masks_choose_the_dice_loss_and_measure() -> None:
    x, y = pictures()
    task = Supervised(x, y)
    assert (task.loss_of, task.metrics_of) == (dice_loss, {"dice": dice})
    assert Supervised(x, y.long()[:, 0, 0]).metrics_of.keys() == {"accuracy"}
    for given in (y, y.numpy(), y == 1):
        made = as_task((x, given))
        assert isinstance(made, Supervised)
        assert (made.loss_of, made.targets.dtype, made.inputs.dtype) == (dice_loss, torch.uint8, torch.uint8)
    pairs: Any = list(zip(x, y, strict=True))
    assert torch.equal(as_task(pairs).targets, y)  # type: ignore[attr-defined]


@pytest.mark.parametrize("augment", [(Flip(), Rotate90()), (Crop(2),)], ids=repr)
def test_a_mask_is_changed_with_its_picture_and_what_comes_in_does_not_count(augment: Any) -> None:
    x, y = pictures()
    x += (x == 0).to(torch.uint8)  # so that a 0 is what a change brought in
    task, where = Supervised(x, y, augment=augment), torch.arange(6)
    inputs, targets = task.batch(where, torch.Generator().manual_seed(0))
    raw = (inputs * 255).round()[:, 0]
    assert targets.dtype == torch.uint8
    assert not torch.equal(targets, y)
    counted = targets != V
    assert torch.equal((raw > 170)[counted], (targets == 1)[counted])
    assert not ((raw == 0) & counted).any()
    plain, same = task.batch(where)
    assert torch.equal(same, y)
    assert torch.equal((plain * 255).round().to(torch.uint8), x)


@pytest.mark.parametrize("augment", [(Flip(), Rotate90()), (Crop(2),)], ids=repr)
def test_several_masks_are_changed_as_one(augment: Any) -> None:
    x, y = pictures()
    both, where = torch.stack([y, torch.where(y == V, V, 1 - y)], dim=1), torch.arange(6)
    one, same = Supervised(x, y, augment=augment).batch(where, torch.Generator().manual_seed(0))
    inputs, targets = Supervised(x, both, augment=augment).batch(where, torch.Generator().manual_seed(0))
    assert torch.equal(inputs, one)
    assert torch.equal(targets[:, 0], same)
    assert torch.equal(targets[:, 1], torch.where(same == V, V, 1 - same))
    made = as_task((x, both == 1))
    assert isinstance(made, Supervised)
    assert (made.loss_of, made.targets.shape) == (dice_loss, (6, 2, 8, 8))


def test_a_model_that_is_named_has_an_output_for_each_mask() -> None:
    x, y = pictures(8, 16)
    data = DataSet("eyes", x[:6], torch.stack([y, y], dim=1)[:6], x[6:], torch.stack([y, y], dim=1)[6:], 2)
    problem = standard(data, clients=2)
    assert problem.model()(torch.zeros(2, 1, 16, 16)).shape == (2, 2, 16, 16)
    found = tw.simulate(tw.FedAvg(tw.LocalSGD(0.1)), problem.model, problem.tasks, 1, test=problem.test, workers=1)
    assert 0 <= found.rounds[-1]["dice"] <= 1


def test_a_segmentation_is_trained_and_its_dice_is_in_every_record() -> None:
    x, y = pictures(24)
    tasks = [Supervised(x, y, torch.arange(k, 18, 3)) for k in range(3)]
    tests = [Supervised(x, y, torch.arange(18 + k, 24, 3)) for k in range(3)]
    local = tw.LocalAdam(1.0, batch=2)
    found = tw.simulate(
        tw.FedAvg(local), nn.Conv2d(1, 1, 1), tasks, 8, test=Supervised(x, y), client_tests=tests, workers=1
    )
    first, last = found.rounds[0], found.rounds[-1]
    assert last["dice"] > 0.9 > first["dice"]
    assert last["client_dice_worst"] <= last["client_dice_p10"] <= last["client_dice"] <= 1
    assert found.accuracy is None
    summary = found.summary()
    assert (summary["dice"], summary["client_dice_worst"]) == (last["dice"], last["client_dice_worst"])


def test_a_model_that_does_not_segment_is_refused_before_training() -> None:
    x, y = pictures()
    says = r"client 0: for masks of \[6, 8, 8\] the model should give one output for each pixel .* it gives \[2, 10\]"
    with pytest.raises(ValueError, match=says):
        tw.simulate(tw.FedAvg(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), [Supervised(x, y)], 1)


def test_pictures_of_bytes_as_targets_are_no_masks_and_are_refused() -> None:
    x, y = pictures()
    for targets in (x, x[:, 0], torch.where(y == 1, 7, y)):
        says = (
            r"client 0: targets of bytes .* are masks, of 0, 1 and 255 .*; these have \d+: to predict values make them"
        )
        with pytest.raises(ValueError, match=says):
            tw.simulate(tw.FedAvg(), nn.Conv2d(1, 1, 1), [(x, targets)], 1)
