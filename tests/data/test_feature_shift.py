"""Sites with cameras of their own: what each camera makes of pixels, by hand, and who sees what."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from thinwire.data import DataSet, feature_shifted, load
from thinwire.data.feature_shift import background, blur, contrast, inversion, noise, rotation

G = torch.Generator()


def row(*values: int) -> Tensor:
    return torch.tensor([[[values]]], dtype=torch.int32)


def small(n: int = 30, side: int = 8) -> DataSet:
    x = torch.randint(256, (n, 1, side, side), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    y = torch.arange(n) % 3
    return DataSet("mine", x, y, x[:13].clone(), y[:13], 3, mean=(0.5,), std=(0.5,))


def test_contrast_background_and_inversion_by_hand() -> None:
    assert contrast(row(0, 5, 9, 255), G).flatten().tolist() == [76, 78, 79, 178]
    assert inversion(row(0, 5, 255), G).flatten().tolist() == [255, 250, 0]
    # pixels 4 to 7 of the first four rows are in a grey square, and 0 to 3 of the next four
    picture = torch.zeros(1, 1, 8, 8, dtype=torch.int32)
    picture[0, 0, 0, 5] = 200
    grey = background(picture, G)[0, 0]
    assert grey[0].tolist() == [0, 0, 0, 0, 120, 200, 120, 120]
    assert grey[4].tolist() == [120, 120, 120, 120, 0, 0, 0, 0]


def test_a_blurred_point_is_the_binomial_filter_applied_twice_each_way() -> None:
    point = torch.zeros(1, 1, 11, 11, dtype=torch.int32)
    point[0, 0, 5, 5] = 255
    # p = np.zeros((11, 11), int); p[5, 5] = 255
    # f = lambda x: (np.convolve(x, [1, 4, 6, 4, 1], "same") + 8) // 16
    # for axis in (0, 1, 0, 1): p = np.apply_along_axis(f, axis, p)
    # p[:, 5], p[:, 4]
    found = blur(point, G)[0, 0]
    assert found[:, 5].tolist() == [0, 0, 2, 8, 15, 19, 15, 8, 2, 0, 0]
    assert found[:, 4].tolist() == [0, 0, 2, 6, 12, 15, 12, 6, 2, 0, 0]
    assert torch.equal(blur(torch.full((1, 2, 6, 7), 200, dtype=torch.int32), G), torch.full((1, 2, 6, 7), 200).int())


def test_a_rotation_keeps_the_middle_and_moves_a_point_by_thirty_degrees() -> None:
    picture = torch.zeros(1, 1, 21, 21, dtype=torch.int32)
    picture[0, 0, 10, 10], picture[0, 0, 10, 18] = 200, 200  # the middle, and 8 pixels to its right
    turned = rotation(picture, G)[0, 0]
    assert int(turned[10, 10]) == 200
    turned[9:12, 9:12] = 0
    weights = turned.double() / turned.sum()
    places = torch.arange(21, dtype=torch.float64) - 10
    down, right = float(weights.sum(1) @ places), float(weights.sum(0) @ places)
    assert (right, abs(down)) == pytest.approx((8 * 0.866, 4.0), abs=0.3)
    full = rotation(torch.full((1, 1, 20, 20), 100, dtype=torch.int32), G)[0, 0]
    assert (int(full[0, 0]), int(full[10, 10])) == (0, 100)  # black comes in at the corners


def test_noise_has_the_deviation_that_is_said_and_comes_from_the_generator() -> None:
    grey = torch.full((40, 1, 32, 32), 128, dtype=torch.int32)
    first = noise(grey, torch.Generator().manual_seed(0))
    assert torch.equal(first, noise(grey, torch.Generator().manual_seed(0)))
    assert not torch.equal(first, noise(grey, torch.Generator().manual_seed(1)))
    assert float(first.double().std()) == pytest.approx(50, abs=1)
    assert float(first.double().mean()) == pytest.approx(128, abs=1)
    assert (int(noise(grey * 0, G).min()), int(noise(grey + 127, G).max())) == (0, 255)


def test_every_site_sees_its_own_pictures_through_its_own_camera() -> None:
    data = small()
    found = feature_shifted(data)
    assert found.groups is not None
    assert found.test_groups is not None
    assert (found.name, found.sites) == ("mine_sites", 6)
    assert found.groups.bincount().tolist() == [5] * 6
    assert found.test_groups.bincount().tolist() == [3, 2, 2, 2, 2, 2]
    assert torch.equal(found.targets, data.targets)
    at = found.groups == 5
    assert torch.equal(found.inputs[at], 255 - data.inputs[at])
    at = found.test_groups == 0
    assert torch.equal(found.test_inputs[at].int(), data.test_inputs[at].int() * 2 // 5 + 76)
    assert found.mean == (round(float(found.inputs.double().mean() / 255), 4),)
    assert found.std == (round(float((found.inputs.double() / 255).std(correction=0)), 4),)
    again, other = feature_shifted(data), feature_shifted(data, seed=1)
    assert torch.equal(again.inputs, found.inputs)
    assert not torch.equal(other.groups, found.groups)  # type: ignore[arg-type]


def test_a_set_that_has_no_pictures_with_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="feature_shifted: digits is no set of uint8 pictures with a label each"):
        feature_shifted(load("digits"))
    with pytest.raises(ValueError, match="5 pictures are too few for 6 sites"):
        feature_shifted(small(5))


@pytest.mark.slow
def test_fashion_sites_are_the_same_bytes_everywhere(data_dir: Path) -> None:
    if not (data_dir / "fashion_mnist").is_dir():
        pytest.skip("THINWIRE_DATA names a folder without fashion_mnist")
    found = load("fashion_sites", data_dir, download=False)
    digest = [hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16] for x in (found.inputs, found.test_inputs)]
    assert digest == ["d7da42bbb5d64f47", "74193dcdd9500d53"]
    assert (found.mean, found.std) == ((0.4067,), (0.3389,))
