"""FedSM, chapter 3 of the thesis: a selector and clients' own models at hospitals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .. import personal
from ..verdict import OURS, Claim, compare

HOSPITALS = "disc and cup at six sites, 256 pixels, 150 rounds"
SITES = {  # file of results -> what is said before a claim, and what it is
    "retina_128": ("", "vessels at seven sites, 128 pixels, half the channels, 60 rounds"),
    "retina_64": ("64 pixels: ", "vessels at seven sites, 64 pixels, half the channels, 60 rounds"),
    "retina_64_long": ("300 rounds: ", "vessels at seven sites, 64 pixels, half the channels, 300 rounds"),
    "fashion_sites": ("six cameras: ", "Fashion-MNIST, 3,000 pictures, a camera for each of 6 clients, 30 rounds"),
    "fashion_mnist": ("other classes: ", "Fashion-MNIST, 3,000 pictures, 20 clients by Dirichlet(.1), 30 rounds"),
}
claim = partial(compare, "personal")


def at(file: str, row: str, other: str, gap: float | None, text: str, of: str = "reached") -> Claim:
    """A claim of two rows of a file."""
    name, ours = SITES[file]
    return claim((HOSPITALS, ours), name + text, (file, row), (file, other), gap, of=of)


THEIRS = {row: 100 * mean for row, (mean, _) in personal.THESIS.items()}


def extra(file: str) -> Iterator[Claim]:
    """At 300 rounds, the selector's rounds on top of them."""
    gap = THEIRS["FedSM"] - THEIRS["FedAvg"]
    yield at(file, "FedSM", "FedAvg", gap, f"FedSM is {gap:.1f} points ahead of FedAvg")
    gap, better = THEIRS["FedSM"] - THEIRS["FT"], "clients' own models are {:.1f} points better by {} than by FT"
    yield at(file, "FedSM", "FT", gap, better.format(gap, "FedSM's SoftPull"), "own")
    text = better.format(gap, "SoftPull alone") + OURS.replace("paper", "thesis")
    yield at(file, "SoftPull", "FT", gap, text, "own")
    gap = THEIRS["FedSM-extra"] - THEIRS["FedAvg"]
    text = f"FedSM-extra is {gap:.1f} points ahead of FedAvg, its rounds on top"
    yield at(file, "FedSM-extra, on top", "FedAvg", gap, text)


def claims() -> Iterator[Claim]:
    for file in SITES:
        own = OURS.replace("paper", "thesis") if file == "fashion_mnist" else ""  # clients, and no sites
        if file == "retina_64_long":
            yield from extra(file)
            continue
        yield at(file, "FedSM", "centralised", 0.0, "FedSM is as good as centralised training" + own)
        if not file.startswith("retina"):
            yield at(file, "FedSM", "FedAvg", None, "FedSM is ahead of FedAvg" + own)
            continue
        for row, other in (
            *(("FedSM", other) for other in ("FedAvg", "FedProx", "SCAFFOLD")),
            *(("FedSM", other) for other in personal.LAMBDAS if other != "FedSM"),
        ):
            gap = THEIRS[row] - THEIRS[other]
            yield at(file, row, other, gap, f"{row} is {gap:.1f} points ahead of {other}")
        for other in ("FT", "APFL", "Per-FedAvg", "pFedMe"):  # the thesis has them within FedSM, in place of SoftPull
            gap = THEIRS["FedSM"] - THEIRS[other]
            text = f"clients' own models are {gap:.1f} points better by FedSM's SoftPull than by {other}"
            yield at(file, "FedSM", other, gap, text, "own")
