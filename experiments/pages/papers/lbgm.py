"""LBGM: fewer bytes by recycled directions, alone and beneath other links."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..verdict import OURS, Claim, compare

LBGM = "100 clients of 3 classes, all of the data, 500 rounds", "the same of 3,000 pictures, 200 rounds, in bfloat16"
LBGM_RATE = LBGM[0], "the same of 3,000 pictures, at the paper's rate of .01"
BENEATH = "MNIST, 100 clients of 3 classes, all of the data, 100 rounds", "the same of 3,000 pictures, in bfloat16"
SIGNS = (
    "CNNs, distributed training by signs, classes apart",
    "Fashion-MNIST, two data-parallel workers, 1,000 steps, in bfloat16",
)
HALF = "MNIST, half of 100 clients a round, 100 rounds", "the same of 3,000 pictures, in bfloat16"
claim = partial(compare, "lbgm")


def claims() -> Iterator[Claim]:
    for delta, gap, saved, text in (
        (0.2, -14.0, 0.0, "δ = .2 costs up to 14 points"),
        (0.05, -4.0, 0.55, "δ = .05 costs up to 4 points and saves 55 %"),
        (0.01, -0.01, 0.22, "δ = .01 costs up to .01 points and saves 22 %"),
    ):
        name, settings = ("CIFAR-10", LBGM) if delta == 0.2 else ("CIFAR-10, .01", LBGM_RATE)
        rows = (name, f"delta {delta}"), (name, "dense")
        yield claim(settings, f"CIFAR-10, {text}", *rows, gap, saved=saved, from_to=(70.3, 10.0))
    for name, gap, saved, text in (("half sampled", -4.0, 0.55, "4"), ("half sampled, iid", -0.2, 0.35, ".2")):
        what = f"{name}, δ = .2 costs up to {text} points and saves {100 * saved:.0f} %"
        yield claim(HALF, what, (name, "delta .2"), (name, "dense"), gap, saved=saved)
    tops = [f"top-k {share} %{feedback}" for feedback in (", error feedback", "") for share in ("10", "1", "0.1")]
    for row, saved, text in (
        *((row, 0.3, f"saves 30 to 70 % on top of {row}") for row in (*tops, "rank 2", "rank 1", "rank 3")),
        ("signs", 0.6, "saves 60 to 80 % on top of signs of clients (Figure 8)"),
    ):
        own = "" if row in ("top-k 10 %, error feedback", "rank 2", "signs") else OURS
        text += own or (" (ATOMO)" if row == "rank 2" else "")
        yield claim(BENEATH, text, ("beneath", f"LBGM over {row}"), ("beneath", row), -1.0, saved=saved)
    signs = "LBGM over signs, delta .2"
    yield claim(
        SIGNS,
        "saves 60 to 80 % over signs of two data-parallel ranks" + OURS,
        ("ranks", signs),
        ("ranks", "signs"),
        -1.0,
        saved=0.6,
    )
