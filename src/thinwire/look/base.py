"""The base of every look: options with their ranges, and the four things that are asked of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from ..ranges import Range, check_ranges, of_option

V = TypeVar("V")


Portion = Annotated[float, Range(lambda x: 0 < x <= 1, "must be above 0, and 1 at most")]
Odd = Annotated[int, Range(lambda x: x >= 3 and x % 2 == 1, "an odd number of at least 3 is expected")]


class Words(tuple[str, ...]):
    """The words that an option may be, in its annotation: ``Annotated[str, Words(("squares", "cosine"))]``.

    ``Literal["squares", "cosine"]`` is the same.
    """


def words_in(kind: Any) -> tuple[str, ...]:
    """The words of an annotation, as :class:`Words` or a ``Literal`` has them; none where any value will do."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, Words):
        return kind
    inside = (*get_args(kind), *getattr(kind, "__metadata__", ()))
    return next((words for one in inside if (words := words_in(one))), ())


def option(default: Any, help: str, metavar: str | None = None) -> Any:
    """A field that is an option of the look's command: its default and help text.

    Its range is a part of its annotation (:mod:`thinwire.ranges`). With ``metavar`` it is an argument, which has to be
    there where ``default`` is ``MISSING``.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar})


METHOD = 'Methods, an argument each, e.g. "FedAvg()" "FedAvg(up=TopK(0.01))".'
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
        """Raises ``ValueError`` for an option outside its range, or that is none of its words."""
        check_ranges(type(self), vars(self), of_option)
        hints = get_type_hints(type(self), include_extras=True)
        for name, words in ((f.name, words_in(hints[f.name])) for f in fields(self)):
            value = getattr(self, name)
            odd = [word for word in (value if isinstance(value, tuple) else (value,)) if word not in (None, *words)]
            if words and odd:
                known = f"{', '.join(words[:-1])} or {words[-1]}" if words[1:] else words[0]
                raise ValueError(f"--{name.replace('_', '-')} {odd[0]}: {known} is expected")

    @abstractmethod
    def read(self, subject: Any) -> V:
        """All that is shown of a run (:class:`~thinwire.studies.read.RecordedRun`), or of methods, a list of ``Arm``.

        Raises :class:`RunError` or ``ValueError`` where there is nothing to look at; a study's other runs are shown.
        """

    def rows(self, reading: V) -> Iterable[Row]:
        """The text on the terminal, in its order: tables, sentences, and notes."""
        return ()

    @abstractmethod
    def draw(self, reading: V, folder: Path) -> list[Path]:
        """The figures, as files in a folder that need not be there."""

    @abstractmethod
    def values(self, reading: V) -> dict[str, Any]:
        """The object of ``--json``: every number that the figures show."""


def short(x: float | None) -> str:
    """A number with three digits, as tables have it."""
    return "-" if x is None else f"{x:.3g}"
