"""The digits that come with scikit-learn: 1,797 pictures of 8 x 8 in 10 classes.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits" (UCI), the test
part, as packed by scikit-learn. The small set to try things on: no file, no network.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .dataset import DataSet
from .optional import optional

_CUT_SEED = 0  # the cut is part of the set: figures of different runs stay comparable
_TEST_SHARE = 0.2


def digits(data_dir: str | Path | None = None, download: bool = True) -> DataSet:
    """1,438 + 359 pictures, float32 [n, 1, 8, 8] from 0 to 1; each class is cut 80 to 20.

    They are in scikit-learn: ``data_dir`` and ``download`` make no difference. Raises ImportError where scikit-learn is
    missing.
    """
    pixels, labels = _read()
    inputs = torch.tensor(pixels, dtype=torch.float32, device="cpu").reshape(-1, 1, 8, 8) / 16
    targets = torch.tensor(labels, dtype=torch.int64, device="cpu")
    generator = torch.Generator().manual_seed(_CUT_SEED)
    test = torch.zeros(len(targets), dtype=torch.bool, device="cpu")
    for label in range(10):
        members = (targets == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator, device="cpu")
        test[members[order[: round(_TEST_SHARE * len(members))]]] = True
    return DataSet("digits", inputs[~test], targets[~test], inputs[test], targets[test], num_classes=10)


def _read() -> tuple[Any, Any]:
    """Pixels [n, 64] and classes [n], from scikit-learn's file: to import it takes as long as to import torch.

    Where there is no such file scikit-learn is asked.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")  # [n, 64 + 1]
            return table[:, :-1], table[:, -1]
    asked: tuple[Any, Any] = optional("sklearn.datasets", "the set digits").load_digits(return_X_y=True)
    return asked
