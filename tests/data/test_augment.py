"""Augmentation: every example by a draw of its own, all from the generator given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from thinwire.data import Augment, Crop, Flip, Rotate90

EVERY: list[Augment] = [Crop(), Flip(), Rotate90()]
PICTURES = torch.arange(1, 1 + 200 * 3 * 6 * 6).remainder(251).add(1).byte().reshape(200, 3, 6, 6)  # no zero in them


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def windows(picture: Tensor, padding: int) -> list[Tensor]:
    """All that a crop may give, cut one by one."""
    _, h, w = picture.shape
    padded = F.pad(picture, (padding,) * 4)
    return [
        padded[:, top : top + h, left : left + w] for top in range(2 * padding + 1) for left in range(2 * padding + 1)
    ]


def test_a_crop_is_a_window_of_the_picture_with_zeros_around() -> None:
    out = Crop(padding=1)(PICTURES, seeded())
    assert (out.shape, out.dtype) == (PICTURES.shape, torch.uint8)
    drawn = []
    for picture, cropped in zip(PICTURES, out, strict=True):
        (place,) = (i for i, window in enumerate(windows(picture, 1)) if torch.equal(window, cropped))
        drawn.append(place)
    counts = torch.tensor(drawn).bincount(minlength=9)
    assert int(counts.sum()) == 200
    assert int(counts.min()) > 8  # 22 of each of the nine places expected
    assert int(counts.max()) < 40


def test_a_crop_by_hand() -> None:
    picture = torch.tensor([[[[1, 2], [3, 4]]]])
    shifted = {tuple(Crop(padding=1)(picture, seeded(seed)).flatten().tolist()) for seed in range(200)}
    assert shifted == {
        (0, 0, 0, 1), (0, 0, 1, 2), (0, 0, 2, 0),
        (0, 1, 0, 3), (1, 2, 3, 4), (2, 0, 4, 0),
        (0, 3, 0, 0), (3, 4, 0, 0), (4, 0, 0, 0),
    }  # fmt: skip


def test_a_flip_mirrors_about_every_second_picture_and_all_its_channels() -> None:
    out = Flip()(PICTURES, seeded())
    same = (out == PICTURES).flatten(1).all(1)
    mirrored = (out == torch.from_numpy(PICTURES.numpy()[..., ::-1].copy())).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert 75 <= int(mirrored.sum()) <= 125


def test_a_rotation_turns_about_every_fourth_picture_by_each_angle_and_all_its_channels() -> None:
    out, counts = Rotate90()(PICTURES, seeded()), []
    for turns in range(4):
        turned = torch.from_numpy(np.rot90(PICTURES.numpy(), turns, (2, 3)).copy())
        counts.append(int((out == turned).flatten(1).all(1).sum()))
    assert sum(counts) == 200
    assert 30 < min(counts) <= max(counts) < 75
    with pytest.raises(ValueError, match=r"Rotate90\(\) turns square pictures, not 6 x 5"):
        Rotate90()(PICTURES[..., :5], seeded())


@pytest.mark.parametrize("augment", EVERY, ids=repr)
def test_the_generator_decides_and_nothing_else_is_touched(augment: Augment) -> None:
    before, original = torch.get_rng_state(), PICTURES.clone()
    first = augment(PICTURES, seeded(1))
    assert torch.equal(first, augment(PICTURES, seeded(1)))
    assert not torch.equal(first, augment(PICTURES, seeded(2)))
    assert torch.equal(PICTURES, original)
    assert torch.equal(torch.get_rng_state(), before)
    generator = seeded(1)
    augment(PICTURES, generator)
    assert not torch.equal(first, augment(PICTURES, generator))  # the next batch is drawn anew


@pytest.mark.parametrize("augment", EVERY, ids=repr)
def test_bytes_and_floats_are_changed_alike(augment: Augment) -> None:
    out = augment(PICTURES.float() / 255, seeded())
    assert out.dtype == torch.float32
    assert torch.equal(out, augment(PICTURES, seeded()).float() / 255)


@pytest.mark.parametrize("augment", EVERY, ids=repr)
def test_a_batch_of_one_and_an_empty_one_are_taken(augment: Augment) -> None:
    assert augment(PICTURES[:1], seeded()).shape == (1, 3, 6, 6)
    assert augment(PICTURES[:0], seeded()).shape == (0, 3, 6, 6)


def test_their_names_can_be_typed_back() -> None:
    assert [repr(augment) for augment in (*EVERY, Crop(2))] == ["Crop(4)", "Flip()", "Rotate90()", "Crop(2)"]
    assert Crop(2) == eval("Crop(2)")


def test_a_crop_without_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="padding must be at least one pixel"):
        Crop(0)
