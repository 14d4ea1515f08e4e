"""The loss around a model, along the way a run took, and where a model puts the examples of each client.

Li, Xu, Taylor, Studer, Goldstein, "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018, Sections 4 and 7.
Van der Maaten, Hinton, "Visualizing Data using t-SNE", JMLR 2008, as scikit-learn computes it.

Differences from the papers: principal directions are those of the models less their mean, as in the code of Li et al.,
where the text subtracts the last model. They follow from inner products, so nothing of size D x D is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..algorithms.features import last_linear, layer, pass_through
from ..data.optional import optional
from ..errors import require
from ..federated.changes import MODELS, load_rows
from ..key import Key
from ..params import Layout, Params
from ..studies.read import Run, lacks
from ..task import Task
from .gradients import Space, centred


def filtered(direction: Params, x: Params) -> Params:
    """The direction, each of whose filters is as long as that of ``x``: the network's scale makes no difference then.

    A filter is what stands at one place of a tensor's first dimension. Tensors of one dimension, which are biases and
    the parameters of norms, become zero. A filter of zeros stays one.
    """

    def scaled(d: Tensor, w: Tensor) -> Tensor:
        if w.ndim < 2:
            return torch.zeros_like(d)
        ours, theirs = (t.flatten(1).norm(dim=1) for t in (d, w))
        ratio = torch.where(ours > 0, theirs / ours.clamp_min(torch.finfo(ours.dtype).tiny), torch.zeros_like(ours))
        return d * ratio.view(-1, *(1,) * (d.ndim - 1))

    return Params.of((name, scaled(d, x[name])) for name, d in direction.items())


def random_direction(x: Params, seed: int, number: int = 0) -> Params:
    """One of the filter-normalised Gaussian directions that belong to a seed."""
    flat = torch.randn(
        x.layout.size, dtype=torch.float32, device="cpu", generator=Key(seed, number).generator("direction")
    ).to(x.layout.dtype)
    return filtered(Params(x.layout, flat), x)


def surface(
    centre: Params,
    first: Params,
    second: Params,
    across: Sequence[float],
    up: Sequence[float],
    loss: Callable[[Params], float],
) -> Float[Tensor, "up across"]:
    """``loss`` at centre + a * first + b * second, for each a of ``across`` and each b of ``up``."""
    return torch.tensor([[loss(centre + first * a + second * b) for a in across] for b in up], dtype=torch.float64)


class Way(NamedTuple):
    """Where a run's models lie on the plane of their two principal directions."""

    rounds: list[int]
    directions: tuple[Params, Params]  # of length 1
    places: Float[Tensor, "t 2"]  # from the last model, which lies at (0, 0)
    shares: list[float]  # of the models' variance, that of each principal direction, the largest first


def way(rows: Sequence[Tensor], layout: Layout, rounds: Sequence[int]) -> Way:
    """Of models [d], the last of which is the end. Raises ``ValueError`` for fewer than three.

    The first model has no negative coordinate: a principal direction has no sign of its own.
    """
    require(len(rows) >= 3, f"{len(rows)} models: three at least make a plane")
    products = centred(Space.of(rows, layout).whole())
    values, vectors = torch.linalg.eigh(products)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    places = (vectors * values.sqrt())[:, :2]
    places = places - places[-1]
    signs = torch.where(places[0] < 0, -1.0, 1.0).double()
    mean = torch.stack([row.double() for row in rows]).mean(0) if len(rows) * layout.size < 1 << 24 else _mean(rows)
    directions = []
    for j in range(2):
        flat = torch.zeros(layout.size, dtype=torch.float64)
        for t, row in enumerate(rows):
            flat.add_(row.double() - mean, alpha=float(vectors[t, j]))
        length = float(flat.norm()) or 1.0
        directions.append(Params(layout, (flat * float(signs[j]) / length).to(layout.dtype)))
    total = float(values.sum()) or 1.0
    shares = (values[: len(rows) - 1] / total).tolist()  # n models differ in at most n - 1 directions
    return Way(list(rounds), (directions[0], directions[1]), places * signs, shares)


def _mean(rows: Sequence[Tensor]) -> Tensor:
    total = torch.zeros(len(rows[0]), dtype=torch.float64)
    for row in rows:
        total += row
    return total / len(rows)


def recorded(run: Run) -> tuple[Layout, list[Tensor], list[int]]:
    """The models that a run recorded, and their rounds. Raises :class:`RunError` where there are none."""
    rounds = [line["round"] for line in run.rounds if line.get("model")]
    if not rounds:
        raise lacks(run, "recorded models", "federated", "train it with --record models or all")
    layout, rows = load_rows(run.path, rounds, MODELS)
    return layout, rows, rounds


def span(places: Float[Tensor, " t"], points: int, margin: float = 0.25) -> list[float]:
    """So many values from the least to the largest place and a share of the distance beyond."""
    low, high = float(places.min()), float(places.max())
    beyond = margin * ((high - low) or 1.0)
    found: list[float] = torch.linspace(low - beyond, high + beyond, points, dtype=torch.float64).tolist()
    return found


@torch.no_grad()
def features(module: nn.Module, task: Task, indices: Tensor, name: str | None = None) -> Float[Tensor, "n d"]:
    """What goes into a layer, by default the last linear one, for these examples: one row each.

    Raises ``ValueError`` for a layer that the model has not, or that is no part of its forward pass.
    """
    found = last_linear(module) if name is None else name
    require(found is not None, "the model has no linear layer: name one with --layer")
    assert found is not None
    layer(module, found, f"--layer {found}")
    module.eval()
    return pass_through(module, task, task.batch(indices), found, "input")[1].flatten(1)


def embedding(rows: Float[Tensor, "n d"], perplexity: float = 30.0, seed: int = 0) -> Float[Tensor, "n 2"]:
    """Places on a plane by t-SNE: close together where rows are. Distances between groups say little.

    At most a third of the rows is taken as ``perplexity``. Needs scikit-learn. Raises ``ValueError`` for fewer than
    four rows.
    """
    require(len(rows) >= 4, f"{len(rows)} examples: t-SNE needs four at least")
    tsne = optional("sklearn.manifold", "t-SNE").TSNE(
        perplexity=min(perplexity, (len(rows) - 1) / 3), init="pca", random_state=seed % (1 << 32)
    )
    return torch.from_numpy(tsne.fit_transform(rows.float().numpy())).double()
