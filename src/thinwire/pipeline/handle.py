"""A training of a pipeline as a script has it, whether its parts are processes or lie in one."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from ..config import complete
from ..errors import WireError, require
from .checkpoint import load_stage, stage_state
from .settings import Settings
from .split import apart
from .stage import Batch, Stage

FORMAT = 1  # of a state_dict


@dataclass
class Bytes:
    """Bytes that one part sent and received, what frames messages included.

    ``forward`` are activations, ``backward`` error gradients, ``look`` activations of batches that were looked at and
    not trained with. ``averaged`` is what the part gave to collectives with its replicas, of which there are R: of an
    all-reduce of n bytes 2 (R - 1) / R * n cross each one's link, of an all-gather (R - 1) n. ``setup`` is what ranks
    compared before the first batch; the simulator has none of it.
    """

    batches: int = 0
    forward_sent: int = 0
    forward_received: int = 0
    backward_sent: int = 0
    backward_received: int = 0
    look_sent: int = 0
    look_received: int = 0
    averaged: int = 0
    setup: int = 0

    @property
    def sent(self) -> int:
        """All that was sent to other parts to train."""
        return self.forward_sent + self.backward_sent

    @property
    def received(self) -> int:
        """All that was received from other parts to train."""
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

    ``stages`` has the parts that lie in this process, and ``ledger`` their bytes, both by rank: part k of replica r is
    rank r K + k.
    """

    def __init__(self, stages: Mapping[int, Stage], settings: Settings) -> None:
        self.stages, self.settings = dict(stages), settings
        self.ledger = {rank: Bytes() for rank in self.stages}
        self.looks = 0
        self.failed: str | None = None  # why it goes no further
        self.begun = False  # whether it has done more than load a state
        self.shapes: dict[str, list[Any]] = {}  # of the first batch: inputs and targets, with their types

    @property
    def batches(self) -> int:
        """How many were given."""
        return next(iter(self.stages.values())).given

    @property
    def held(self) -> dict[int, int]:
        """The most micro-batches that each part here kept at once between their forward and their backward pass."""
        return {rank: stage.most for rank, stage in self.stages.items()}

    def step(self, x: Tensor | None, y: Tensor | None = None, examples: Tensor | Sequence[int] | None = None) -> Any:
        """Train with one batch more. The first part needs the inputs ``x``, the last one the targets ``y``.

        ``examples`` are the numbers of the batch's examples, for links that remember by example. Returns the loss, a
        number in a tensor, of the batch that went back at the last part: this one, unless the schedule keeps that part
        behind too. None on all other ranks, and where no batch went back. Raises ``ValueError`` for a batch of another
        size, shape or type than those before, :class:`~thinwire.errors.NonFinite` where the loss is no number,
        and :class:`~thinwire.errors.RankLost` where another rank is lost or has failed.

        A batch of another shape is refused before anything is done with it. A simulation then goes on with the next
        batch. Of processes each one that was given such a batch raises ``ValueError``, and all others ``RankLost``
        with its text: the training is begun anew from its last checkpoint, as it is after any other error.
        """
        numbers = None if examples is None else [int(number) for number in examples]

        def begin(stage: Stage) -> Any:
            return stage.tick(Batch(*(self.share(whole, stage.replica) for whole in (x, y, numbers))))

        return self.run("step", begin, lambda: self._fits(x, y, numbers))

    def drain(self) -> Any:
        """Finish what is on its way, so that every batch is used once. Returns the mean loss of what went back.

        Training may go on afterwards, and fills the pipeline anew. Of processes each may end afterwards: what it sent
        has left it, as it has after ``predict`` and ``state_dict``. One that ends after ``step`` may take messages with
        it that its neighbours wait for.
        """
        return self.run("drain", lambda stage: stage.drain())

    def predict(self, x: Tensor | None) -> Any:
        """The model's outputs for inputs ``x``, at the last part, in evaluation mode; None on all other ranks.

        Activations go from part to part as they are, whatever link training has. What is on its way stays there.
        """
        self.looks += 1
        return self.run("predict", lambda stage: stage.look(self.share(x, stage.replica), self.looks))

    def share(self, whole: Any, replica: int) -> Any:
        """The share of a batch that a replica is given: in a process of its own all that its script gives."""
        return whole

    @abstractmethod
    def whole_state_dict(self) -> dict[str, Tensor]:
        """The model's ``state_dict()``, copied, under its names before it was cut.

        Where two parts of a list of one's own have a name alike, the number of its part is before each name, as in
        ``nn.ModuleList(stages).state_dict()``. Parameters are as they are now: call :meth:`drain` first where every
        batch is to count. Of replicas they are the model that the method is judged by, and buffers those of the first
        replica. Between processes all ranks call it. Raises ``ValueError`` for a training that has failed.
        """

    @abstractmethod
    def run(self, what: str, begin: Any, check: Any = None) -> Any:
        """Drive what ``begin`` makes of each stage here to its end; returns what the last part's gave."""

    def _sound(self) -> None:
        """``ValueError`` for a training that has failed: its parts are at different places of a batch."""
        require(self.failed is None, f"this training has failed ({self.failed}): begin anew, from a checkpoint")

    def _fits(self, x: Tensor | None, y: Tensor | None, examples: list[int] | None) -> None:
        for name, given in (("inputs x", x), ("targets y", y)):
            require(
                given is None or isinstance(given, Tensor),
                f"step(x, y): the {name} are of type {type(given).__name__}: give one tensor, or None on a rank that "
                "needs none",
            )
            require(
                given is None or examples is None or len(examples) == len(given),
                f"step(x, y, examples=...): {0 if examples is None else len(examples)} numbers for "
                f"{0 if given is None else len(given)} {name}: give a number for each example of the batch",
            )
        self._same_shapes(x, y)

    def _same_shapes(self, x: Tensor | None, y: Tensor | None) -> None:
        shapes = {name: [list(t.shape), str(t.dtype)] for name, t in (("inputs", x), ("targets", y)) if t is not None}
        for name, now in shapes.items():
            before = self.shapes.get(name, now)
            hint = ""
            if now[0][:1] != before[0][:1] and now[0][1:] == before[0][1:]:
                hint = "; drop the last batch of an epoch where it is smaller (drop_last=True)"
            require(
                now == before,
                f"batch {self.batches} has {name} of shape {now[0]}, {now[1]}, and those before had {before[0]}, "
                f"{before[1]}: one training takes batches of one shape{hint}",
            )
        self.shapes = {**shapes, **self.shapes}

    # -- checkpoints ----------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """The facts about a state that a training must agree on to go on from it."""
        return {
            "format": FORMAT,
            "schedule": complete(self.settings.schedule),
            "parts": self.settings.parts,
            "seed": self.settings.seed,
            "replicas": self.settings.replicas,
            "average": complete(self.settings.average) if self.settings.replicas > 1 else None,
        }

    def state_of(self, rank: int, pending: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The state of one part here."""
        return {
            **self.about(),
            "ledger": dict(vars(self.ledger[rank])),
            "shapes": copy.deepcopy(self.shapes),
            **stage_state(self.stages[rank], pending),
        }

    def load_part(self, rank: int, state: dict[str, Any]) -> list[Any]:
        """Go on from the state of a part; returns the messages that wait for it."""
        known = isinstance(state, dict) and state.get("format") == FORMAT
        require(known, "this is no state of thinwire.pipeline, or of another version: give what state_dict() returned")
        for name, mine in self.about().items():
            require(state[name] == mine, f"this state is of another {name}: {state[name]}, not {mine}")
        stage = self.stages[rank]
        for name, own in (("part", stage.part), ("replica", stage.replica)):
            require(state[name] == own, f"this state is of {name} {state[name]}, and this is {name} {own}")
        try:
            pending = load_stage(stage, state)
        except WireError as error:
            raise ValueError(str(error)) from error
        self.ledger[rank] = Bytes(**state["ledger"])
        if self.settings.replicas == 1:  # a simulation is given all replicas' batches at once, and a process its own
            self.shapes = {**self.shapes, **copy.deepcopy(state["shapes"])}
        return pending


def whole(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The ``state_dict()`` of all parts together."""
    alike = len({name for part in parts for name in part}) < sum(map(len, parts))
    return {f"{k}.{name}" if alike else name: tensor for k, part in enumerate(parts) for name, tensor in part.items()}


def modules(stages: Any) -> list[nn.Module]:
    """The parts that a script gave. Raises ``ValueError`` for what is no list of them."""
    parts = list(stages) if isinstance(stages, Sequence | nn.ModuleList) else []
    fits = bool(parts) and all(isinstance(stage, nn.Module) for stage in parts)
    require(fits, f"stages={type(stages).__name__}: give the list of modules that split() returns")
    for part, module in enumerate(parts):
        trained = any(p.requires_grad for p in module.parameters())
        require(trained, f"part {part} has no parameters to train: cut the model elsewhere")
    apart(parts)
    return parts
