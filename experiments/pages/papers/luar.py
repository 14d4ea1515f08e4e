"""FedLUAR: recycled layers against dropped ones, by which choice, and over which methods."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..verdict import OURS, Claim, compare

LETTERS = (
    "FEMNIST, 128 clients, 32 a round, 200 rounds",
    "EMNIST letters, 64 clients, 8 a round, 150 rounds, in bfloat16",
)
LUAR = "CIFAR-10, ResNet-20, 128 clients, 200 rounds", LETTERS[1]
QUOTED = "as others quote the paper, data set not said", LETTERS[1]
ALIKE = "EMNIST letters, 64 clients that are alike, 16 a round, the rate falls twice, 150 rounds"  # as the authors' are
OVER = ("FedProx", "FedOpt, .9", "FedMut", "MOON", "FedPAQ, 16 levels", "PruneFL")
claim = partial(compare, "luar")


def claims() -> Iterator[Claim]:
    yield from apart()
    yield from alike()
    yield from texts()


def alike() -> Iterator[Claim]:
    """Clients have all letters, and so much the same update."""
    half = "alike", "2 of 4, metric, recycled"
    fedavg = "alike", "FedAvg"
    quoted, tried = (QUOTED[0], ALIKE), (LUAR[0], ALIKE)
    yield claim(quoted, "clients alike: half of the bytes cost up to 1.1 points", half, fedavg, -1.12, saved=0.5)
    for many in (2, 3):
        text = f"clients alike: recycling {many} of 4 is better than dropping"
        rows = [("alike", f"{many} of 4, metric, {how}") for how in ("recycled", "dropped")]
        yield claim(tried, text, *rows, None)
    text = "clients alike: 2 of 4 by the metric is better than at random by 6.2 points, at equal bytes both ways"
    yield claim(quoted, text, half, ("alike", "2 of 4, uniform, recycled"), 6.2, equal=True)
    for row in ("FedAvgM, .6", "FedACG"):
        text = f"clients alike: over {row} half of the bytes cost up to 1.1 points, as over FedAvg"
        yield claim(quoted, text, ("alike", f"{row}, 2 of 4 recycled"), ("alike", row), -1.12, saved=0.5)
    for delta in (".8", ".9"):
        text = f"clients alike: LBGM, δ = {delta}: 1.18 points behind FedAvg, 29 % saved"
        row = "alike", f"LBGM, whole vector, delta {delta}"
        yield claim((LETTERS[0], ALIKE), text, row, fedavg, -1.18, saved=0.29)
    deep = LUAR[0], "10,000 pictures of CIFAR-10, ResNet-20, 32 clients that are alike, 8 a round, 100 rounds"
    rows = [("ResNet-20", f"12 of 23, metric, {how}") for how in ("recycled", "dropped")]
    text = "ResNet-20, 12 of 23: half of the bytes cost up to 1.1 points"
    yield claim(deep, text, rows[0], ("ResNet-20", "FedAvg"), -1.12, saved=0.5)
    yield claim(deep, "ResNet-20: recycling 12 of 23 is better than dropping", *rows, None)


def apart() -> Iterator[Claim]:
    """Clients have few letters each, by Dirichlet(.1), where the authors' have the pictures of ten writers."""
    half, fedavg = ("recycling", "2 of 4, metric, recycled"), ("recycling", "FedAvg")
    yield claim(QUOTED, "half of the bytes cost up to 1.1 points", half, fedavg, -1.12, saved=0.5)
    for many in (2, 1):
        for choice, said in (("metric", ""), ("uniform", "at random too, ")):
            rows = [("recycling", f"{many} of 4, {choice}, {how}") for how in ("recycled", "dropped")]
            yield claim(LUAR, f"{said}recycling {many} of 4 is better than dropping", *rows, None)
    for many, text, row in (
        (2, "by the update's norm alone", "gradient norm"),
        (2, f"in turn{OURS}", "round-robin"),
        (1, "at random", "uniform"),
    ):
        what = f"{many} of 4 by the metric is better than {text}, at equal bytes both ways"
        rows = [("recycling", f"{many} of 4, {choice}, recycled") for choice in ("metric", row)]
        yield claim(LUAR, what, *rows, None, equal=True)
    for row, gap, saved in (
        ("FedPAQ, 16 levels", 0.53, 0.75),
        ("FedPara, a quarter", -3.32, 0.78),
    ):
        what = f"{row}: {abs(gap):g} points {'ahead of' if gap > 0 else 'behind'} FedAvg, {100 * saved:.0f} % saved"
        yield claim(LETTERS, what, ("compared", row), ("recycling", "FedAvg"), gap, saved=saved)
    for row in OVER:
        alone = "compared" if row.startswith(("FedPAQ", "PruneFL")) else "optimisers"
        what = f"over {row} half of the bytes cost up to 1.1 points, as over FedAvg"
        yield claim(QUOTED, what, ("optimisers", f"{row}, 2 of 4 recycled"), (alone, row), -1.12, saved=0.5)


def texts() -> Iterator[Claim]:
    """AG News."""
    theirs = "AG News, DistilBERT, 128 clients, 100 rounds"
    alike = theirs, "AG News, fastText, 64 clients by Dirichlet(1), 16 a round, the rate falls twice, 100 rounds"
    recycled = "AG News, alike", "1 of 2, metric, recycled"
    what = "AG News, Dirichlet(1): as FedAvg for 17 % of the floats"
    yield claim(alike, what, recycled, ("AG News, alike", "FedAvg"), -0.1, saved=0.83)
    what = "AG News, Dirichlet(1): recycling 1 of 2 is better than dropping"
    yield claim(alike, what, recycled, ("AG News, alike", "1 of 2, metric, dropped"), None)
    attended = theirs, "AG News, a transformer from random weights, Adam, 32 clients, 8 a round, 60 rounds"
    recycled = "AG News, transformer", "7 of 10, metric, recycled"
    what = "AG News as FedAvg for 17 % of the floats, transformer"
    yield claim(attended, what, recycled, ("AG News, transformer", "FedAvg"), -0.1, saved=0.83)
    dropped = "AG News, transformer", "7 of 10, metric, dropped"
    what = "AG News: recycling 7 of 10 is better than dropping, transformer"
    yield claim(attended, what, recycled, dropped, None)
    fine = theirs, "AG News, all of MiniLM trained on, Adam, 20 clients, 2 a round, 40 rounds"
    recycled, fedavg = (("AG News, MiniLM", row) for row in ("LUAR, 30 of 40 kernels", "FedAvg, all of MiniLM"))
    what = "AG News as FedAvg for 17 % of the floats, fine-tuning, 30 of 40 kernels"
    yield claim(fine, what, recycled, fedavg, -0.1, saved=0.83)
