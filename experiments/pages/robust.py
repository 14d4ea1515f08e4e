"""Tables of hostile clients in docs/measured/robust.md."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from . import Line, Missing, markdown, read, table

COMMAND = "python experiments/robust/attacks.py"
METHODS = ("dense", "top-k", "LBGM", "Auto")
ATTACKS = ("none", "SignFlip", "GaussianNoise", "ALIE", "IPM", "LabelFlip", "own")
RULES = ("Mean()", 'clip="auto"', "Median()", "TrimmedMean(0.2)", "Krum(2)", "MultiKrum(2)", "Bulyan(1)")
RULES += ("GeometricMedian()", "NormClip()", "CenteredClip(steps=3)")


def accuracy(lines: Iterable[Line]) -> str:
    """The mean over seeds and their standard deviation; a training that diverged has 0.1, which is chance."""
    each = [line.get("accuracy", 0.1) for line in lines]
    if not each:
        raise Missing(COMMAND)
    spread = f" ± {statistics.stdev(each):.3f}" if len(each) > 1 else ""
    return f"{statistics.fmean(each):.3f}{spread}"


def under_attack(split: str) -> list[str]:
    cells = defaultdict[tuple[str, str, str], list[Line]](list)
    rows = []
    for method in METHODS:
        for line in read(f"experiments/robust/results/{method}.jsonl", COMMAND).all(split=split):
            cells[method, line["rule"], line["attack"]].append(line)
        own = method in ("top-k", "LBGM")  # they have an attack of their own
        for rule in RULES:
            shown = ["" if attack == "own" and not own else accuracy(cells[method, rule, attack]) for attack in ATTACKS]
            sent = statistics.fmean(line["bytes_up"] for line in cells[method, rule, "none"])
            rows.append([method, f"`{rule}`", *shown, f"{sent / 1e6:.2f}"])
    return markdown(["method", "rule", *ATTACKS[:-1], "its own", "MB up"], rows, (0, 1))


@table
def robust_iid() -> list[str]:
    return under_attack("iid")


@table
def robust_dirichlet() -> list[str]:
    return under_attack("Dirichlet(0.3)")
