"""Tables of hostile clients in docs/measured/robust.md."""

from __future__ import annotations

import statistics

from . import Line, Missing, markdown, read, table

COMMAND = "python experiments/robust/attacks.py"
METHODS = {"iid": ("dense", "top-k", "LBGM", "Auto"), "Dirichlet(0.3)": ("dense", "top-k", "LBGM")}
ATTACKS = ("none", "SignFlip", "GaussianNoise", "ALIE", "IPM", "LabelFlip", "own")
RULES = ("Mean()", 'clip="auto"', "Median()", "TrimmedMean(0.2)", "Krum(2)", "MultiKrum(2)", "Bulyan(1)")
RULES += ("GeometricMedian()", "NormClip()", "CenteredClip(steps=3)")


def lines_of(**fields: str) -> list[Line]:
    """The lines with these fields, one a seed."""
    return [line for line in read("experiments/robust/results/attacks.jsonl", COMMAND).lines if _has(line, fields)]


def _has(line: Line, fields: dict[str, str]) -> bool:
    return all(line[name] == value for name, value in fields.items())


def accuracy(split: str, method: str, rule: str, attack: str) -> float | None:
    """The mean over seeds; 0.1, which is chance, where it diverged. None where there is none."""
    if attack == "own" and method not in ("top-k", "LBGM"):
        return None
    lines = lines_of(split=split, method=method, rule=rule, attack=attack)
    if not lines:
        raise Missing(COMMAND)
    return statistics.fmean(line.get("accuracy", 0.1) for line in lines)


def under_attack(split: str) -> list[str]:
    rows = []
    for method in METHODS[split]:
        for rule in RULES:
            cells = [accuracy(split, method, rule, attack) for attack in ATTACKS]
            sent = statistics.fmean(
                line["bytes_up"] for line in lines_of(split=split, method=method, rule=rule, attack="none")
            )
            shown = ["" if cell is None else f"{cell:.3f}" for cell in cells]
            rows.append([method, f"`{rule}`", *shown, f"{sent / 1e6:.2f}"])
    return markdown(["method", "rule", *ATTACKS[:-1], "its own", "MB up"], rows, (0, 1))


@table
def robust_iid() -> list[str]:
    return under_attack("iid")


@table
def robust_dirichlet() -> list[str]:
    return under_attack("Dirichlet(0.3)")
