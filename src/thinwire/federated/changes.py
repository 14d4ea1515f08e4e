"""What local training did in a round, whatever of it was sent: recorded for those who look at a run later.

With ``record="layers"`` a round's record has

- ``layers``: by name ``[change, weights]``: the norm of the mean change of the layer over the round's clients, and that
  of the layer in the model they began from;
- ``unsent``: the layers that no client sent while others of the same field were (LUAR's recycled ones);
- ``change``: ``norm`` of the mean change of all layers, ``square``, the mean of the clients' squared norms, ``steps``
  and ``rates``, the means of local steps and of their learning rates added up, and ``moved``, how far the server's
  model went. Of a round whose change is the server's it has ``of``: "server", and ``norm`` and ``moved`` alone.

With ``record="gradients"`` the mean change itself is on disk too: row ``round - 1`` of ``gradients.f32`` in the run's
folder, 32-bit floats in little-endian order, one row a round. ``gradients.json`` has the names and shapes of the layers
in the order of a row. Divided by minus the learning rate, the change of plain SGD is the accumulated gradient of Azam
et al. (ICLR 2022, Algorithm 2). With one client and one local epoch a round is an epoch of central training.

With ``record="models"`` the server's model after each evaluated round is in ``models.f32``, row ``round - 1``, and
``models.json`` beside it. Rows of other rounds are holes, which take no room on the disk. The round's record has
``model``: true.

The change of a client is that of the first training that its method asks for, and of those that go on where it ended
(FedRep's body after its head). Means are weighted as the method's are. Some clients change the model otherwise than by
one such training: by gradients alone (Per-FedAvg), by losses at points where the model does not stay (DeComFL), or
beside a model of their own (pFedMe). The change of their round is the server's: its model after the round less that
before. FedPM's clients train logits of probabilities, so its changes and norms are those of logits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from ..errors import RunError
from ..local import Trained
from ..params import Layout, Params
from ..run.folder import write_atomic
from ..wire import Packet

GRADIENTS, MODELS = "gradients", "models"  # the names of their files


def change_of(training: tuple[Params, Trained] | None, unsent: Sequence[str]) -> dict[str, Packet]:
    """What one client's training did, in a form that crosses processes: where it began, and what came of it.

    None where no training is what the client did to the model.
    """
    packet: dict[str, Packet] = {"unsent": list(dict.fromkeys(unsent))}
    if training is None or torch.equal(training[0].flat, training[1].x.flat):  # a loss was asked for, not a step
        return packet
    x, trained = training
    return packet | {
        "change": trained.x.flat - x.flat,
        "weights": [layer.norm().item() for _, layer in x.items()],
        "steps": trained.steps,
        "rates": trained.rates,
    }


class Changes:
    """The mean over a round's clients of what :func:`change_of` says; what the server did, where that says nothing."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.total = layout, torch.zeros(layout.size, dtype=torch.float64, device="cpu")
        self.whole = self.square = self.steps = self.rates = 0.0
        self.weights: list[float] = []
        self.unsent: list[str] = []
        self.server = False  # whether the change is the server's

    def add(self, packet: Packet, weight: float) -> None:
        """One client that replied."""
        self.whole += weight
        self.unsent = [name for name in packet["unsent"] if name in self.layout.spans]
        if "change" not in packet:
            self.server = True
            return
        change: Tensor = packet["change"]
        self.total.add_(change, alpha=weight)
        self.square += weight * float(torch.linalg.vector_norm(change, dtype=torch.float64)) ** 2
        self.steps += weight * packet["steps"]
        self.rates += weight * packet["rates"]
        self.weights = self.weights or packet["weights"]

    def mean(self, moved: Params) -> Params:
        """The mean change, or ``moved``, how the server's model changed; zero where nobody replied."""
        if self.server:
            return moved
        return Params(self.layout, (self.total / (self.whole or 1.0)).to(self.layout.dtype))

    def record(self, before: Params, moved: Params) -> dict[str, Any]:
        """What a round's record has of it; nothing where nobody replied. The server's model was ``before``."""
        if not self.whole:
            return {}
        mean = self.mean(moved)
        norms = [layer.double().norm().item() for _, layer in mean.items()]
        weights = [layer.norm().item() for _, layer in before.items()] if self.server else self.weights
        clients = {name: getattr(self, name) / self.whole for name in ("square", "steps", "rates")}
        change: dict[str, Any] = {"of": "server"} if self.server else clients
        return {
            "layers": {n: list(pair) for n, *pair in zip(self.layout.names, norms, weights, strict=True)},
            "unsent": self.unsent,
            "change": {"norm": mean.norm(), **change, "moved": moved.norm()},
        }


def keep(folder: Path, round: int, row: Params, what: str = GRADIENTS) -> Path:
    """Write a round's row; the file. It is in there, not yet on disk, and the rows before it are as they were."""
    about, said = folder / f"{what}.json", {"names": row.names, "shapes": row.layout.shapes, "dtype": "<f4"}
    data = (json.dumps(said) + "\n").encode()
    if not about.exists() or about.read_bytes() != data:
        write_atomic(about, data)
    path = folder / f"{what}.f32"
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.seek((round - 1) * row.layout.size * 4)
        file.write(row.flat.cpu().numpy().astype("<f4").tobytes())
    return path


def load_rows(folder: Path, rounds: Sequence[int], what: str = GRADIENTS) -> tuple[Layout, list[Tensor]]:
    """The layout, and the rows of these rounds: 32-bit vectors that are read from the disk where they are used.

    Raises :class:`RunError` where there are none, or are damaged.
    """
    about, path = folder / f"{what}.json", folder / f"{what}.f32"
    if not about.exists() or not rounds:
        raise RunError(f"{folder} has no recorded {what}: train it with --record {what} (simulate(record='{what}'))")
    try:
        said = json.loads(about.read_bytes())
        layout = Layout(tuple(said["names"]), tuple(map(Size, said["shapes"])))
    except (KeyError, TypeError, ValueError) as error:
        why = error if isinstance(error, ValueError) else "it holds no names and shapes of layers"
        raise RunError(f"{about} is damaged ({why}): put it back as it was, or train the run anew") from error
    size = layout.size
    if not path.exists() or path.stat().st_size < 4 * size * max(rounds):
        state = f"is shorter than its {max(rounds)} rounds" if path.exists() else "is gone"
        raise RunError(f"{path} {state}: the record is damaged, so train the run anew")
    vectors = np.memmap(path, "<f4", "c", shape=(max(rounds), size))  # "c": torch takes no read-only memory
    return layout, [torch.from_numpy(vectors[round - 1]) for round in rounds]
