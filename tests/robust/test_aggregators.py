"""What each rule makes of replies: held against numpy, against Flower's strategies, and against hostile rows."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from flwr.server.strategy import aggregate as flower
from torch import Tensor

import thinwire as tw
from thinwire.robust import base, rows
from thinwire.robust.base import Aggregator, far_off, reduce
from thinwire.robust.rows import Rows

Array = Any


def table(replies: Array, dtype: torch.dtype = torch.float32) -> Rows:
    made = Rows(replies.shape[1], dtype)
    for row in replies:
        made.add(torch.tensor(row, dtype=dtype))
    return made


def result(rule: Aggregator, replies: Array, weights: Array | None = None, before: Tensor | None = None) -> Array:
    given = np.ones(len(replies)) if weights is None else weights
    return reduce(rule, table(replies), torch.tensor(given), before).value.double().numpy()


def drawn(n: int = 11, d: int = 37, seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


WEIGHTS = np.arange(1.0, 12.0)


def krum_scores(x: Array, f: int) -> Array:
    """Blanchard et al., section 4, as it is written."""
    n = len(x)
    scores = []
    for i in range(n):
        others = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(others[: n - f - 2]))
    return np.array(scores)


def bulyan(x: Array, f: int) -> Array:
    """El Mhamdi et al., section 4, as it is written."""
    left, chosen = list(range(len(x))), []
    for _ in range(len(x) - 2 * f):
        part = x[left]
        n = len(left)
        scores = []
        for i in range(n):
            others = sorted(float(((part[i] - part[j]) ** 2).sum()) for j in range(n) if j != i)
            scores.append(sum(others[: max(1, n - f - 2)]))
        chosen.append(left.pop(int(np.argmin(scores))))
    kept, beta = x[chosen], len(x) - 4 * f
    median = np.median(kept, 0)
    pairs = zip(kept.T, median, strict=True)
    made = [np.mean(sorted(column, key=lambda v, m=m: abs(v - m))[:beta]) for column, m in pairs]
    return np.array(made)


def clipped(x: Array, norm: float | None) -> Array:
    lengths = np.linalg.norm(x, axis=1)
    most = np.sort(lengths)[(len(x) - 1) // 2] if norm is None else norm
    return x * np.minimum(1, most / lengths)[:, None]


def centred(x: Array, v: Array, radius: float | None, steps: int) -> Array:
    for _ in range(steps):
        v = v + clipped(x - v, radius).mean(0)
    return v


def trimmed(x: Array, cut: int) -> Array:
    return np.sort(x, 0)[cut : len(x) - cut].mean(0)


LISTINGS: dict[str, Callable[[Array], Array]] = {
    "Mean()": lambda x: np.average(x, axis=0, weights=WEIGHTS),
    "Median()": lambda x: np.median(x, 0),
    "TrimmedMean(0.2)": lambda x: trimmed(x, 2),
    "TrimmedMean(0.0)": lambda x: x.mean(0),
    "Krum(2)": lambda x: x[krum_scores(x, 2).argmin()],
    "MultiKrum(2)": lambda x: x[np.argsort(krum_scores(x, 2))[:7]].mean(0),
    "MultiKrum(3, m=4)": lambda x: x[np.argsort(krum_scores(x, 3))[:4]].mean(0),
    "Bulyan(2)": lambda x: bulyan(x, 2),
    "NormClip()": lambda x: np.average(clipped(x, None), axis=0, weights=WEIGHTS),
    "NormClip(2.5)": lambda x: np.average(clipped(x, 2.5), axis=0, weights=WEIGHTS),
    "CenteredClip(2.5, steps=1)": lambda x: centred(x, np.zeros(x.shape[1]), 2.5, 1),
    "CenteredClip()": lambda x: centred(x, np.zeros(x.shape[1]), None, 3),
}


LENGTHS = ("NormClip(2.5)", "CenteredClip(2.5, steps=1)")  # which have a radius: of replies of another scale another
SCALED = [(name, scale) for name in LISTINGS for scale in (1.0, *(() if name in LENGTHS else (1e-6, 1e6)))]


@pytest.mark.parametrize(("expression", "scale"), SCALED)
def test_a_rule_is_its_listing_in_numpy(expression: str, scale: float) -> None:
    x = drawn()
    expected = LISTINGS[expression](x.astype(np.float64))
    made = result(tw.parse(expression), x * np.float32(scale), WEIGHTS)
    np.testing.assert_allclose(made, expected * scale, rtol=2e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("even", [10, 11])
def test_the_geometric_median_has_the_least_distances_added_up(even: int) -> None:
    x = drawn(even)
    x[0] += 50
    made = result(tw.GeometricMedian(), x)

    def distances(point: Array) -> float:
        return float(np.linalg.norm(x - point, axis=1).sum())

    # At the point where a sum of distances is least, the unit vectors towards all replies add up to nothing.
    units = (x - made) / np.linalg.norm(x - made, axis=1)[:, None]
    assert np.linalg.norm(units.sum(0)) < 1e-3
    for other in (x.mean(0), np.median(x, 0), *x):
        assert distances(made) < distances(other)


def test_the_geometric_median_of_points_on_a_line_is_their_median_even_where_it_is_one_of_them() -> None:
    x = np.array([[0.0], [1.0], [2.0], [50.0], [1e20]], dtype=np.float32)
    assert result(tw.GeometricMedian(), x)[0] == pytest.approx(2.0, abs=1e-3)


FLOWERS: dict[str, Callable[[list[Any]], Any]] = {
    "Median()": flower.aggregate_median,
    "TrimmedMean(0.2)": lambda r: flower.aggregate_trimmed_avg(r, 0.2),
    "Krum(2)": lambda r: flower.aggregate_krum(r, 2, 0),
    "MultiKrum(2, m=5)": lambda r: flower.aggregate_krum(r, 2, 5),
    "Bulyan(2)": lambda r: flower.aggregate_bulyan(r, 2, flower.aggregate_krum, to_keep=0),
}


@pytest.mark.parametrize("expression", FLOWERS)
def test_a_rule_is_flowers_strategy_of_the_same_name_on_the_same_replies(expression: str) -> None:
    x = drawn(seed=8)
    x[4] *= -10
    layers = [([row[:30].reshape(5, 6), row[30:]], 1) for row in x]
    theirs = FLOWERS[expression](layers)
    np.testing.assert_allclose(result(tw.parse(expression), x), np.concatenate([t.ravel() for t in theirs]), rtol=1e-5)


ROBUST = [name for name in LISTINGS if not name.startswith(("Mean", "TrimmedMean(0.0"))] + ["GeometricMedian()"]


@pytest.mark.parametrize("expression", ROBUST)
@pytest.mark.parametrize("far", [1e3, 1e15, 1e25])
def test_two_hostile_replies_of_eleven_do_not_move_a_rule_beyond_the_others(expression: str, far: float) -> None:
    x = drawn()
    x[2], x[9] = far, -far * 0.5
    honest = np.delete(x, [2, 9], 0).astype(np.float64)
    rule = tw.parse(expression)
    made = result(rule, x)
    most = np.linalg.norm(honest - honest.mean(0), axis=1).max()
    assert np.linalg.norm(made - honest.mean(0)) <= 1.5 * most
    distances = reduce(rule, table(x), torch.ones(11)).distances
    assert {2, 9} == set(far_off(distances))


@pytest.mark.parametrize("expression", [*LISTINGS, "GeometricMedian()"])
def test_replies_that_are_all_the_same_are_what_a_rule_makes_of_them(expression: str) -> None:
    rule, row = tw.parse(expression), drawn(1)
    if "2.5" in expression:
        row /= np.linalg.norm(row)
    before = torch.tensor(row[0]) if rule.remembers else None
    np.testing.assert_allclose(result(rule, row.repeat(11, 0), before=before), row[0].astype(np.float64), rtol=1e-5)
    zeros = np.zeros((11, 5), dtype=np.float32)
    assert result(rule, zeros).tolist() == [0.0] * 5
    assert far_off(reduce(rule, table(zeros), torch.ones(11)).distances) == []


@pytest.mark.parametrize("expression", [*LISTINGS, "GeometricMedian()"])
def test_blocks_and_a_file_in_place_of_memory_change_nothing(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, rule = drawn(d=103), tw.parse(expression)
    before = torch.tensor(x[0] * 0.5) if rule.remembers else None
    whole = result(rule, x, before=before)
    monkeypatch.setattr(rows, "BLOCK", 11 * 10)
    monkeypatch.setattr(rows, "HELD", 4 * 103 * 4)
    made = table(x)
    assert [type(row) for row in made.rows] == [*[Tensor] * 4, *[int] * 7]
    assert [columns.stop - columns.start for columns, _ in made.blocks()] == [*[10] * 10, 3]
    np.testing.assert_array_equal(torch.cat([block for _, block in made.blocks()], 1).numpy(), x)
    np.testing.assert_allclose(result(rule, x, before=before), whole, rtol=1e-6)


def test_rows_of_64_bits_keep_them() -> None:
    x = drawn(5).astype(np.float64) + 1e-12
    made = reduce(tw.Median(), table(x, torch.float64), torch.ones(5)).value
    np.testing.assert_array_equal(made.numpy(), np.median(x, 0))


def test_a_centre_is_where_the_rule_starts_and_half_the_way_is_left_to_those_far_away() -> None:
    x = np.array([[4.0], [6.0], [100.0]], dtype=np.float32)
    made = result(tw.CenteredClip(3.0, steps=1), x, before=torch.tensor([5.0]))
    assert made.tolist() == [pytest.approx(5 + (-1 + 1 + 3) / 3)]
    again = result(tw.CenteredClip(3.0, steps=2), x, before=torch.tensor([5.0]))
    assert again.tolist() == [pytest.approx(6 + (-2 + 0 + 3) / 3)]


Part = Callable[[Any, Any, Any], Any]
OWN: dict[str, tuple[Part, Part, str]] = {
    "shares in a list": (lambda self, p, w: [0.1] * 11, Aggregator.join, "choose gave list"),
    "too few shares": (lambda self, p, w: w[:5], Aggregator.join, r"choose gave torch.float64 \[5\]"),
    "no shares": (lambda self, p, w: None, Aggregator.join, "choose gave NoneType"),
    "a number for a block": (lambda self, p, w: w, lambda self, b, s: b.mean(), r"join gave torch.float32 \[\]"),
}


def own(choose: Part, join: Part) -> Aggregator:
    made: Any = dataclass(frozen=True)(type("Mine", (Aggregator,), {"choose": choose, "join": join}))
    return made()  # type: ignore[no-any-return]


@pytest.mark.parametrize("what", OWN)
def test_what_a_rule_of_ones_own_gives_has_the_shape_that_is_needed(what: str) -> None:
    choose, join, said = OWN[what]
    with pytest.raises(ValueError, match=said):
        result(own(choose, join), drawn())
    short = own(lambda self, p, w: w.float(), Aggregator.join)  # and of 32 bits it is as good
    assert np.allclose(result(short, drawn()), drawn().mean(0), atol=1e-6)


LEAST = {"Median()": 1, "Krum(2)": 7, "MultiKrum(1)": 5, "MultiKrum(1, m=9)": 9, "Bulyan(1)": 7, "Bulyan(3)": 15}


@pytest.mark.parametrize("expression", LEAST)
def test_a_rule_says_how_many_replies_it_needs(expression: str) -> None:
    assert tw.parse(expression).least == LEAST[expression]


BAD = {
    "TrimmedMean(0.5)": "share must be at least 0 and below 0.5",
    "Krum(-1)": "f must not be negative",
    "MultiKrum(1, m=0)": "m must be at least 1",
    "NormClip(0)": "norm must be positive",
    "NormClip('auto')": "'adaptive'",
    "CenteredClip(steps=0)": "steps must be at least 1",
    "SignFlip(0)": "share must be above 0 and at most 1",
    "ALIE(z=0)": "z must be positive",
}


@pytest.mark.parametrize("expression", BAD)
def test_a_value_out_of_its_range_is_named(expression: str) -> None:
    with pytest.raises(ValueError, match=BAD[expression]):
        tw.parse(expression)


def test_every_rule_and_attack_can_be_typed_and_names_its_source() -> None:
    names = {name: cls for name, cls in tw.expression.vocabulary().items() if issubclass(cls, (Aggregator, tw.Attack))}
    assert set(names) == set(tw.robust.__all__) - {"Aggregator", "Attack"}
    for name, cls in names.items():
        assert tw.parse(name) == cls()
        assert tw.parse(repr(cls())) == tw.parse(tw.complete(cls())) == cls()
        text = inspect.getdoc(inspect.getmodule(cls)) or ""
        assert "Differences from" in text or cls is tw.Mean
    assert math.isclose(base.FAR, 3.0)
