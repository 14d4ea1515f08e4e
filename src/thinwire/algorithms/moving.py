"""What methods share whose server sends the model once, and from then on what each round has changed of it.

A client that was away is sent the changes that it missed, or the model, whichever is fewer bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from ..key import Key
from ..params import Params
from ..wire import State
from .base import Algorithm, Message


class Broadcast(NamedTuple):
    """What everyone is sent: at first the model, then what the last round changed."""

    x: Params
    change: Params
    round: int


class View(NamedTuple):
    """What a client holds."""

    x: Params
    seed: int
    round: int


@dataclass(frozen=True)
class Moving(Algorithm):
    """A subclass keeps ``x``, ``change`` and ``round`` in its server's state, and says what a change makes of x."""

    @abstractmethod
    def after(self, x: Params, change: Params, seed: int, round: int) -> Params:
        """The model after the round with this number, counted from 0, which made this change."""

    def broadcast(self, server: State, view: State) -> Message:
        if server.round == 0:
            return Broadcast(server.x, server.change.only(()), 0)
        return Broadcast(server.x.only(()), server.change, server.round)

    def see(self, view: State, msg: Message, key: Key) -> State:
        if msg.x.names:
            return View(msg.x, view.seed, msg.round)
        if msg.round == view.round:
            return view  # the same again: nobody answered in the round before
        return View(self.after(view.x, msg.change, view.seed, msg.round - 1), view.seed, msg.round)

    def supersedes(self, older: Message, newer: Message) -> bool:
        same: bool = older.round == newer.round  # each of the others moves the model by a step
        return same
