"""Everything that can be written in an expression."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..config import Config
from ..data import Augment, Split
from ..ddp.feedback import Method
from ..expression import settings, shape, vocabulary
from ..federated.buffered import Buffered
from ..federated.network import Network
from ..federated.privacy import Privacy
from ..federated.sampler import Sampler
from ..federated.sessions import Availability
from ..federated.setting import Setting
from ..links import Link
from ..links.subspace import Basis
from ..optimizers import Optimizer
from ..pipeline.schedule import Schedule as Parts
from ..pipeline.stored import AQSGD
from ..robust import Aggregator, Attack
from ..schedules import Schedule
from . import KINDS as STUDIES
from .expressions import own


class PublicName(NamedTuple):
    """A public name."""

    name: str
    kind: str
    signature: str
    summary: str
    paper: str


KINDS: dict[type, str] = {
    Algorithm: "algorithm",
    Auto: "algorithm",
    Link: "link",
    Method: "data-parallel",
    Parts: "pipeline schedule",
    AQSGD: "pipeline link",
    Optimizer: "server optimiser",
    Aggregator: "aggregator",
    Attack: "attack",
    Schedule: "learning rate",
    Split: "split",
    Augment: "augmentation",
    Network: "network",
    Availability: "sessions",
    Privacy: "privacy",
    Buffered: "buffer",
    Sampler: "sampler",
    Setting: "setting",
    Basis: "random subspace",
    Config: "local training",
}


def catalogue(use: Sequence[str] = ()) -> list[PublicName]:
    """Every name, by kind, then by name; those too that ``use``, modules of the user's, define."""
    # One by one: EF21 is a link, and a data-parallel method too.
    named = [*vocabulary().items(), *settings(Split).items(), *settings(Augment).items(), ("AQSGD", AQSGD)]
    # What a module merely imports from thinwire is there already.
    named += [(name, cls) for name, cls in own(use).items() if not cls.__module__.startswith("thinwire.")]
    entries = [_entry(name, cls, KINDS[Config]) for name, cls in named]
    entries += [_entry(name, cls, kind) for kind, study in STUDIES.items() for name, cls in study.outermost.items()]
    order = [*KINDS.values(), *STUDIES]
    return sorted(entries, key=lambda entry: (order.index(entry.kind), entry.name))


def _entry(name: str, cls: type, other: str) -> PublicName:
    """``other`` is the kind of a configuration that has none of these bases."""
    kind = next((word for base, word in KINDS.items() if base is not Config and issubclass(cls, base)), other)
    summary = (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")
    return PublicName(name, kind, f"{name}{shape(cls)}", summary, getattr(cls, "paper", ""))


def show(entries: list[PublicName]) -> None:
    """As a list on the terminal."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    last = ""
    for entry in entries:
        if entry.kind != last:
            console.print(f"\n[bold]{entry.kind}[/bold]")
            last = entry.kind
        console.print(f"  {escape(entry.signature)}", highlight=False, soft_wrap=True)
        console.print(f"      {escape(entry.summary)}", highlight=False, soft_wrap=True)
        if entry.paper:
            console.print(f"      [dim]{escape(entry.paper)}[/dim]", highlight=False, soft_wrap=True)
