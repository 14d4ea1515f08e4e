"""Several methods on one problem: a study is a folder, and the table and plots are made from what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import RunError, find_class, require

if TYPE_CHECKING:
    from .data_parallel import DataParallel
    from .federated import Federated
    from .pipelined import Pipelined
    from .study import Study

__all__ = ["KINDS", "DataParallel", "Federated", "Pipelined", "Study", "load"]


class Place(NamedTuple):
    """Where a kind of study is written, and how it is called: what ``thinwire --help`` says before torch is there."""

    module: str
    name: str  # of the class
    command: str  # that trains one, after ``thinwire``
    help: str  # of that command, in a line


class Kinds(Mapping[str, "type[Study]"]):
    """Every kind of study, by the word that its ``study.json`` has. A class is imported when it is asked for.

    Then ``ValueError`` says which row of the tables it does not agree with.
    """

    def __init__(self, places: dict[str, Place]) -> None:
        self.places = places

    def __getitem__(self, kind: str) -> type[Study]:
        place = self.places[kind]
        cls: type[Study] = find_class(place.module, __name__, place.name, f"KINDS[{kind!r}]")
        from .read import EVERY_LINE

        require(cls.kind == kind, f"KINDS[{kind!r}]: {place.name} has kind = {cls.kind!r}; make the two one word")
        need = "the keys of every line of its rounds.jsonl, the unit first"
        require(kind in EVERY_LINE, f"EVERY_LINE of studies/read.py has no row {kind!r}: write {need}")
        return cls

    def __contains__(self, kind: object) -> bool:
        return kind in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


KINDS = Kinds(
    {
        "federated": Place(
            ".federated",
            "Federated",
            "run",
            "Train one model with several federated methods on the same split; table, logs and plots in --out.",
        ),
        "data-parallel": Place(
            ".data_parallel",
            "DataParallel",
            "ddp-sim",
            "Data-parallel methods by logical workers of one process, exactly; table, logs and plots in --out.",
        ),
        "pipelined": Place(
            ".pipelined",
            "Pipelined",
            "pipeline run",
            "Train one model under several schedules; table, logs and plots in --out. Under torchrun each rank has a "
            "part.",
        ),
    }
)
"""The table of kinds. A new one is a module with a class, a row here, and a row in ``EVERY_LINE`` of read.py."""


def load(out: Path) -> Study:
    """The study in a folder, of whatever kind. Raises :class:`RunError` where there is none."""
    from .read import description

    values = description(out)
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise RunError(f"{out / 'study.json'}: kind is {kind!r}; known are {', '.join(KINDS)}")
    return KINDS[kind].of(values, out / "study.json")


def __getattr__(name: str) -> Any:
    """The classes, at their first use."""
    if name == "Study":
        return import_module(".study", __name__).Study
    kind = next((kind for kind, place in KINDS.places.items() if place.name == name), None)
    if kind is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return KINDS[kind]
