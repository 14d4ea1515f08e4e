"""What a training of a pipeline is to a script, whether its parts are processes or lie in one."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from ..config import complete
from ..errors import WireError, require
from .stage import Batch, Settings, Stage

FORMAT = 1  # of a state_dict


@dataclass
class Bytes:
    """Bytes that one part sent and received, what frames messages included.

    ``forward`` are activations, ``backward`` error gradients, ``look`` activations of batches that were looked at and
    not trained with. ``setup`` is what ranks compared before the first batch; the simulator has none of it.
    """

    batches: int = 0
    forward_sent: int = 0
    forward_received: int = 0
    backward_sent: int = 0
    backward_received: int = 0
    look_sent: int = 0
    look_received: int = 0
    setup: int = 0

    @property
    def sent(self) -> int:
        """All that was sent to train."""
        return self.forward_sent + self.backward_sent

    @property
    def received(self) -> int:
        """All that was received to train."""
        return self.forward_received + self.backward_received

    def add(self, way: str, direction: str, count: int) -> None:
        """Enter a message."""
        name = f"{way}_{direction}"
        setattr(self, name, getattr(self, name) + count)

    def summary(self) -> dict[str, int]:
        """As numbers, for a log."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"sent": self.sent, "received": self.received}


class Training(ABC):
    """Steps, evaluation, checkpoints and bytes of a pipelined training.

    ``stages`` has the parts that lie in this process, by number, and ``ledger`` their bytes.
    """

    def __init__(self, stages: Mapping[int, Stage], settings: Settings) -> None:
        self.stages, self.settings = dict(stages), settings
        self.ledger = {part: Bytes() for part in self.stages}
        self.looks = 0
        self.shapes: dict[str, list[Any]] = {}  # of the first batch: inputs and targets, with their types

    @property
    def batches(self) -> int:
        """How many were given."""
        return next(iter(self.stages.values())).given

    @property
    def held(self) -> dict[int, int]:
        """The most micro-batches that each part here kept at once between their forward and their backward pass."""
        return {part: stage.most for part, stage in self.stages.items()}

    def step(self, x: Tensor | None, y: Tensor | None = None, examples: Tensor | Sequence[int] | None = None) -> Any:
        """Train with one batch more. The first part needs the inputs ``x``, the last one the targets ``y``.

        ``examples`` are the numbers of the batch's examples, for links that remember by example. Returns the loss, a
        number in a tensor, of the batch that went back at the last part: this one, unless the schedule keeps that part
        behind too. None on all other ranks, and where no batch went back. Raises ``ValueError`` for a batch of another
        size, shape or type than those before, :class:`~thinwire.errors.NonFinite` where the loss is no number,
        and :class:`~thinwire.errors.RankLost` where another rank is lost or has failed.

        A batch of another shape is refused before anything is done with it. A simulation then goes on with the next
        batch. Of processes each one that was given such a batch raises ``ValueError``, and all others ``RankLost``
        with its text: the training is begun anew from its last checkpoint.
        """
        numbers = None if examples is None else [int(number) for number in examples]
        return self.run("step", lambda stage: stage.tick(Batch(x, y, numbers)), lambda: self._same_shapes(x, y))

    def drain(self) -> Any:
        """Finish what is on its way, so that every batch is used once. Returns the mean loss of what went back.

        Training may go on afterwards, and fills the pipeline anew.
        """
        return self.run("drain", lambda stage: stage.drain())

    def predict(self, x: Tensor | None) -> Any:
        """The model's outputs for inputs ``x``, at the last part, in evaluation mode; None on all other ranks.

        Activations go from part to part as they are, whatever link training has. What is on its way stays there.
        """
        self.looks += 1
        return self.run("predict", lambda stage: stage.look(x, self.looks))

    @abstractmethod
    def run(self, what: str, begin: Any, check: Any = None) -> Any:
        """Drive what ``begin`` makes of each stage here to its end; returns what the last part's gave."""

    def _same_shapes(self, x: Tensor | None, y: Tensor | None) -> None:
        found = {name: [list(t.shape), str(t.dtype)] for name, t in (("inputs", x), ("targets", y)) if t is not None}
        for name, now in found.items():
            before = self.shapes.get(name, now)
            hint = ""
            if now[0][:1] != before[0][:1] and now[0][1:] == before[0][1:]:
                hint = "; drop the last batch of an epoch where it is smaller (drop_last=True)"
            require(
                now == before,
                f"batch {self.batches} has {name} of shape {now[0]}, {now[1]}, and those before had {before[0]}, "
                f"{before[1]}: one training takes batches of one shape{hint}",
            )
        self.shapes = {**found, **self.shapes}

    # -- checkpoints ----------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """What a state is of, and what a training that goes on from it must agree on."""
        return {
            "format": FORMAT,
            "schedule": complete(self.settings.schedule),
            "parts": self.settings.parts,
            "seed": self.settings.seed,
        }

    def state_of(self, part: int, pending: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The state of one part here."""
        return {
            **self.about(),
            "ledger": dict(vars(self.ledger[part])),
            "shapes": copy.deepcopy(self.shapes),
            **self.stages[part].state(pending),
        }

    def load_part(self, part: int, state: dict[str, Any]) -> list[Any]:
        """Go on from the state of a part; returns the messages that wait for it."""
        known = isinstance(state, dict) and state.get("format") == FORMAT
        require(known, "this is no state of thinwire.pipeline, or of another version: give what state_dict() returned")
        for name, mine in self.about().items():
            require(state[name] == mine, f"this state is of another {name}: {state[name]}, not {mine}")
        require(state["part"] == part, f"this state is of part {state['part']}, and this is part {part}")
        try:
            pending = self.stages[part].load(state)
        except WireError as error:
            raise ValueError(str(error)) from error
        self.ledger[part] = Bytes(**state["ledger"])
        self.shapes = {**self.shapes, **copy.deepcopy(state["shapes"])}
        return pending


def modules(stages: Any) -> list[nn.Module]:
    """The parts that a script gave. Raises ``ValueError`` for what is no list of them."""
    found = list(stages) if isinstance(stages, Sequence | nn.ModuleList) else []
    fits = bool(found) and all(isinstance(stage, nn.Module) for stage in found)
    require(fits, f"stages={type(stages).__name__}: give the list of modules that split() returns")
    for part, module in enumerate(found):
        trained = any(p.requires_grad for p in module.parameters())
        require(trained, f"part {part} has no parameters to train: cut the model elsewhere")
    return found
