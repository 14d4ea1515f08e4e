"""Inner products are enough: components, overlaps, bounds by hand, by numpy's SVD and by scikit-learn's PCA."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Size

from thinwire.errors import RunError
from thinwire.look import gradients
from thinwire.look import recycling as tests_of_lbgm
from thinwire.look.components import centre, components, progression, spectrum
from thinwire.look.gradients import Space, cosines, draw_cosines, draw_overlap, looked_at, overlap
from thinwire.look.recycling import draw_recycling, look_backs, recycling, steps
from thinwire.params import Layout

LAYOUT = Layout(("a", "b"), (Size([4, 5]), Size([10])))


def rows(count: int = 7, size: int = 30) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(3))


def products(g: torch.Tensor) -> torch.Tensor:
    return g.double() @ g.double().T


def test_a_set_of_rank_three_has_three_components() -> None:
    mix = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    assert components(spectrum(products(mix @ rows(3))), 0.99) == 3


def test_components_are_counted_until_their_values_reach_the_share() -> None:
    sigma = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    assert [components(sigma, share) for share in (0.4, 0.41, 0.7, 0.71, 0.9, 0.95)] == [1, 2, 2, 3, 3, 4]
    # The squares are 16, 9, 4 and 1 of 30.
    assert [components(sigma, share, "variance") for share in (0.53, 0.54, 0.83, 0.84, 0.97)] == [1, 2, 2, 3, 4]
    assert components(torch.zeros(3), 0.99) == 0
    with pytest.raises(ValueError, match=r"share=1\.0: it must be between 0 and 1"):
        components(sigma, 1.0)


def test_singular_values_and_overlap_are_those_of_the_stacked_matrix() -> None:
    g = rows()
    _, sigma, right = np.linalg.svd(g.double().numpy(), full_matrices=False)
    assert spectrum(products(g)).numpy() == pytest.approx(sigma)
    lengths = np.linalg.norm(g.double().numpy(), axis=1, keepdims=True)
    expected = np.abs(g.double().numpy() @ right.T / lengths)
    found = overlap(products(g), 0.999).abs().numpy()
    assert found == pytest.approx(expected[:, : found.shape[1]])
    assert found.shape[1] == 7


def test_gradients_that_are_orthogonal_are_their_own_directions() -> None:
    g = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    assert torch.allclose(overlap(products(g)).abs(), torch.eye(3, dtype=torch.float64))
    assert torch.equal(cosines(products(g)), torch.eye(3, dtype=torch.float64))


def test_centred_singular_values_are_those_of_scikit_learns_pca() -> None:
    pca = pytest.importorskip("sklearn.decomposition").PCA().fit(rows().double().numpy())
    assert spectrum(centre(products(rows()))).numpy() == pytest.approx(pca.singular_values_, abs=1e-6)


def test_the_progression_counts_the_components_of_the_gradients_so_far() -> None:
    e = torch.eye(3)
    # Values: 1; sqrt 2; sqrt 2 and 1; sqrt 2, 1 and 1.
    found = progression(products(torch.stack([e[0], e[0], e[1], e[2]])), (0.5, 0.99))
    assert found == [(1, (1, 1)), (2, (1, 1)), (3, (1, 2)), (4, (2, 3))]
    assert [t for t, _ in progression(torch.eye(300, dtype=torch.float64))][:2] == [3, 6]


def test_a_gradient_of_zero_has_cosine_zero_with_all() -> None:
    found = cosines(products(torch.tensor([[1.0, 0.0], [0.0, 0.0], [-2.0, 0.0]])))
    assert found.tolist() == [[1, 0, -1], [0, 0, 0], [-1, 0, 1]]


def test_all_layers_as_one_are_the_sum_of_the_layers() -> None:
    g = rows()
    space = Space.of(list(g), LAYOUT)
    found = dict(space.products())
    assert list(found) == ["a", "b", "*"]
    assert torch.allclose(found["*"], products(g))
    assert torch.allclose(found["b"], products(g[:, 20:]))
    assert torch.equal(space.whole(), found["*"])
    lines = [seen.line for seen in looked_at(space).layers.values()]
    assert [(layer.layer, layer.entries) for layer in lines] == [("*", 30), ("a", 20), ("b", 10)]


def test_the_table_says_how_near_a_gradient_is_to_the_next_and_to_a_direction() -> None:
    e = torch.eye(30)
    whole = looked_at(Space.of([e[0], e[0], e[1] * 2], LAYOUT)).layers["*"].line
    # Directions are e1 and e0, each gradient is one of them; cosines to the next are 1 and 0.
    assert (whole.n95, whole.n99, whole.consecutive, whole.nearest) == (2, 2, 0.5, pytest.approx(1.0))


def test_the_products_of_one_layer_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tuple("abcdef"), (Size([5]),) * 6)
    alive, most = list[weakref.ref[torch.Tensor]](), list[int]()

    def counted(products: torch.Tensor) -> torch.Tensor:
        alive.append(weakref.ref(products))
        most.append(sum(one() is not None for one in alive))
        return spectrum(products)

    monkeypatch.setattr(gradients, "spectrum", counted)
    found = looked_at(Space.of(list(rows()), layout))
    assert list(found.layers) == ["*", *"abcdef"]
    assert max(most) <= 3  # those of one layer, those before, and the part that a progression looks at


@pytest.mark.slow
def test_a_heat_map_of_many_rounds_shows_one_of_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "SHOWN", 3)
    space = Space.of(list(rows(6)), LAYOUT, [1, 2, 4, 5, 6, 7])
    assert (space.every(), [space.rounds[i] for i in space.positions()]) == (3, [1, 4, 7])
    found = looked_at(space)
    whole = cosines(products(rows(6)))
    assert found.layers["*"].cosines is not None
    assert torch.allclose(found.layers["*"].cosines.double(), whole[[0, 2, 5]][:, [0, 2, 5]], atol=1e-6)
    assert found.layers["a"].overlap is not None
    assert found.layers["a"].overlap.shape == (3, 3)
    assert draw_cosines(space, found, tmp_path / "cosines.png").exists()
    assert draw_overlap(space, found, tmp_path / "overlap.png").exists()


def look(client: int, sin2: float | None, recycled: bool, norm: float = 2.0) -> dict:
    rho = None if sin2 is None else 0.5
    return {
        "client": client,
        "field": "update",
        "sin2": sin2,
        "rho": rho,
        "recycled": recycled,
        "norm": norm,
        "steps": 4,
        "rates": 0.4,
    }


def test_what_a_scalar_loses_is_held_against_corollary_1() -> None:
    lines = [
        {"round": 1, "looks": [look(0, None, False), look(1, None, False)]},
        {"round": 2, "looks": [look(0, 0.25, True), look(1, 0.5, False, 1.0)]},
        {"round": 3},
    ]
    first, second = recycling(lines)
    assert (first.sin2, first.rho, first.recycled, first.error) == (None, None, 0.0, None)
    # d is 2 / .4 = 5, so 25 * .25; of the other client 6.25 * .5. Allowed is 1 / sqrt(4 * 3).
    assert (second.sin2, second.rho, second.recycled, second.error) == (0.375, 0.5, 0.5, pytest.approx(6.25))
    assert second.allowed == pytest.approx(0.288675)


def of(client: int, layer: str, sin2: float | None, rho: float | None, field: str = "update") -> dict:
    return {**look(client, sin2, True), "layer": layer, "rho": rho, "field": field}


# Of client 4 two layers in round 1, one of them without a test, and two in round 3; of client 2 one in round 1.
TESTS: list[dict] = [
    {"round": 1, "looks": [of(4, "w", 0.25, 2.0), of(4, "b", None, None), of(2, "w", 0.75, 1.0)]},
    {"round": 2},
    {"round": 3, "looks": [of(4, "w", 0.5, 0.5), of(4, "b", 1.0, -1.5)]},
]


def test_a_client_has_the_means_of_its_layers_in_each_round_that_tested() -> None:
    sin2, rho = [[0.75, None], [0.25, 0.75]], [[1.0, None], [2.0, -0.5]]
    assert look_backs(TESTS, "client") == ([2, 4], [1, 3], sin2, rho)


def test_a_layer_has_the_means_of_clients_in_each_round_that_tested() -> None:
    sin2, rho = [[0.5, 0.5], [None, 1.0]], [[1.5, 0.5], [None, -1.5]]
    assert look_backs(TESTS, "layer") == (["w", "b"], [1, 3], sin2, rho)
    two = [{"round": 1, "looks": [of(0, "w", 0.5, 1.0), of(0, "w", 1.0, 0.0, "control")]}]
    assert look_backs(two, "layer") == (["update, w", "control, w"], [1], [[0.5], [1.0]], [[1.0], [0.0]])


@pytest.mark.slow
@pytest.mark.parametrize("lines", [TESTS, TESTS[:1], [{"round": 1, "looks": [of(0, "*", None, None)]}]])
def test_tests_of_clients_and_of_layers_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[dict]
) -> None:
    drawn, heat = list[list[list[float | None]]](), tests_of_lbgm.heat_map

    def noted(place: Any, values: Any, *more: Any, **how: Any) -> Any:
        drawn.append([[None if np.isnan(x) else x for x in row] for row in values.tolist()])
        return heat(place, values, *more, **how)

    monkeypatch.setattr(tests_of_lbgm, "heat_map", noted)
    assert draw_recycling(recycling(lines), lines, tmp_path / "look_back.png").exists()
    clients, layers = look_backs(lines, "client"), look_backs(lines, "layer")
    assert drawn == [clients.sin2, clients.rho, layers.sin2, layers.rho]


def test_the_losses_of_a_clients_layers_add_up() -> None:
    (found,) = recycling([{"round": 1, "looks": [look(0, 0.25, True), look(0, 0.5, True)]}])
    assert found.error == pytest.approx(18.75)


def test_equation_45_of_gradient_descent_on_a_quadratic() -> None:
    # F = |x|^2, whose smoothness is 2, from x = (1, 0) with a rate of .1: gradients 2 and 1.6, changes -.2 and -.16.
    g = torch.zeros(2, 30)
    g[:, 0] = torch.tensor([-0.2, -0.16])
    changes = [
        {"norm": 0.2, "square": 0.04, "steps": 1.0, "rates": 0.1, "moved": 0.2},
        {"norm": 0.16, "square": 0.0512, "steps": 1.0, "rates": 0.1, "moved": 0.16},
    ]
    lines = [{"round": t, "change": change} for t, change in enumerate(changes, 1)]
    (found,) = steps([1, 2], products(g), lines)
    assert (found.round, found.rate) == (2, 0.1)
    assert found.beta == pytest.approx(2.0, rel=1e-5)
    assert found.upsilon2 == pytest.approx(2.0)
    # min(1/2, 1 / sqrt(2 (1 + 8))) / 2
    assert found.bound == pytest.approx(0.1178511, rel=1e-5)


def test_a_layer_without_gradients_is_left_out_of_heat_maps(tmp_path: Path) -> None:
    layout = Layout(("used", "frozen"), (Size([2]), Size([3])))
    space = Space.of([torch.tensor([1.0, 2.0, 0, 0, 0]), torch.tensor([2.0, 1.0, 0, 0, 0])], layout, [1, 4])
    assert draw_overlap(space, looked_at(space), tmp_path / "overlap.png").exists()  # of rounds 1 and 4: two between
    nothing = Space.of([torch.zeros(5)], layout)
    with pytest.raises(RunError, match="all gradients are zero"):
        draw_overlap(nothing, looked_at(nothing), tmp_path / "none.png")
