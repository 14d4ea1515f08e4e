"""DEF, chapter 2 of the thesis: against dense exchanges and other error feedback."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..verdict import Claim, compare

DEF = (
    "CIFAR-10, VGG-16, 16 workers, 78,000 steps, ratio 64",
    "CIFAR-10, 1.3M parameters, 2 workers, 12,000 steps, ratio 64",
)
claim = partial(compare, "def")


def claims() -> Iterator[Claim]:
    dense, ours = ("two ranks", "dense"), ("two ranks", "DEF")
    yield claim(DEF, "DEF is .01 points behind dense", ours, dense, -0.01, saved=0.98)
    yield claim(DEF, "DEF-A is .15 points behind dense", ours, dense, -0.15, saved=0.98, of="accuracy_x_mean_of_last_5")
    four = DEF[0], DEF[1].replace("2 workers", "4 workers")
    what, other = "four ranks: DEF is .01 points behind dense", ("four ranks", "dense")
    yield claim(four, f"{what}, λ by rule", ("lambda, four ranks", "lambda by rule"), other, -0.01, saved=0.98)
    yield claim(four, f"{what}, λ the best of four", ("lambda, four ranks", "lambda 0.5"), other, -0.01, saved=0.98)
    for row, gap in (("EF", 1.59), ("SAEF, averaged every 100 steps", 1.87), ("PSync", 1.96)):
        yield claim(DEF, f"DEF is {gap:g} points ahead of {row}", ours, ("two ranks", row), gap)
    for name, settings in (("two", DEF), ("four", four)):
        low = (f"lambda, {name} ranks", "lambda 0.3")
        what = f"{name} ranks: λ of .7 is better than .3 (no claim of the thesis)"
        yield claim(settings, what, (low[0], "lambda 0.7"), low, None)
    deep = "CIFAR-10, ResNet-110, 16 workers, 78,000 steps", "CIFAR-10, ResNet-20, 2 workers, 12,000 steps, in bfloat16"
    for row, gap in (("DEF", -0.39), ("DEF, average", -0.07)):
        of = "accuracy_x_mean_of_last_5" if "average" in row else "accuracy_mean_of_last_5"
        name = "DEF-A" if "average" in row else "DEF"
        what = f"ResNet: {name} is {-gap:g} points behind dense"
        yield claim(deep, what, ("ResNet-20", "DEF"), ("ResNet-20", "dense"), gap, saved=0.98, of=of)
    for row, gap in (("SAEF, averaged every 100 steps", 1.39), ("PSync", 2.08)):
        what = f"ResNet: DEF is {gap:g} points ahead of {row}"
        yield claim(deep, what, ("ResNet-20", "DEF"), ("ResNet-20", row), gap)
    diverging = [("ResNet-20", "EF, dense's rate"), ("EF21", "over blocks")]
    yield claim(
        deep, "EF diverges on a ResNet, at dense's rate", ("ResNet-20", "dense"), diverging[0], None, fails=True
    )
    yield claim(DEF, "EF21 does not converge over blocks", dense, diverging[1], None, fails=True)
