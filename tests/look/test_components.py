"""Both counts of principal components, held against numpy's SVD of the vectors themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Size

from thinwire.errors import RunError
from thinwire.look.components import accumulate, draw_by_layer, earlier, ladder, moments, of_layer, progression
from thinwire.look.gradients import Gradients, Space, looked_at
from thinwire.params import Layout
from thinwire.studies.read import RecordedRun

LAYOUT = Layout(("a", "b", "c"), (Size([4, 5]), Size([10]), Size([3])))


def rows(count: int = 30) -> np.ndarray:
    """Gradients that turn slowly, with noise: few directions and a tail."""
    draw = np.random.default_rng(4)
    slow = np.cumsum(draw.normal(size=(count, 33)), 0)
    return (slow + draw.normal(size=(count, 33))).astype(np.float32)


def smooth(g: np.ndarray, momentum: float) -> np.ndarray:
    """Heavy-ball momentum, a row after another."""
    p, out = np.zeros_like(g[0], dtype=float), []
    for row in g:
        p = momentum * p + row
        out.append(p.copy())
    return np.array(out)


def count(g: np.ndarray, share: float, squares: bool, centred: bool) -> int:
    """The fewest singular values of the rows themselves that have a share."""
    g = g - g.mean(0) if centred else g
    sigma = np.linalg.svd(g, compute_uv=False)
    sigma = np.where(sigma > 1e-9 * sigma[0], sigma, 0) if centred else sigma
    parts = sigma**2 if squares else sigma
    if parts.sum() == 0:
        return 0
    return int(np.searchsorted(np.cumsum(parts) / parts.sum(), share - 1e-12) + 1)


def parts(g: np.ndarray) -> list[np.ndarray]:
    return [g[:, :20], g[:, 20:30], g[:, 30:]]


def test_momentum_over_gradients_is_a_triangle_on_both_sides_of_their_products() -> None:
    g = rows().astype(float)
    p = smooth(g, 0.9)
    assert accumulate(torch.tensor(g @ g.T), 0.9).numpy() == pytest.approx(p @ p.T, rel=1e-10)
    assert torch.equal(accumulate(torch.tensor(g @ g.T), 0.0), torch.tensor(g @ g.T))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_both_counts_and_every_step_between_them_are_those_of_the_vectors(momentum: float) -> None:
    g = rows()
    p = smooth(g, momentum)
    geometry = looked_at(Space.of([torch.tensor(row) for row in g], LAYOUT), momentum=momentum)
    found = ladder(geometry.whole, geometry.by_layer, momentum)
    for i, share in enumerate((0.95, 0.99)):
        assert [c.counts[i] for c in found[:4]] == [
            count(g, share, False, False),
            count(g, share, True, False),
            count(g, share, True, True),
            count(p, share, True, True),
        ]
        each = [count(part, share, True, True) for part in parts(p)]
        assert found[4].counts[i] == pytest.approx(np.mean(each))
        assert found[4].deviations is not None
        assert found[4].deviations[i] == pytest.approx(np.std(each))
        assert found[5].counts[i] == count(smooth(np.eye(30), momentum), share, True, True)


def test_the_curve_by_layer_counts_the_gradients_so_far() -> None:
    g = rows(45)
    p = smooth(g, 0.9)
    curve = moments(looked_at(Space.of([torch.tensor(row) for row in g], LAYOUT), momentum=0.9).by_layer)
    assert [m.gradients for m in curve][-3:] == [40, 43, 45]
    for t, means, bands in curve:
        each = np.array([[count(part[:t], share, True, True) for part in parts(p)] for share in (0.95, 0.99)])
        assert means == pytest.approx(each.mean(1))
        assert bands == pytest.approx(each.std(1))


def test_a_layer_that_repeats_one_gradient_has_no_component_besides_its_mean() -> None:
    row = torch.randn(9, generator=torch.Generator().manual_seed(1)).double()
    same = torch.outer(torch.ones(6), torch.ones(6)).double() * (row @ row)
    assert of_layer(same, 0.0).progression[-1] == (6, (0, 0))


def test_the_nearest_gradient_before_is_found_by_its_cosine() -> None:
    g = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [-1.0, 0.0], [0.0, 0.0]]).double()
    # 0; 1/sqrt 2; the nearest of -1, 0 and -1/sqrt 2 is 0; and a zero has none.
    assert earlier(g @ g.T) == pytest.approx((0 + 0.5**0.5 + 0 + 0) / 4)
    assert earlier(torch.ones(1, 1)) == 1.0


def test_a_momentum_belongs_to_the_count_by_layer() -> None:
    with pytest.raises(ValueError, match=r"--momentum 0\.9: it belongs to the count by layer; give --by-layer too"):
        Gradients(momentum=0.9)
    with pytest.raises(ValueError, match=r"--momentum 1\.0: it must be in \[0, 1\)"):
        Gradients(momentum=1.0, by_layer=True)


def record(folder: Path, g: np.ndarray) -> RecordedRun:
    """A run's folder, with these gradients in it."""
    said = {"names": LAYOUT.names, "shapes": [list(shape) for shape in LAYOUT.shapes], "dtype": "<f4"}
    (folder / "gradients.json").write_text(json.dumps(said))
    (folder / "gradients.f32").write_bytes(g.astype("<f4").tobytes())
    change = {"norm": 1.0, "square": 1.0, "steps": 1.0, "rates": 0.1, "moved": 1.0}
    lines = [{"round": t + 1, "change": change, "accuracy": 0.5} for t in range(len(g))]
    return RecordedRun(folder, {"kind": "federated", "method": "FedAvg()", "seed": 0}, lines, None)


def test_the_look_prints_both_counts_and_draws_them(tmp_path: Path) -> None:
    run = record(tmp_path, rows())
    plain = Gradients().read(run)
    assert not plain.counts
    assert "counts" not in Gradients().values(plain)
    look = Gradients(momentum=0.9, by_layer=True)
    reading = look.read(run)
    tables = [row for row in look.rows(reading) if getattr(row, "title", "") == "two counts of 30 gradients"]
    ((_, _, cells),) = tables
    assert [row[0].partition(":")[0] for row in cells][::4] == ["the paper's text", "the paper's figures"]
    assert "±" in cells[4][2]
    assert tmp_path / "look/by_layer.png" in look.draw(reading, tmp_path / "look")
    values = look.values(reading)
    assert values["counts"][4]["counts"] == values["moments"][-1]["means"]
    assert list(values["counted_by_layer"]) == ["a", "b", "c"]


def test_a_run_without_gradients_has_no_count(tmp_path: Path) -> None:
    run = record(tmp_path, rows())
    (tmp_path / "gradients.f32").unlink()
    with pytest.raises(RunError, match="--record gradients"):
        Gradients(by_layer=True).read(run)


def test_the_band_is_drawn_around_the_mean(tmp_path: Path) -> None:
    whole = torch.eye(4, dtype=torch.float64)
    curve = moments({"a": of_layer(whole, 0.0), "b": of_layer(2 * whole, 0.0)})
    assert all(m.deviations == [0, 0] for m in curve)
    assert draw_by_layer([1, 2, 3, 4], progression(whole), curve, tmp_path / "both.png").exists()
