"""The papers' claims in docs/claims: what was found of each, and all rows of the trainings that were made for them.

Rows without lines are said to be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import TABLES, Line, Missing, markdown, mean, sent
from .papers import detached, domo, dsp, fedsm, flss, intrinsic, lbgm, luar
from .verdict import Row, lines, number, trained, verdict

PAPERS = {  # folder of results -> page, title
    "lbgm": ("lbgm.md", "LBGM"),
    "luar": ("fedluar.md", "FedLUAR"),
    "dsp": ("thesis.md", "DSP"),
    "def": ("thesis.md", "DEF"),
    "personal": ("thesis.md", "FedSM"),
    "optimisers": ("thesis.md", "DOMO"),
    "intrinsic": ("intrinsic.md", "Intrinsic"),
    "flss": ("flss.md", "FLSS"),
}
CLAIMS = [each for paper in (lbgm, luar, dsp, detached, domo, flss, fedsm, intrinsic) for each in paper.claims()]


def of_group(group: str) -> Callable[[], list[str]]:
    """The claims of a paper."""

    def made() -> list[str]:
        head = ["claim", "the paper's setting", "ours", "what was found", "verdict"]
        rows = [[c.text, c.theirs, c.ours, number(c), verdict(c)] for c in CLAIMS if c.group == group]
        return markdown(head, rows, range(5))

    return made


def rows_of(group: str) -> Callable[[], list[str]]:
    """Every row that has lines, with the mean of the last five evaluations."""

    def made() -> list[str]:
        if not lines(group):
            raise Missing(f"python experiments/{group}/claims.py")
        return _rows(lines(group))

    return made


def other_rates_of(group: str) -> Callable[[], list[str]]:
    """The rows that were trained at another rate too, at which they do worse."""

    def made() -> list[str]:
        best = lines(group)
        return _rows([line for line in trained(group) if line not in best])

    return made


def _rows(some: Iterable[Line]) -> list[str]:
    by_row: dict[tuple[Row, float], list[Line]] = {}
    for line in some:
        by_row.setdefault(((line["setting"]["name"], line["row"]), line["rate"]), []).append(line)
    rows, settings = [], list(dict.fromkeys(name for (name, _), _ in by_row))
    for ((name, row), rate), found in sorted(by_row.items(), key=lambda each: settings.index(each[0][0][0])):
        ended = [line for line in found if "accuracy" in line]
        shown = mean(line["accuracy_mean_of_last_5"] for line in ended) if ended else ""
        if lost := len(found) - len(ended):
            shown += f"{', ' if shown else ''}{lost} of {len(found)} diverged"
        seeds = ", ".join(str(line["seed"]) for line in sorted(found, key=lambda line: line["seed"]))
        rows.append([name, row, shown, seeds, f"{rate:g}", *(sent(*ended) if ended else ["", ""])])
    return markdown(["setting", "row", "accuracy", "seeds", "rate", "MB up", "MB down"], rows, (0, 1, 3))


def all_claims() -> list[str]:
    """The table on top: each claim and its verdict."""
    rows = []
    for claim in sorted(CLAIMS, key=lambda claim: list(PAPERS).index(claim.group)):
        page, title = PAPERS[claim.group]
        rows.append([f"[{title}]({page})", claim.text, number(claim), verdict(claim)])
    return markdown(["paper", "claim", "what was found", "verdict"], rows, range(4))


TABLES["claims"] = all_claims
for _group in PAPERS:
    TABLES[f"claims-{_group}"] = of_group(_group)
    if _group not in ("personal", "dsp"):  # whose rows have tables of their own, in docs/measured
        TABLES[f"rows-{_group}"] = rows_of(_group)
TABLES["other-rates-lbgm"] = other_rates_of("lbgm")
