"""Ranks that come and go: what a rank takes from one process group to the next.

A process group never changes its members: where some are lost, leave or join there is a new one, with a new
``DistributedDataParallel`` and a new handle. All members of the new group call ``regroup``: who was there before brings
the old handle, a newcomer nothing. One mechanism is enough for all three, since the loop says where a movement is:
what a rank did is in x, or it is owed.

K ranks that owe e_k owe x the mean of e_k. Among K' ranks each debt counts 1 / K', so it becomes K' / K times as long.
Then y = x - mean e is where it was when ranks join, and when ranks leave that have handed on what they owe. A rank that
is lost takes e_k / K along, and its round.

An exchange that came to no end on one rank may have come to its end on another. The others' messages were needed for
that, so what such a rank is behind, its message, was received, and it owes the rest alone.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..errors import CombinationError, OutOfSync, require
from ..params import Params
from ..wire import dumps, loads, restore
from .blocks import blocks
from .clock import Clock
from .collectives import AllReduce, Broadcast, Gather, Request, Traffic
from .exchange import Rank, place, take_in
from .feedback import Feedback
from .handle import STAMP, Compressed
from .rounds import Rounds
from .vector import Vector

Ask = Generator[Request | Broadcast, Any, None]


class Elastic(Compressed):
    """A handle of the loop with a residual, whose ranks may come and go."""

    method: Feedback
    rank: Rank
    vector: Vector
    rounds: Rounds
    clock: Clock | None  # of rounds that last so many seconds
    aside: Tensor | None  # w, while the parameters rest within a round
    anew: bool = False  # that is where the round begins anew, since a script has loaded another x
    restored: bool = False  # that is of a state, and x may be loaded after it
    cut: bool  # whether the last exchange came to no end

    @abstractmethod
    def rest(self) -> None:
        """The parameters hold x - at_rest * e, and belong to the script."""

    @abstractmethod
    def _move_to(self, lam: float) -> None:
        """They hold x - lam * e."""

    def _take_written(self, at: float) -> None:
        """Take in what a script has written to parameters that held x - at * e, and the vector has now: it is x.

        Written within a round it begins that anew, and what the rank did of it is dropped: it belongs to another x.
        """
        rank, flat, written = self.rank, self.vector.flat, False
        if self.aside is not None and not self.restored:
            written = not torch.equal(flat, rank.x - at * rank.e if at else rank.x)
        take_in(rank, at, flat)
        if written:
            self.aside, self.anew = torch.sub(rank.x, rank.e, alpha=rank.lam), True

    @property
    def _within(self) -> bool:
        """Whether the rank is within a round, with a model of its own."""
        return bool(self.clock.made) if self.clock else not self.rounds.rest(self.step)

    @property
    def exchanges(self) -> int:
        return self.clock.exchanges if self.clock else self.rounds.number(self.step)

    def state_dict(self) -> dict[str, Any]:
        clock = {"clock": [self.clock.exchanges, self.clock.made]} if self.clock else {}
        return super().state_dict() | clock

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        super().load_state_dict(state)
        if self.clock:
            self.clock.set(*(state if isinstance(state, dict) else state[0])["clock"])

    def clip_grad_norm_(self, max_norm: float) -> float:
        if self.clock:
            raise CombinationError(
                f"{self.name}: ranks make different numbers of steps, and would wait for one another here: take "
                "torch.nn.utils.clip_grad_norm_, which clips each rank's own"
            )
        return super().clip_grad_norm_(max_norm)

    @property
    def _ends(self) -> str:
        """Where a round has ended, in words."""
        return "right after an exchange" if self.clock else f"after a multiple of {self.rounds.steps} steps"

    @torch.no_grad()
    def regroup(self, before: Compressed | None = None, moments: bool = True) -> None:
        self.alive()
        self._check_elastic()
        self._apart(self._regroup(before, moments), "regrouping")

    @torch.no_grad()
    def disband(self, leaving: bool = False) -> None:
        self.alive()
        self._check_elastic()
        require(
            not self._within,
            f"{self.name}: this is step {self.step}, within a round, where each rank has a model of its own: let ranks "
            f"leave where one has ended, {self._ends}",
        )
        self.rest()
        self._apart(self._hand_on(leaving), "handing on what leaving ranks owe")
        self.remove()

    def _check_elastic(self) -> None:
        """``CombinationError`` for methods of which something is always on its way, for shards, and by the clock."""
        if self.clock:
            raise CombinationError(
                f"{self.name}: ranks come and go by the number of steps that they have made, which differs here: give "
                "steps= a number"
            )
        if self.method.fragments > 1 or self.method.delay:
            raise CombinationError(
                f"{self.name}: with fragments or a delay a rank is always within a round, or something on its way: for "
                "ranks that come and go take fragments=1, delay=0"
            )
        if self.vector.sharded:
            raise CombinationError(
                f"{self.name}: a model cut up by fully_shard belongs to the processes of its mesh, which end with the "
                "group: start the script anew, and give load_state_dict() the states of all ranks"
            )

    def _apart(self, talk: Ask, where: str) -> None:
        """Run a generator over the process group. What this rank gives counts as ``setup``."""
        group, traffic = copy.copy(self.group), Traffic()
        group.traffic = traffic
        group.drive(talk, f"step {self.step} of {self.name}, {where}")
        self.ledger.setup += traffic.bytes

    # -- a new group ------------------------------------------------------------

    def _regroup(self, before: Compressed | None, moments: bool) -> Ask:
        fault = self._fault(before)
        old = before if isinstance(before, Elastic) and not fault else None
        mine = [fault, None if old is None else [old.step, old.cut], moments]
        everyone = [loads(data) for data in (yield Gather(dumps(mine)))]
        newest, source = self._agree(everyone)
        wanted = any(who is None and asked for _, who, asked in everyone)
        shared = old._common_state(wanted) if self.group.rank == source and old is not None else b""
        x, v, lam, seen, states = _loads((yield Broadcast(shared, source)))
        rank, self.step = self.rank, newest
        rank.x.copy_(x)
        rank.v, rank.lam = restore(v, rank.v), lam
        if rank.seen is not None:
            rank.seen.copy_(seen)
        if old is not None:
            self._bring(old)
        elif moments:
            for optimizer, state in zip(self.optimizers, states, strict=True):
                optimizer.load_state_dict(state)
        if rank.total is not None:
            estimates = rank.e.neg()
            yield AllReduce(estimates)
            rank.total.copy_(estimates)
        if self._within and self.aside is None:
            self.aside = torch.sub(rank.x, rank.e, alpha=rank.lam)
        self._move_to(self.method.at_rest)

    def _fault(self, before: Compressed | None) -> str:
        """What is wrong with what this rank brings: all are told, so that none waits for another."""
        if self.step or bool(self.rank.e.any()):
            return "this handle has trained already: compress the model anew, for the new group, and regroup() at once"
        if before is None:
            return ""
        for name, theirs, own in (("method", before.complete, self.complete), ("seed", before.seed, self.seed)):
            if theirs != own:
                return f"what it brings is of another {name}: {theirs}, not {own}"
        if not isinstance(before, Elastic) or before.vector.layout.spans != self.vector.layout.spans:
            return "what it brings is of another model"
        return "" if before.removed else "call remove() of the old handle before the model is compressed anew"

    def _agree(self, everyone: list[Any]) -> tuple[int, int]:
        """The newest step, and the first rank that has it. Raises on all ranks where they cannot go on together."""
        for number, (fault, _, _) in enumerate(everyone):
            require(not fault, f"regroup, rank {number}: {fault}")
        steps = {number: who[0] for number, (_, who, _) in enumerate(everyone) if who is not None}
        require(
            bool(steps),
            "regroup: every rank is a newcomer, and nobody has a state. compress() alone begins a training, and "
            "load_state_dict() goes on from a file",
        )
        require(
            0 in steps,
            "regroup: rank 0 is a newcomer, and DistributedDataParallel has given its buffers to all: let newcomers "
            "have the higher ranks",
        )
        newest = max(steps.values())
        source = min(number for number, step in steps.items() if step == newest)
        for number, step in steps.items():
            exchanges = self.rounds.number(newest) - self.rounds.number(step)
            if exchanges > 1 or (exchanges and not everyone[number][1][1]):
                raise OutOfSync(
                    f"regroup: rank {number} comes from step {step}, and rank {source} from step {newest}: it was away "
                    "for an exchange. Let it join as a newcomer, regroup()"
                )
        return newest, source

    def _common_state(self, wanted: bool) -> bytes:
        """What is the same on every rank; with it, if a newcomer wants them, the states of this rank's optimisers."""
        states = []
        for optimizer in self.optimizers if wanted else ():
            state = tree_map(lambda one: one.detach().cpu() if isinstance(one, Tensor) else one, optimizer.state_dict())
            for group in state["param_groups"]:
                group.pop(STAMP, None)
            states.append(state)
        rank = self.rank
        seen = None if rank.seen is None else rank.seen.cpu()
        return dumps([rank.x.cpu(), rank.v, rank.lam, seen, states])

    def _bring(self, old: Elastic) -> None:
        """What is this rank's own, from the group before."""
        method, rank, was = self.method, self.rank, old.rank
        behind = self.rounds.number(old.step) < self.rounds.number(self.step)
        rank.sender = was.sender
        if method.owes:
            rank.e.copy_(was.e)
        if method.owes and not method.estimate:
            if behind:
                rank.sender = old._take_off(rank.e)
            elif old.aside is not None:  # what it did of a round that was cut short is owed
                begin = torch.empty_like(was.x)
                place(was, was.lam, begin)
                rank.e.add_(begin.sub_(old.aside))
            if method.count == "all":
                rank.e.mul_(self.group.size / was.ranks)
        elif old.aside is not None and not behind:
            self.aside = old.aside.clone()
        for one in fields(Traffic):
            setattr(self.ledger, one.name, getattr(self.ledger, one.name) + getattr(old.ledger, one.name))

    def _take_off(self, p: Tensor) -> Any:
        """Subtract from p the message that others have had of it. Returns what the link's sender keeps after it."""
        method, layout = self.method, self.vector.layout
        key = self.key()._replace(round=self.rounds.number(self.step))
        kept = [(a, b, p[a:b].clone()) for a, b in self.vector.still]
        for a, b, _ in kept:
            p[a:b] = 0
        sender = self.rank.sender
        if method.link is None:
            for a, b in blocks(method, layout, key):
                p[a:b] = 0
        else:
            _, seen, sender = method.link.send(Params(layout, p.cpu()), sender, key)
            p.sub_(seen.flat.to(p.device))
        for a, b, part in kept:
            p[a:b] = part
        return sender

    # -- a group that ends --------------------------------------------------------

    def _hand_on(self, leaving: bool) -> Ask:
        """What those who leave owe is owed, in equal shares, by those who stay."""
        everyone = [loads(data) for data in (yield Gather(dumps([self.step, leaving])))]
        for number, (step, _) in enumerate(everyone):
            if step != everyone[0][0]:
                raise OutOfSync(f"disband: rank {number} is at step {step}, and rank 0 at step {everyone[0][0]}")
        rank, before = self.rank, self.group.size
        staying = before - sum(gone for _, gone in everyone)
        if staying in (0, before):
            return
        if self.method.owes and not self.method.estimate:
            shares = rank.e.clone() if leaving else torch.zeros_like(rank.e)
            yield AllReduce(shares)  # sum of e / K, of those who leave
            if leaving:
                rank.e.zero_()
            elif self.method.count == "all":
                rank.e.mul_(staying / before).add_(shares)
            else:
                rank.e.add_(shares, alpha=before / staying)
            self._move_to(self.method.at_rest)
        rank.ranks = staying


def _loads(data: bytes) -> Any:
    return loads(data, max_depth=100, max_values=None, finite=False)
