"""Whether a paper's claim was found in the lines of results: a rule on the difference of two rows.

A claim compares two rows that were trained with the same seeds. A verdict follows from the difference, so that no page
says by hand what the lines do not. The rule in words is in docs/claims/index.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from . import ROOT, Line, of_best_rate, personal, pipelined, read

UNTRIED = "not tried yet fairly"
LEAST, LITTLE = 0.5, 0.2  # points: a difference that appears, or that is there in kind, is no smaller
SAVED, IN_KIND = 0.8, 0.5  # of what the paper saves
CHANCE = 20.0  # percent: twice as much as guessing among ten classes reaches
OURS = " (no claim of the paper)"
Row = tuple[str, str]  # setting, row
PRETRAINED = {"luar": "ag_news", "intrinsic": "sst2"}  # the set on which a group's rows train all of MiniLM


@dataclass(frozen=True)
class Claim:
    """``row`` is ahead of ``other`` by ``gap`` points or, where that is not above 0, no more than so far behind it.

    ``gap`` None is ahead, however far. ``saved`` is the share of the other's bytes up that the paper saves.
    ``theirs`` and ``ours`` are settings. ``of`` is what is compared; a row that has no x of its own has one model. Of
    several rows ``other`` is the best one that has lines, once all have some. ``from_to``, where given, is what the
    other reaches in the paper and what guessing reaches: ``gap`` is a share of that range, so it shrinks with the
    other's here. With ``fails`` the claim is that the other does not train at all. With ``equal`` what is compared is
    the mean of the last five evaluations until the row of fewer bytes, both ways, ends.
    """

    group: str
    text: str
    row: Row
    other: Row | tuple[Row, ...]
    gap: float | None
    theirs: str
    ours: str
    saved: float = 0.0
    of: str = "accuracy_mean_of_last_5"
    from_to: tuple[float, float] | None = None
    fails: bool = False
    equal: bool = False


def compare(
    group: str,
    settings: tuple[str, str],
    text: str,
    row: Row,
    other: Row | tuple[Row, ...],
    gap: float | None,
    **more: Any,
) -> Claim:
    """The claim of a group on two rows; ``settings`` are the paper's and ours."""
    return Claim(group, text, row, other, gap, *settings, **more)


@cache
def trained(group: str) -> tuple[Line, ...]:
    """Those that count, not those that a rate was chosen by."""
    if group == "personal":
        return tuple(personal.reached())
    if group == "dsp":
        return tuple(pipelined.trained())
    if not (ROOT / f"experiments/{group}/results/claims.jsonl").exists():
        return ()
    found = [*read(f"experiments/{group}/results/claims.jsonl", "").lines, *pretrained(PRETRAINED.get(group))]
    return tuple(line for line in found if line["kind"] == "run" and not line["dirty"])


def pretrained(data: str | None) -> Iterator[Line]:
    """Those of all of MiniLM on a set, which experiments/hf trains."""
    for line in read("experiments/hf/results/adapters.jsonl", "").lines:
        setting = line["setting"]
        if setting["data"] == data and setting.get("trained") == "all":
            yield {**line, "setting": {**setting, "name": f"{setting['name']}, MiniLM"}}


@cache
def lines(group: str) -> tuple[Line, ...]:
    """Of those the ones at the best of each row's rates."""
    if group in ("personal", "dsp"):
        return trained(group)
    return tuple(line for some in of_best_rate(trained(group)).values() for line in some)


def runs(group: str, row: Row) -> dict[int, Line]:
    """By seed."""
    return {line["seed"]: line for line in lines(group) if (line["setting"]["name"], line["row"]) == row}


def reached(claim: Claim, line: Line) -> float:
    """In percent. A training that diverged reached nothing."""
    if claim.of.startswith("accuracy_x") and "diverged" not in line and line.get(claim.of) is None:
        return 100 * float(line["accuracy_mean_of_last_5"])
    return 100 * float(line.get(claim.of) or 0.0)


def rival(claim: Claim) -> dict[int, Line]:
    """The lines of what the row is compared with, by seed."""
    if isinstance(claim.other[0], str):
        return runs(claim.group, claim.other)  # type: ignore[arg-type]
    each = [runs(claim.group, row) for row in claim.other]  # type: ignore[arg-type]
    best = lambda found: statistics.mean(reached(claim, line) for line in found.values())  # noqa: E731
    return max(each, key=best) if all(each) else {}


def points(claim: Claim) -> dict[int, float]:
    """How far the row is ahead, by seeds that both rows have."""
    ours, others = runs(claim.group, claim.row), rival(claim)
    both = sorted(ours.keys() & others.keys())
    if claim.equal:
        return {seed: 100 * equally(ours[seed], others[seed]) for seed in both}
    return {seed: reached(claim, ours[seed]) - reached(claim, others[seed]) for seed in both}


def equally(line: Line, other: Line) -> float:
    """How far a row is ahead of another at equal bytes both ways: those of the one that ends with fewer."""
    curves = [one.get("curve", []) for one in (line, other)]  # round, accuracy, bytes of it, bytes until then
    most = min((up + down for curve in curves for *_, up, down in curve[-1:]), default=0)
    within = [[accuracy for _, accuracy, _, _, up, down in curve if up + down <= most][-5:] for curve in curves]
    mine, theirs = (statistics.mean(some) if some else 0.0 for some in within)
    return mine - theirs


def allowed(claim: Claim) -> float | None:
    """The paper's distance, in points of this setting."""
    others = rival(claim)
    if claim.gap is None or claim.from_to is None or not others:
        return claim.gap
    top, chance = claim.from_to
    here = statistics.mean(reached(claim, line) for line in others.values())
    return claim.gap * min(1.0, max(0.0, here - chance) / (top - chance))


def share(claim: Claim, way: str = "up") -> float | None:
    """Of the other's bytes up, or down, those of the row, over seeds that both have."""
    ours, others = runs(claim.group, claim.row), rival(claim)
    both = [seed for seed in ours.keys() & others.keys() if "bytes_up" in ours[seed] and "bytes_up" in others[seed]]
    whole = sum(others[seed][f"bytes_{way}"] for seed in both)
    return sum(ours[seed][f"bytes_{way}"] for seed in both) / whole if whole else None


def verdict(claim: Claim, found: Iterable[float] | None = None, sent: float | None = None) -> str:
    """By the rule of docs/claims/index.md."""
    each = list(points(claim).values() if found is None else found)
    if not each:
        return UNTRIED
    if claim.fails:
        lost = len(failed(claim))
        return counted("appears" if lost == len(each) else "in kind" if lost else "does not appear", len(each))
    ahead, error = statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    kept, gap = share(claim) if sent is None else sent, allowed(claim)
    saved = 1.0 if not claim.saved else 0.0 if kept is None else (1 - kept) / claim.saved
    if gap is None or gap > 0:
        least, little = (LEAST, LITTLE) if gap is None else (min(LEAST, gap), gap / 10)
        strong = ahead > max(least, 2 * error) and ahead >= (gap or 0.0) / 2
        weak = ahead > error and ahead >= little
    else:
        strong, weak = ahead >= gap - max(LEAST, error), ahead >= 1.5 * gap - 1.0
    appears, in_kind = strong and saved >= SAVED, (strong or weak) and saved >= IN_KIND
    return counted("appears" if appears else "in kind" if in_kind else "does not appear", len(each))


def failed(claim: Claim) -> list[int]:
    """The seeds with which the other diverged, or reached little more than guessing."""
    ours, others = runs(claim.group, claim.row), rival(claim)
    return [seed for seed in sorted(ours.keys() & others.keys()) if reached(claim, others[seed]) <= CHANCE]


def counted(word: str, seeds: int) -> str:
    return word if seeds > 2 else f"{word} ({'one seed' if seeds == 1 else f'{seeds} seeds'})"


def number(claim: Claim) -> str:
    """The difference, with its deviation, and the bytes of whole runs, up and down."""
    each = list(points(claim).values())
    if not each:
        return ""
    if claim.fails:
        return f"{len(failed(claim))} of {len(each)} seeds"
    ours, others = runs(claim.group, claim.row), rival(claim)
    for what, some in (("diverged", ours), ("the other diverged", others)):
        if lost := sum("diverged" in some[seed] for seed in ours.keys() & others.keys()):
            return f"{what} with {lost} of {len(each)} seeds"
    spread = f" ± {statistics.stdev(each):.1f}" if len(each) > 1 else ""
    up, down, gap = share(claim), share(claim, "down"), allowed(claim)
    scaled = "" if claim.from_to is None or gap is None else f"; the paper's share of what is reached here is {gap:.1f}"
    found = f"{statistics.mean(each):+.1f}{spread} points{scaled}"
    if claim.equal or up is None or down is None or max(abs(1 - up), abs(1 - down)) < 0.005:
        return found
    return f"{found}; {percent(up)} of its bytes up, {percent(down)} down"


def percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.01 else f"{100 * part:.2g} %"
