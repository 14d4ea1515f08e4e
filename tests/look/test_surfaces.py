"""Filters scaled by hand, principal directions beside scikit-learn's, a quadratic's surface, groups that stay apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import thinwire as tw
from problems import Supervised
from thinwire.look.embedding import embedding, features
from thinwire.look.path import span, way
from thinwire.look.surface import filter_normalise, random_direction, surface
from thinwire.params import Params


def test_a_filter_of_a_direction_is_as_long_as_the_models_and_biases_stay() -> None:
    # Row 0: (3, 4) of length 5 becomes length 10; row 1 of the model is zero; row 2 of the direction is.
    x = Params.of([("w", torch.tensor([[6.0, 8.0], [0.0, 0.0], [1.0, 1.0]])), ("b", torch.tensor([7.0, 7.0, 7.0]))])
    d = Params.of([("w", torch.tensor([[3.0, 4.0], [5.0, 5.0], [0.0, 0.0]])), ("b", torch.tensor([1.0, 2.0, 3.0]))])
    found = filter_normalise(d, x)
    assert found["w"].tolist() == [[6.0, 8.0], [0.0, 0.0], [0.0, 0.0]]
    assert found["b"].tolist() == [0.0, 0.0, 0.0]


def test_a_random_direction_belongs_to_its_seed_and_number() -> None:
    x = Params.of([("w", torch.ones(3, 4))])
    one, again, other = (random_direction(x, 5, number) for number in (0, 0, 1))
    assert torch.equal(one.flat, again.flat)
    assert not torch.equal(one.flat, other.flat)
    assert one["w"].norm(dim=1).tolist() == pytest.approx([2.0, 2.0, 2.0])  # each row of ones has length 2


def test_the_surface_of_a_quadratic_is_known() -> None:
    x, a, b = (Params.of([("w", torch.tensor(w))]) for w in ([1.0, 0.0], [1.0, 0.0], [0.0, 2.0]))
    found = surface(x, a, b, [-1.0, 0.0], [0.0, 1.0, 2.0], lambda p: float(p.flat.square().sum()))
    # (1 + a)^2 + (2 b)^2: rows are b, columns a.
    assert found.tolist() == [[0.0, 1.0], [4.0, 5.0], [16.0, 17.0]]


def test_the_way_lies_on_the_plane_that_scikit_learn_finds() -> None:
    pca = pytest.importorskip("sklearn.decomposition").PCA
    draw = torch.Generator().manual_seed(3)
    rows = torch.randn(7, 11, generator=draw, dtype=torch.float64).cumsum(0)
    layout = Params.of(
        [("w", torch.zeros(2, 5, dtype=torch.float64)), ("b", torch.zeros(1, dtype=torch.float64))]
    ).layout
    found = way(list(rows), layout, range(10, 80, 10))
    theirs, every = pca(2).fit(rows.numpy()), pca().fit(rows.numpy()).explained_variance_ratio_
    for j in range(2):
        assert abs(float(found.directions[j].flat @ torch.from_numpy(theirs.components_[j]))) == pytest.approx(1.0)
    assert found.shares == pytest.approx(every[:6].tolist())
    assert every[6] == pytest.approx(0)  # seven models differ in six directions
    projected = theirs.transform(rows.numpy())
    projected = projected - projected[-1]
    assert np.abs(found.places.numpy()) == pytest.approx(np.abs(projected))
    assert found.places[-1].tolist() == [0.0, 0.0]
    assert (found.places[0] >= 0).all()
    # A place is where its directions lead from the last model, in their own sense.
    offset = rows[0] - rows[-1]
    assert [float(offset @ d.flat) for d in found.directions] == pytest.approx(found.places[0].tolist())
    assert found.rounds == [10, 20, 30, 40, 50, 60, 70]


def test_two_models_make_no_plane() -> None:
    layout = Params.of([("w", torch.zeros(3))]).layout
    with pytest.raises(ValueError, match="2 models: three at least make a plane"):
        way([torch.zeros(3), torch.ones(3)], layout, [1, 2])


def test_a_span_goes_beyond_both_ends() -> None:
    assert span(torch.tensor([0.0, 4.0, 2.0]), 3) == [-1.0, 2.0, 5.0]
    assert span(torch.zeros(3), 3) == [-0.25, 0.0, 0.25]


def test_features_are_what_goes_into_the_last_linear_layer() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 3))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    task = Supervised(torch.tensor([[1.0, 1.0], [2.0, -3.0]]), torch.tensor([0, 1]))
    assert features(module, task, torch.arange(2)).tolist() == [[1.0, 0.0], [2.0, 3.0]]
    assert features(module, task, torch.tensor([1]), "0").tolist() == [[2.0, -3.0]]
    with pytest.raises(ValueError, match="--layer 7: no layer is called that"):
        features(module, task, torch.arange(2), "7")
    with pytest.raises(ValueError, match="the model has no linear layer: name one with --layer"):
        features(torch.nn.Conv2d(1, 1, 1), task, torch.arange(2))


def test_groups_that_are_apart_stay_apart_on_the_plane() -> None:
    pytest.importorskip("sklearn.manifold")
    draw = torch.Generator().manual_seed(1)
    centres = 50 * torch.eye(3, 6).repeat_interleave(12, 0)
    places = embedding(centres + torch.randn(36, 6, generator=draw), perplexity=8)
    assert places.shape == (36, 2)
    groups = torch.arange(36) // 12
    distances = torch.cdist(places, places).fill_diagonal_(float("inf"))
    assert torch.equal(groups[distances.argmin(1)], groups)
    assert torch.equal(places, embedding(centres + torch.randn(36, 6, generator=draw.manual_seed(1)), perplexity=8))
    with pytest.raises(ValueError, match="3 examples: t-SNE needs four at least"):
        embedding(torch.zeros(3, 2))


def test_the_models_of_evaluated_rounds_are_recorded_and_are_those_of_the_run(tmp_path) -> None:
    from thinwire.federated.changes import MODELS, load_rows

    task = Supervised(torch.ones(4, 1), torch.zeros(4, dtype=torch.long))

    def stepped(request, task, key):
        return tw.Trained(request.x + Params(request.x.layout, torch.ones_like(request.x.flat)), 1, 0.5)

    with pytest.raises(ValueError, match="record='models' needs a folder for the run: out="):
        tw.simulate(tw.FedAvg(), torch.nn.Linear(1, 2), [task], 1, record="models")
    start = torch.nn.Linear(1, 2)
    for rounds, resume in ((2, False), (5, True)):
        result = tw.simulate(
            tw.FedAvg(), start, [task], rounds, test=task, out=tmp_path, resume=resume, train=stepped,
            record="models", evaluate_every=2, workers=1,
        )  # fmt: skip
    assert [r["round"] for r in result.rounds if r.get("model")] == [2, 4, 5]
    layout, rows = load_rows(tmp_path, [2, 4, 5], MODELS)
    assert layout.names == ("weight", "bias")
    first = torch.cat([start.weight.flatten(), start.bias]).detach()
    assert [float((row - first).mean()) for row in rows] == pytest.approx([2.0, 4.0, 5.0])
    assert not any("change" in r for r in result.rounds)
