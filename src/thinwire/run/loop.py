"""The loop of every run: to its last round or step, with the lines, checkpoints and files that are left in its folder.

Each kind of training is a class over :class:`Run`, which says how it is kept and gone on with. How one round or step is
made is handed to the loop.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from ..config import differing
from ..errors import RunError, WireError
from ..wire import Packet, State
from .folder import Folder

Record = dict[str, Any]
Outcome = TypeVar("Outcome")
Self = TypeVar("Self")


class Run(ABC, Generic[Outcome]):
    """A training between two rounds or steps. ``Outcome`` is the type of its result.

    Of several ranks all call each function, in one order, and one writes.
    """

    unit: ClassVar[str] = "step"
    """What the loop counts: "round" or "step"."""
    extends: ClassVar[bool] = False
    """Whether a run may go on past its goal later. The last checkpoint then stays. Of others none is needed."""

    optional: ClassVar[tuple[str, ...]] = ()
    """Facts that ``run.json`` has only where they are given: a run that goes on has them too, or neither has."""

    folder: Folder | None = None
    number: int  # rounds or steps that were made
    records: list[Record]
    step: Callable[[bool], Record | None]
    """Makes one round or step, whose record it may return. A deployment has none: who carries its messages has."""

    def until(
        self,
        goal: int,
        step: Callable[[bool], Record | None],
        *,
        evaluate_every: int = 1,
        checkpoint_every: int = 1,
        listeners: Sequence[Callable[[Record], object] | None] = (),
        stop: Callable[[Record], bool] = lambda record: False,
    ) -> Outcome:
        """Make the rounds or steps that are missing up to ``goal``, and return what the run came to.

        ``step`` makes one and returns its record, if it has one. It is told whether to evaluate, which is every
        ``evaluate_every`` rounds or steps and after the last. In the folder that was opened, if any, each record leaves
        its lines. A checkpoint follows where so many rounds or steps were made since the one before, and the end leaves
        the files of the result. Listeners are then called with the record. No more is made once ``stop`` says so of the
        newest record. Raises :class:`RunError` for fewer rounds
        than there are.
        """
        folder, saved = self.folder, self.number
        if saved > goal:
            where = folder.path if folder else "this run"
            raise RunError(f"{where} has {saved} {self.unit}s already: {self.unit}s={goal} would be fewer")
        while self.number < goal and not (self.records and stop(self.records[-1])):
            number = self.number + 1
            record = step(number == goal or number % evaluate_every == 0)
            if record is None:
                continue
            if folder is not None:
                self.enter(folder, record)
                if self.extends if number == goal else number - saved >= checkpoint_every:
                    self.save(folder)
                    saved = number
            for listener in listeners:
                if listener is not None:
                    listener(record)
        result = self.result()
        if folder is not None:
            if self.extends and saved < self.number < goal:
                self.save(folder)  # it stopped
            self.write(folder, result)
            if not self.extends:
                folder.drop_checkpoint()
        return result

    def open(self, folder: Folder, resume: bool) -> None:
        """Start a run in ``folder``, or go on with the one that is there. It is recorded there from now on."""
        if folder.about() is not None and not resume:
            raise RunError(f"{folder.path} holds a run already: resume it, or choose another folder")
        facts = self.fingerprint()
        self.folder, about, packet = folder, folder.agree(facts), folder.load()
        for name in self.optional:
            if name in (about or {}) and name not in facts:
                raise RunError(f"{folder.path} is another run: its {differing(name, (about or {})[name], None)}")
        self.describe(folder, about or {})
        if packet is not None:
            try:
                self.restore(packet)
            except (WireError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise RunError(f"the checkpoint in {folder.path} does not fit this version ({error})") from error
        self.rewind(folder, packet)

    # -- what a kind says -------------------------------------------------------

    @abstractmethod
    def fingerprint(self) -> Record:
        """What ``run.json`` says, and a run that goes on must agree on."""

    @abstractmethod
    def state(self) -> State:
        """All that the next round or step depends on, for a checkpoint."""

    @abstractmethod
    def restore(self, packet: Packet) -> None:
        """Go on from what :meth:`state` gave, after bytes and back."""

    @abstractmethod
    def result(self) -> Outcome:
        """The run so far."""

    @abstractmethod
    def write(self, folder: Folder, result: Outcome) -> None:
        """Write the files of a result: the model, and ``summary.json`` at last."""

    # -- what a kind may say otherwise: here records are in the checkpoint -------

    def describe(self, folder: Folder, about: Record) -> None:
        """Write ``run.json``. ``about`` is what it said before."""
        folder.describe(self.fingerprint())

    def rewind(self, folder: Folder, packet: Packet | None) -> None:
        """Bring the lines on disk to where the run is. ``packet`` is the checkpoint, None at the beginning."""
        folder.write("rounds.jsonl", "".join(json.dumps(record) + "\n" for record in self.records).encode())

    def enter(self, folder: Folder, record: Record) -> None:
        """Add the lines of a record."""
        folder.add("rounds.jsonl", json.dumps(record) + "\n")

    def save(self, folder: Folder) -> None:
        """Write a checkpoint."""
        folder.save(self.state())

    def close(self) -> None:
        """End threads, and whatever else the run holds while it lasts."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def finite(value: float | None) -> float | None:
    """A number for a record. JSON has null for a loss that overflows, as that of a finite model may."""
    return value if value is not None and math.isfinite(value) else None
