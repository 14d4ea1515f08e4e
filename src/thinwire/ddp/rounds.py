"""When ranks exchange, and what is in flight: one place that processes and logical workers ask.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, arXiv:2311.08105, Algorithm
1; Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, arXiv:2501.18512, Algorithm 2.

A round of a fragment is H optimiser steps and an exchange. Fragment f of F is sent after step n = f H / F modulo H, and
applied ``delay`` steps after that, at most H / F. So one fragment at most is on its way between two steps. Where one is
sent and another applied after the same step, what is sent comes first.

Differences from the papers: layers are dealt to fragments by their place in the model, one after another. A layer is a
numbered block, or a module that has parameters of its own outside of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..config import Config
from ..errors import require
from ..ranges import Rate


@dataclass(frozen=True)
class Seconds(Config):
    """In place of a number of steps: a round ends so many seconds after the last exchange. See :mod:`.clock`."""

    example = "Seconds(30)"

    seconds: Rate = 30.0


class Due(NamedTuple):
    """The fragments that are sent, that are applied, and whose next round begins, after a step; None: nothing is."""

    send: int | None
    apply: int | None
    begin: int | None


class Rounds(NamedTuple):
    """Rounds of ``steps`` steps for each of ``fragments``, whose exchanges are applied ``delay`` steps later."""

    steps: int
    fragments: int
    delay: int

    def due(self, step: int) -> Due:
        """What is due after a step. Steps are counted from 0."""
        send, apply = self._turn(step + 1), self._turn(step + 1 - self.delay)
        # What is sent begins a round even where nothing was sent before, and is to be applied: after the first one.
        return Due(send, apply, send if self.delay == self.steps else apply)

    def _turn(self, made: int) -> int | None:
        """The fragment that is sent when so many steps are made."""
        turn, rest = divmod(made, self.steps // self.fragments)
        return None if rest or turn < 1 else turn % self.fragments

    def number(self, step: int) -> int:
        """The number of the exchange after a step among those of its fragment, from 0."""
        return step // self.steps

    @property
    def single(self) -> bool:
        """Whether each step is a round of its own, and applied at once."""
        return self.steps == 1 and not self.delay

    def rest(self, made: int) -> bool:
        """Whether all ranks hold the same model when so many steps are made: a round has ended, and none begun."""
        return not made or (self.fragments == 1 and not self.delay and made % self.steps == 0)


def layer(name: str) -> str:
    """The layer of a parameter: its numbered block (``h.3`` of ``h.3.attn.weight``), or else the module it is of."""
    block = re.match(r"(?:.*?\.)??\d+(?=\.)", name)
    return block[0] if block else name.rpartition(".")[0]


def deal(names: Iterable[str], fragments: int) -> list[int]:
    """The fragment of each parameter: layers are dealt in turn. Raises ``ValueError`` for fewer layers than that."""
    names = list(names)
    order = {one: number for number, one in enumerate(dict.fromkeys(map(layer, names)))}
    require(
        len(order) >= fragments,
        f"fragments={fragments}, and the model has {len(order)} layer(s): give no more fragments than layers",
    )
    return [order[layer(name)] % fragments for name in names]
