"""What every look is: options with their ranges, and the four things that are asked of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from ..errors import require

V = TypeVar("V")


class Range(NamedTuple):
    """The values that an option may have, and the end of the sentence that refuses all others."""

    has: Callable[[Any], bool]
    sentence: str


def at_least(least: int) -> Range:
    """From a whole number on."""
    return Range(lambda x: x >= least, f"it must be at least {least}" if least else "it must not be negative")


def one_of(*words: str) -> Range:
    """These words."""
    return Range(lambda x: x in words, f"{', '.join(words[:-1])} or {words[-1]} is expected")


POSITIVE = Range(lambda x: x > 0, "it must be positive")
SHARE = Range(lambda x: 0 < x <= 1, "it must be above 0, and 1 at most")
ODD = Range(lambda x: x >= 3 and x % 2 == 1, "an odd number of at least 3 is expected")


def option(default: Any, help: str, range: Range | None = None, metavar: str | None = None) -> Any:
    """A field that is an option of the look's command: its default, help text and range; None is in every range.

    With ``metavar`` it is an argument, which has to be there where ``default`` is ``MISSING``.
    """
    return field(default=default, metadata={"help": help, "range": range, "metavar": metavar})


METHOD = 'Methods, e.g. "FedAvg(up=TopK(0.01))".'
DATA_DIR = "Where data sets lie (else THINWIRE_DATA, a cache, or a download)."
OWN_TASK = "my_module:make_task: model and data of a run in no study, as `simulate` leaves it."


class Table(NamedTuple):
    """A table on the terminal, whose cells are written as ``str`` has them."""

    title: str
    head: Sequence[str]
    cells: Sequence[Sequence[Any]]


class Note(str):
    """A sentence of a look that goes to standard error."""


Row = Table | Note | str


@dataclass(frozen=True)
class Look(ABC, Generic[V]):
    """A look: a frozen dataclass whose fields, each an :func:`option`, are the options of its command.

    The docstring of a look that reads runs says which it needs, with which --record: ``--help`` has it after the line
    of ``LOOKS``. Options that do not agree with one another are refused in ``__post_init__``.
    """

    subject: ClassVar[Literal["run", "study", "studies", "nothing"]] = "run"
    """What :meth:`read` takes: each run below DIR, the methods of one DIR or of several, or nothing (None)."""
    out: ClassVar[tuple[str, Path | None]] = ("A folder for the figures (default: `look` in each run's folder).", None)
    """Help text and default of --out. Without a folder nothing is drawn where ``subject`` is nothing."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for an option outside its range."""
        for one in fields(self):
            value, range = getattr(self, one.name), one.metadata["range"]
            fits = range is None or value is None or range.has(value)
            require(fits, f"--{one.name.replace('_', '-')} {value}: {'' if range is None else range.sentence}")

    @abstractmethod
    def read(self, subject: Any) -> V:
        """All that is shown of a run (:class:`~thinwire.studies.read.Run`), or of methods, a list of ``Arm``.

        Raises :class:`RunError` or ``ValueError`` where there is nothing to look at; a study's other runs are shown.
        """

    def rows(self, reading: V) -> Iterable[Row]:
        """What stands on the terminal, in its order: tables, sentences, and notes."""
        return ()

    @abstractmethod
    def draw(self, reading: V, folder: Path) -> list[Path]:
        """The figures, as files in a folder that need not be there."""

    @abstractmethod
    def values(self, reading: V) -> dict[str, Any]:
        """What ``--json`` has: every number that the figures show."""


def short(x: float | None) -> str:
    """A number with three digits, as tables have it."""
    return "-" if x is None else f"{x:.3g}"
