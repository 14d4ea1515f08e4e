"""The retina: what is read of the real file, and what is said of others."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from thinwire.data import DataSet, load
from thinwire.data.retina import retina
from thinwire.errors import DataError


@functools.cache
def read(folder: Path, size: int) -> DataSet:
    """Read once for all tests."""
    if not (folder / "retina_vessels/retina_256.npz").exists():
        pytest.skip("THINWIRE_DATA names a folder without retina_vessels")
    return retina(folder, size=size)


def test_every_site_has_its_training_and_test_pictures(data_dir: Path) -> None:
    found = read(data_dir, 32)
    assert found.sites == 7
    assert found.groups is not None
    assert found.test_groups is not None
    assert found.groups.bincount().tolist() == [20, 20, 14, 30, 15, 27, 36]
    assert found.test_groups.bincount().tolist() == [20, 8, 6, 15, 7, 12, 13]
    assert (found.inputs.shape, found.targets.shape) == ((162, 3, 32, 32), (162, 32, 32))
    assert (found.test_inputs.shape, found.test_targets.shape) == ((81, 3, 32, 32), (81, 32, 32))


@pytest.mark.slow
def test_at_256_pixels_it_is_what_the_file_holds(data_dir: Path) -> None:
    found = read(data_dir, 256)
    assert found.groups is not None
    with np.load(data_dir / "retina_vessels/retina_256.npz") as file:
        image, vessel, fov, test = (file[name] for name in ("image", "vessel", "fov", "test"))
    assert np.array_equal(found.inputs[5].permute(1, 2, 0).numpy(), image[test == 0][5])
    assert np.array_equal(found.test_targets.numpy(), np.where(fov == 0, 255, vessel)[test == 1])
    pixels = image[test == 0].reshape(-1, 3) / 255
    assert found.mean == tuple(pixels.mean(0).round(4))
    assert found.std == tuple(pixels.std(0).round(4))
    # The README of the data: vessels' share of the field of view at site 0, mean over all its 40 images: .143.
    both = torch.cat([found.targets[found.groups == 0], found.test_targets[found.test_groups == 0]])
    shares = (both == 1).flatten(1).sum(1) / (both != 255).flatten(1).sum(1)
    assert round(float(shares.mean()), 3) == 0.143


@pytest.mark.slow
def test_a_smaller_picture_is_means_and_a_smaller_mask_follows_the_file_s_rule(data_dir: Path) -> None:
    found = read(data_dir, 128)
    with np.load(data_dir / "retina_vessels/retina_256.npz") as file:
        first = np.flatnonzero(file["test"] == 0)[:1]
        image, vessel, fov = (file[name][first].astype(int) for name in ("image", "vessel", "fov"))
    quarters = [np.s_[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    image, vessel, fov = (sum(x[part] for part in quarters) for x in (image, vessel, fov))
    assert np.array_equal(found.inputs[0].permute(1, 2, 0).numpy(), (image[0] + 2) // 4)
    # 2 of 4 pixels are 127.5 of 255: more than 96, and more than 127
    assert np.array_equal(found.targets[0].numpy(), np.where(fov[0] < 2, 255, vessel[0] >= 2))
    assert (found.name, found.num_classes) == ("retina", 2)


def test_the_set_has_two_sizes_by_name(data_dir: Path) -> None:
    assert read(data_dir, 128).inputs.nbytes + read(data_dir, 128).test_inputs.nbytes == 243 * 3 * 128**2
    with pytest.raises(ValueError, match=r"retina\(size=100\): the sides of pictures divide 256"):
        retina(data_dir, size=100)


# ---- files of other kinds -------------------------------------------------------------------


def arrays() -> dict[str, np.ndarray]:
    """Two sites of two pictures each."""
    zero = np.zeros((4, 256, 256), np.uint8)
    image, (site, test) = np.zeros((4, 256, 256, 3), np.uint8), np.array([[0, 0, 1, 1], [0, 1, 0, 1]], np.uint8)
    return {"image": image, "vessel": zero, "fov": zero + 1, "site": site, "test": test}


def written(folder: Path, found: dict[str, np.ndarray]) -> Path:
    (folder / "retina_vessels").mkdir(exist_ok=True)
    np.savez(folder / "retina_vessels/retina_256.npz", **found)  # type: ignore[arg-type]
    return folder


def test_a_file_of_other_sites_is_taken(tmp_path: Path) -> None:
    found = retina(written(tmp_path, arrays()), size=16)
    assert (found.sites, len(found.inputs), len(found.test_inputs)) == (2, 2, 2)


def test_a_missing_file_is_said_with_its_place_and_why_it_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        DataError, match=r"retina_256.npz is missing; put it at .*retina_vessels/retina_256.npz .*forbid"
    ):
        load("retina", tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("fov", None, "'fov is not a file in the archive'|fov is not a file"),
        (
            "image",
            np.zeros((4, 128, 128, 3), np.uint8),
            r"image is uint8 \[4, 128, 128, 3\], not uint8 \[4, 256, 256, 3\]",
        ),
        ("vessel", np.zeros((4, 256, 256), np.float32), r"vessel is float32 .*, not uint8 \[4, 256, 256\]"),
        ("vessel", np.full((4, 256, 256), 255, np.uint8), "vessel has the value 255; it is 0 or 1"),
        ("test", np.zeros(4, np.uint8), "site 0 of 2 has no test picture"),
        ("site", np.array([0, 0, 2, 2], np.uint8), "site 1 of 3 has no training picture"),
        ("site", np.zeros(3, np.uint8), r"site is uint8 \[3\], not uint8 \[4\]"),
    ],
)
def test_a_wrong_file_is_said_with_the_array(tmp_path: Path, name: str, value: np.ndarray | None, says: str) -> None:
    found = arrays() | ({} if value is None else {name: value})
    if value is None:
        del found[name]
    with pytest.raises(DataError, match=rf"retina_256\.npz: .*({says})"):
        retina(written(tmp_path, found))


def test_half_a_file_is_said_to_be_unreadable(tmp_path: Path) -> None:
    path = written(tmp_path, arrays()) / "retina_vessels/retina_256.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="not a readable npz file"):
        retina(tmp_path)
