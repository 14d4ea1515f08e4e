"""Blood vessels of the retina: 162 + 81 colour photographs from seven sites, each pixel labelled by hand.

The sites are published sets with cameras, countries, diseases and annotators of their own. Training + test pictures:

- 0, DRIVE: 20 + 20. Staal et al., IEEE TMI 2004.
- 1, CHASE_DB1: 20 + 8. Owen et al., 2009; Fraz et al., 2012.
- 2, STARE: 14 + 6. Hoover, Kouznetsova, Goldbaum, IEEE TMI 2000.
- 3, HRF: 30 + 15. Budai et al., International Journal of Biomedical Imaging 2013.
- 4, LES-AV: 15 + 7. Orlando et al., MICCAI 2018.
- 5, DR HAGIS: 27 + 12. Holm et al., Journal of Medical Imaging 2017.
- 6, ORVS: 36 + 13. Sarhan et al., ICPR 2020.

Their licences do not let the pictures be passed on, so they are neither in the package nor downloaded. They are read
from one file, ``retina_vessels/retina_256.npz``, which holds of all n photographs, padded with black to a square and
resized to 256 x 256 pixels:

- ``image`` uint8 [n, 256, 256, 3];
- ``vessel`` and ``fov`` uint8 [n, 256, 256]: 1 where a vessel is, and where the eye is seen (the field of view);
- ``site`` uint8 [n], from 0 on, and ``test`` uint8 [n]: 1 for a test picture.

A file of another number of sites and pictures is taken as well.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, require
from .dataset import VOID, DataSet
from .files import DAMAGED, ByHand, obtain

FILE = ByHand(
    "retina_256.npz",
    "its licences forbid passing it on; the documentation of thinwire.data.retina has the published sets that it is "
    "made of, and its arrays",
)
SIDE = 256  # pixels, of the pictures in the file
VESSEL, SEEN = 96 / 255, 127 / 255  # above these shares of a larger pixel it is a vessel's, or seen: as in the file
MEAN, STD = (0.3564, 0.1682, 0.0771), (0.3361, 0.1638, 0.0948)  # of all training pixels, red, green, blue


def retina(data_dir: str | Path | None = None, download: bool = True, size: int = 128) -> DataSet:
    """Pictures uint8 [n, 3, size, size]; masks uint8 [n, size, size] of vessels, ``VOID`` outside the field of view.

    ``groups`` and ``test_groups`` are the sites. ``size`` divides 256. Smaller pictures are means over squares of
    pixels; a pixel of a smaller mask is a vessel if vessels fill more than 96 of 255 parts of its square, which is the
    rule by which the masks of the file were made. In memory the set takes 16 MB at 128 pixels and 64 MB at 256. While
    it is read it takes about 100 MB more, and 150 MB at 256 pixels.

    Raises DataError for a file that is missing or has other arrays, ValueError for another ``size``.
    """
    require(1 <= size <= SIDE and SIDE % size == 0, f"retina(size={size}): the sides of pictures divide {SIDE}")
    path = obtain("retina_vessels", FILE, data_dir, download)
    image, vessel, fov, site, test = _arrays(path)
    steps = range(0, len(image), 16)  # pictures at a time
    parts = [_resize(image[i : i + 16], vessel[i : i + 16], fov[i : i + 16], SIDE // size) for i in steps]
    inputs, masks = (torch.cat(x) for x in zip(*parts, strict=True))
    return DataSet(
        name="retina" if size == 128 else f"retina_{size}",
        inputs=inputs[~test],
        targets=masks[~test],
        test_inputs=inputs[test],
        test_targets=masks[test],
        num_classes=2,
        groups=site[~test],
        mean=MEAN,
        std=STD,
        test_groups=site[test],
    )


def retina_256(data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """The set at 256 pixels, the size of the thesis."""
    return retina(data_dir, download, size=256)


def _resize(image: Tensor, vessel: Tensor, fov: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Pictures uint8 [n, 3, 256 / k, 256 / k] and masks uint8 [n, 256 / k, 256 / k]."""
    means = (2 * _sums(image, k) + k * k).div(2 * k * k, rounding_mode="floor").to(torch.uint8)  # rounded
    mask = (_sums(vessel, k) > VESSEL * k * k).to(torch.uint8)
    mask[_sums(fov, k) <= SEEN * k * k] = VOID
    return means.permute(0, 3, 1, 2).contiguous(), mask


def _sums(x: Tensor, k: int) -> Tensor:
    """Sums over squares of k x k pixels: uint8 [n, 256, 256, ...] to int32 [n, 256 / k, 256 / k, ...]."""
    n, h, w, *rest = x.shape
    return x.view(n, h // k, k, w // k, k, *rest).sum((2, 4), dtype=torch.int32)


def _arrays(path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """image, vessel, fov uint8; site int64; test bool. Raises DataError that names the file and the array."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("image", "vessel", "fov", "site", "test")}
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}; see thinwire.data.retina for the arrays it should hold") from error
    except DAMAGED as error:
        raise DataError(f"{path}: not a readable npz file ({error}); copy it again") from error
    n = len(arrays["image"]) if arrays["image"].ndim else 0
    shapes = {
        "image": (n, SIDE, SIDE, 3),
        "vessel": (n, SIDE, SIDE),
        "fov": (n, SIDE, SIDE),
        "site": (n,),
        "test": (n,),
    }
    for name, shape in shapes.items():
        array = arrays[name]
        if array.dtype != np.uint8 or array.shape != shape:
            raise DataError(f"{path}: {name} is {array.dtype} {list(array.shape)}, not uint8 {list(shape)}")
        if name not in ("image", "site") and n and array.max() > 1:
            raise DataError(f"{path}: {name} has the value {array.max()}; it is 0 or 1")
    image, vessel, fov, site, test = (torch.from_numpy(array) for array in arrays.values())
    sites = range(int(site.max()) + 1 if n else 1)
    for number in sites:
        for part, kind in ((0, "training"), (1, "test")):
            if not ((site == number) & (test == part)).any():
                raise DataError(f"{path}: site {number} of {len(sites)} has no {kind} picture")
    return image, vessel, fov, site.long(), test.bool()
