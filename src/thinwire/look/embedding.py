"""Where a model puts the examples of each client: what goes into its last layer, on a plane.

Van der Maaten, Hinton, "Visualizing Data using t-SNE", JMLR 2008, as scikit-learn computes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..algorithms.features import last_linear, layer, pass_through
from ..data.optional import optional
from ..errors import RunError, require
from ..params import Params
from ..ranges import AboveZero, Count
from ..studies.read import RecordedRun
from ..task import Task
from .base import OWN_TASK, Look, Row, Words, option
from .drawing import panels, plt, save
from .final import Final, final, labels
from .path import models_of


@torch.no_grad()
def features(module: nn.Module, task: Task, indices: Tensor, name: str | None = None) -> Float[Tensor, "n d"]:
    """The input of a layer, by default the last linear one, for these examples: a row each.

    Raises ``ValueError`` for a layer that the model has not, or that is no part of its forward pass.
    """
    place = last_linear(module) if name is None else name
    require(place is not None, "the model has no linear layer: name one with --layer")
    assert place is not None
    layer(module, place, f"--layer {place}")
    module.eval()
    return pass_through(module, task, task.batch(indices), place, "input")[1].flatten(1)


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


class Reading(NamedTuple):
    """A plane for each model that is shown, with its title, and the client or label of each place."""

    planes: list[tuple[str, Float[Tensor, "n 2"]]]
    groups: list[int]
    sentence: str


@dataclass(frozen=True)
class Embedding(Look[Reading]):
    """Needs a complete run of any federated method, of a study or with --task, and scikit-learn; --rounds needs --record
    models or all.
    """  # noqa: E501

    by: Annotated[str, Words(("client", "label"))] = option("client", "client or label: what a colour is.")
    rounds: str | None = option(None, "Models of these rounds, e.g. 10,50,200, in place of the final one.")
    model: str | None = option(None, "One that was trained beside the shared model: FedSM's selector.")
    each: Count = option(50, "Examples of each client, its first ones.")
    clients: Count = option(10, "Clients, the first ones.")
    layer: str | None = option(None, "Whose input is embedded (default: the last linear layer).")
    perplexity: AboveZero = option(30.0, "Of t-SNE: about how many neighbours count.")
    seed: int = option(0, "Of t-SNE.")
    task: str | None = option(None, OWN_TASK)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds is None or self.model is None, "--rounds are of the shared model: leave --model out")
        self.numbers()

    def numbers(self) -> list[int]:
        """The rounds that are asked for. Raises ``ValueError`` for words that are none."""
        try:
            return [int(word) for word in self.rounds.split(",")] if self.rounds else []
        except ValueError:
            raise ValueError(f"--rounds {self.rounds}: rounds separated by commas, such as 10,50,200") from None

    def read(self, run: RecordedRun) -> Reading:
        end = final(run, self.task)
        modules = self._modules(run, end)
        groups, sets = list[int](), []
        for client, own in enumerate(end.tasks[: self.clients]):
            sets.append((own, torch.arange(min(self.each, len(own)))))
            groups += labels(*sets[-1]) if self.by == "label" else [client] * len(sets[-1][1])
        planes, width = [], 0
        for title, module in modules:
            rows = torch.cat([features(module, own, indices, self.layer) for own, indices in sets])
            width = rows.shape[1]
            planes.append((title, embedding(rows, self.perplexity, self.seed)))
        return Reading(planes, groups, f"{len(groups)} examples of {len(sets)} clients, {width} features each")

    def _modules(self, run: RecordedRun, end: Final) -> list[tuple[str, nn.Module]]:
        """The models that are shown, each with its title."""
        module, asked = end.by_name(self.model), self.numbers()
        if not asked:
            return [("", module)]
        layout, models, there = models_of(run)
        if missing := [number for number in asked if number not in there]:
            raise RunError(f"{run.path} has no model of round {missing[0]}; it has {', '.join(map(str, there))}")
        at = [(number, Params(layout, models[there.index(number)].clone())) for number in asked]
        return [(f"round {number}", end.assemble(x)) for number, x in at]

    def rows(self, reading: Reading) -> Iterable[Row]:
        yield reading.sentence

    def draw(self, reading: Reading, folder: Path) -> list[Path]:
        """Places on planes, a colour for each client or label (paper 002's Figure 11, paper 004's Figure 6)."""
        planes, groups, by = reading.planes, reading.groups, self.by
        figure, places = panels(len(planes), 4.4 if len(planes) > 1 else 5.4, 4.4)
        of, colours = torch.tensor(groups), plt.get_cmap("tab20")
        for place, (title, where) in zip(places, planes, strict=True):
            for i, group in enumerate(sorted(set(groups))):
                x, y = where[of == group].T.tolist()
                place.scatter(x, y, s=8, color=colours(i % 20), label=f"{by} {group}")
            place.set_xticks([])
            place.set_yticks([])
            place.set_title(title or f"t-SNE of features, by {by}", fontsize=10)
        places[-1].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        return [save(figure, folder / "embedding.png")]

    def values(self, reading: Reading) -> dict[str, Any]:
        asked, places = self.numbers(), [places.tolist() for _, places in reading.planes]
        shown: dict[str, Any] = {"rounds": asked, "places": places} if asked else {"places": places[0]}
        return {f"{self.by}s": reading.groups, **shown}
