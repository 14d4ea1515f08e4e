"""DOMO, chapter 4 of the thesis: momentum at the server and at clients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..verdict import Claim, compare

DOMO = (
    "CIFAR-10, VGG-16, 16 clients, P = 98, 200 epochs",
    "a quarter of CIFAR-10, LBGM's CNN, 16 clients, P = 98, 25 rounds",
)
claim = partial(compare, "optimisers")


def claims() -> Iterator[Claim]:
    family = ("FedAvg", "FedAvgSM", "FedAvgSLM-Z", "FedAvgSLM", "FedAvgLM", "FedAvgLM-Z")
    for name, among, gap in (
        ("s = 10 %", family, 2.13), ("s = 20 %", family, 1.02), ("E = .5", family[2:3], 1.25),
        ("E = 2", family[2:3], 1.70),
    ):  # fmt: skip
        what = f"{gap:g} points ahead of the best of {', '.join(among)}"
        if len(among) == 1:
            what = f"ahead of {among[0]} (the thesis: {gap:g} points ahead of its best counterpart)"
        others = tuple((name, row) for row in among)
        yield claim(DOMO, f"{name}: DOMO is {what}", (name, "DOMO"), others, gap)
    for row in family:
        yield claim(DOMO, f"s = 10 %: DOMO is ahead of {row}", ("s = 10 %", "DOMO"), ("s = 10 %", row), None)
    text = "s = 10 %: DOMO-S is .72 points behind DOMO"
    yield claim(DOMO, text, ("s = 10 %", "DOMO-S"), ("s = 10 %", "DOMO"), -0.72)
    for name, row, gap in (
        ("alpha and beta", "beta 1", 3.65), ("alpha and beta", "beta .6", 3.94), ("alpha and beta", "beta .2", 11.0),
        ("alpha and beta", "alpha .8", 0.71), ("alpha and beta", "alpha .4", 3.46),
        *(("mu", row, None) for row in ("mu_s .6", "mu_l .9", "mu_l 0")),
    ):  # fmt: skip
        best = "beta .9, alpha 1, mu_s .9, mu_l .6"
        far = "" if gap is None else f" by {gap:g} points"
        yield claim(DOMO, f"{best} is better than {row}{far}", ("s = 10 %", "DOMO"), (name, row), gap)
