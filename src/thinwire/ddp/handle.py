"""What :func:`~thinwire.ddp.compress` returns: the part that all methods have in common."""

from __future__ import annotations

import copy
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ..config import complete
from ..errors import CombinationError, require
from ..key import Key
from ..version import code_version
from ..wire import VERSION, dumps
from .collectives import Group, Talk, Traffic, gather, mean
from .feedback import Method
from .handshake import compare
from .tie import Tie

FORMAT = 2  # of a state_dict
STAMP = "thinwire"  # what an optimiser's first parameter group has in a state_dict: step, rank, ranks
OF_ALL = {"method", "seed", "ranks", "rank", "step", "ledger"}  # what a state_dict has of every method
Named = list[tuple[str, nn.Parameter]]
NOT_ELASTIC = "{}() is for DEF and its kin, and for local steps: over a Hook compress the new group's model anew"


class Compressed(ABC):
    """A model and its optimisers whose ranks send what a method sends."""

    local: bool  # whether each rank's optimiser has gradients, and so momentum, of its own

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        method: Method,
        named: Named,
        group: dist.ProcessGroup,
        seed: int,
        debug: bool,
    ) -> None:
        self.group = Group(group, Traffic())
        self.model, self.optimizers, self.seed, self.debug = model, tuple(optimizers), seed, debug
        self.name, self.complete = repr(method), complete(method)
        self.step, self.removed = 0, False
        self.saved: set[int] = set()  # steps at which the states were saved that were loaded since the last step
        # The module that holds the parameters, for whoever asks for its state.
        self.inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._same_everywhere([self.complete, seed, debug, [[n, list(p.shape)] for n, p in named]])
        self.hooks: list[RemovableHandle] = []
        self.trained = {p: number for number, (_, p) in enumerate(named)}
        self.named = named
        self.own = {p for p in self.inner.parameters() if p.requires_grad and p not in self.trained}  # DDP ignores them
        self.inside: Optimizer | None = None  # the one that is making its step
        self.outer: FrameType | None = None  # torch's call of that step
        self.deeper = 0  # calls of step() in it that have not ended
        self.others: WeakSet[Optimizer] = WeakSet()  # that make steps too, and not of what is trained here

    @property
    def ledger(self) -> Traffic:
        """Bytes that this rank gave to collectives. With a delay they are waited for that are on their way."""
        return self.group.total()

    @property
    def exchanges(self) -> int:
        """How many exchanges there were (of each fragment)."""
        return self.step

    @property
    def lam(self) -> float | None:
        """lambda as it is used now, of methods that take gradients at x - lambda * e; None: of others."""
        return None

    @property
    def lam_star(self) -> float | None:
        """The best lambda as DEF measures it, between 1 / ranks and 1; None: of others, and before the first step."""
        return None

    @abstractmethod
    def bucket(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """What becomes of a bucket of gradients at the end of the backward pass."""

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model that the method is judged by, until the block ends: of DEF y = x - mean e. Everyone enters.

        One dense all-reduce where that is not x. Buffers, running statistics of norm layers among them, stay as
        they are.
        """
        self.alive()
        yield

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all ranks' gradients by one factor: the root mean square of their norms is then at most ``max_norm``.

        Returns that root mean square before. One all-reduce of one number; for methods whose gradients are local
        until the step: what torch's function clips is then each rank's own. ``ValueError`` for one below 0, or NaN.
        """
        grads = [p.grad for p in self.parameters_of_optimizers() if p.grad is not None]
        require(max_norm >= 0, f"clip_grad_norm_({max_norm}): max_norm must be at least 0")
        dense = [g.coalesce().values() if g.is_sparse else g for g in grads]
        own: Any = torch.nn.utils.get_total_norm(dense)
        own = own.full_tensor() if hasattr(own, "full_tensor") else own
        square = own.float().square().reshape(1)
        if not self.removed:  # else DistributedDataParallel has averaged gradients
            self.drive(mean(square), "clipping")
        norm = float(square.sqrt())
        if norm > max_norm:
            torch._foreach_mul_(grads, max_norm / norm)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """A rank's part of a checkpoint: with the model's and the optimiser's, all that a resume needs.

        Plain tensors and numbers. Residuals, momentum and so the optimiser's state are each rank's own: save them on
        every rank.
        """
        return {
            "format": FORMAT,
            "method": self.complete,
            "seed": self.seed,
            "ranks": self.group.size,
            "rank": self.group.rank,
            "step": self.step,
            "ledger": copy.copy(vars(self.ledger)),
            **self.memory_of_method(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on where a state was taken, bit for bit, once the model's and the optimiser's are loaded too.

        For another number of ranks give the list of all old ranks' states: everyone goes on with their mean residual,
        which leaves y where it was. (Momentum is the optimiser's: each rank takes that of any old rank.) Raises
        ``ValueError`` for the state of another method, model or number of ranks, and changes nothing then.
        """
        self.alive()
        states = list(state) if isinstance(state, Sequence) else [state]
        require(bool(states), "load_state_dict: an empty list of states")
        for one in states:
            known = isinstance(one, dict) and one.get("format") == FORMAT and one.keys() >= OF_ALL
            require(known, "this is no state of thinwire.ddp, or of another version: give what state_dict() returned")
            for name, mine in (("method", self.complete), ("seed", self.seed)):
                require(one[name] == mine, f"this state is of another {name}: {one[name]}, not {mine}")
        first = states[0]
        if isinstance(state, dict):
            require(
                first["ranks"] == self.group.size,
                f"this state is of rank {first['rank']} of {first['ranks']}, and now there are {self.group.size}. "
                f"Residuals are each rank's own: give load_state_dict the list of all {first['ranks']} states",
            )
            require(
                first["rank"] == self.group.rank,
                f"this state is of rank {first['rank']}, and this is rank {self.group.rank}: every rank loads its own",
            )
            self.take(first)
            vars(self.ledger).update(first["ledger"])
        else:
            ranks, steps = {one["ranks"] for one in states}, {one.get("clock", [one["step"]])[0] for one in states}
            whole = ranks == {len(states)} and sorted(one["rank"] for one in states) == list(range(len(states)))
            require(whole and len(steps) == 1, "these are not the states of all ranks at one step")
            self.merge(states)
        self.step, self.saved = first["step"], {one["step"] for one in states}

    @abstractmethod
    def memory_of_method(self) -> dict[str, Any]:
        """What a method keeps between steps."""

    @abstractmethod
    def take(self, state: dict[str, Any]) -> None:
        """Go on with what :meth:`memory_of_method` gave."""

    @abstractmethod
    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on with what all of another number of ranks kept."""

    def check_merge(self, stateless: bool, states: Sequence[dict[str, Any]]) -> None:
        """``ValueError`` for a method whose link keeps a state on every rank."""
        require(
            stateless,
            f"{self.name} keeps a link's state on every rank, which has no meaning for {self.group.size} ranks where "
            f"there were {len(states)}: compress anew without a state",
        )

    def regroup(self, before: Compressed | None = None, moments: bool = True) -> None:
        """Go on in a new process group, of which some members may be new. All call it, before the first step.

        ``before`` is what ``compress`` returned to this rank for the group before, after its ``remove()`` or
        :meth:`disband`; None for a newcomer. x, the outer optimiser's state, lambda and the step, ``step``, are those
        of the first rank that has made the most steps, 4 bytes a parameter for each of x and the state. A newcomer owes
        nothing, and its optimisers begin with that rank's state, or with ``moments=False`` as they are. What others
        owe becomes K' / K times as long for K' ranks in place of K, which leaves y = x - mean e where it was, but for
        what lost ranks owed (with ``count="senders"`` it stays as it is). What a rank did of a round that was cut short
        is owed. A method that owes nothing goes on from the rank's own model.

        Bytes are counted as ``setup``. All ranks raise ``ValueError`` where nobody has a state, rank 0 is a newcomer,
        or what a rank brings does not fit, ``OutOfSync`` for a rank that was away for an exchange, and
        ``CombinationError`` with ``fragments``, a ``delay``, a ``Hook`` or ``fully_shard``.
        """
        raise CombinationError(NOT_ELASTIC.format("regroup"))

    def disband(self, leaving: bool = False) -> None:
        """Before some ranks leave: all call it, at the end of a round, and those who leave say so.

        What those owe is owed by those who stay from then on, in equal shares: y stays where it was. That is one dense
        all-reduce, counted as ``setup``, and none where nothing is owed. Then it is :meth:`remove`: those who stay go
        on in a new group, by :meth:`regroup`. Raises ``ValueError`` within a round, and ``CombinationError`` as
        :meth:`regroup` does.
        """
        raise CombinationError(NOT_ELASTIC.format("disband"))

    def remove(self) -> None:
        """Give model and optimisers back; DistributedDataParallel averages gradients again. What is not sent is lost.

        Once is enough; again does nothing.
        """
        self.removed, self.model = True, self.inner
        vars(self.group).pop("group", None)  # whose connections end when nobody holds it
        for hook in self.hooks:
            hook.remove()

    def alive(self) -> None:
        """Raise ``ValueError`` after :meth:`remove`."""
        require(not self.removed, f"{self.name} was removed from this model: compress it anew")

    def begin(self) -> None:
        """Everything is agreed and in its place."""
        self.hooks.append(self.model.register_forward_pre_hook(Tie(self._even), prepend=True))
        if self.heedful:
            ALIVE.add(self)
            _watch_steps()

    @property
    def heedful(self) -> bool:
        """Whether nobody but the given optimisers may step what is trained."""
        return True

    def on_copy(self, memo: dict[int, Any]) -> None:
        """The model is being copied; whatever the copy needs is done here."""
        return

    def on_pickle(self) -> None:
        """The model is being pickled."""
        return

    def _even(self, module: nn.Module, inputs: Any) -> None:
        even(module)

    def enter(self, optimizer: Optimizer) -> bool:
        """A call of ``step`` begins. Whether it is a step, and not a part of one: a class's may call its base's."""
        outer = frame = _step_frame()
        empty = False  # torch.distributed.checkpoint steps at a rate of 0, for an optimiser's state to be there
        while frame is not None and frame is not self.outer:
            empty |= frame.f_code.co_name == "_init_optim_state"
            frame = frame.f_back
        if empty or frame is not None:  # else the call before has raised, or there was none
            self.deeper += 1
            return False
        self.inside, self.outer, self.deeper = optimizer, outer, 0
        return True

    def leave_step(self) -> bool:
        """A call of ``step`` ends. Whether with it the step does."""
        if self.deeper:
            self.deeper -= 1
            return False
        self.inside = self.outer = None
        return True

    def beside(self, optimizer: Optimizer) -> None:
        """Another optimiser is about to step: ``ValueError`` if it steps what is trained here, without a word."""
        ours = optimizer in self.optimizers or self.inside is not None or self.removed
        if ours or optimizer in self.others:
            return
        for p in parameters(optimizer):
            require(
                p not in self.trained,
                f"{type(optimizer).__name__} is about to step parameters of the compressed model, and was not given to "
                f"compress(): {self.name} has to know when a gradient is used. Give it the optimiser whose step() is "
                "called, or all of them in a list",
            )
        self.others.add(optimizer)

    def check_trained(self, optimizer: Optimizer) -> None:
        """``ValueError`` for a parameter that is trained by now, and that DistributedDataParallel does not know of."""
        for p in parameters(optimizer):
            if p.requires_grad and p not in self.trained and p not in self.own:
                name = next((n for n, q in self.inner.named_parameters() if q is p), "a parameter of no name")
                raise ValueError(
                    f"{name!r} was frozen, or not there, when the model was wrapped and compressed, and is trained "
                    "now: its gradient would stay each rank's own. remove(), wrap the model in "
                    "DistributedDataParallel anew, and compress it anew"
                )

    def parameters_of_optimizers(self) -> list[nn.Parameter]:
        """The optimisers' parameters."""
        return [p for optimizer in self.optimizers for p in parameters(optimizer)]

    def key(self) -> Key:
        """Of this rank's next step."""
        return Key(self.seed, self.step, self.group.rank, "ddp")

    def drive(self, talk: Talk[Any], where: str) -> Any:
        """Run a generator over the process group."""
        return self.group.drive(talk, f"step {self.step} of {self.name}, {where}")

    def stamp(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """An optimiser's state_dict says at which step it was taken, and by which rank."""
        if state["param_groups"]:
            state["param_groups"][0][STAMP] = torch.tensor([self.step, self.group.rank, self.group.size], device="cpu")

    def remember(self) -> None:
        """Warn where a script loaded its optimiser's state and not this one's, whichever is loaded first."""
        for optimizer in self.optimizers:
            stamp = optimizer.param_groups[0].pop(STAMP, None)
            if stamp is None:
                continue
            (step, rank, ranks), name = stamp.tolist(), type(optimizer).__name__
            if step not in self.saved | {self.step}:
                warnings.warn(
                    f"{name}'s state was saved after step {step} of a compressed training, and what compress() gave "
                    f"is at step {self.step}: what was not sent yet is lost, and training goes on to other numbers. "
                    'Save torch.save(c.state_dict(), f"thinwire-{rank}.pt") on every rank, and where the optimiser '
                    'is loaded add c.load_state_dict(torch.load(f"thinwire-{rank}.pt"))',
                    stacklevel=2,
                )
            elif self.local and ranks == self.group.size and rank != self.group.rank:
                warnings.warn(
                    f"rank {self.group.rank} goes on with the {name} of rank {rank}: under {self.name} momentum is "
                    "each rank's own. Save torch.save(optimizer.state_dict(), "
                    'f"optimizer-{rank}.pt") on every rank, and let each load its own',
                    stacklevel=2,
                )

    def count(self) -> None:
        """A step was made."""
        self.step, self.saved = self.step + 1, set()
        self.group.traffic.steps += 1

    def _same_everywhere(self, mine: list[Any]) -> None:
        """Raise on every rank unless all want the same."""
        library = f"thinwire {code_version().partition('+')[0]}, messages {VERSION}"
        answers = self.drive(gather(dumps([library, *mine])), "comparing what is to be compressed")
        self.ledger.setup, self.ledger.gathered, self.ledger.calls = self.ledger.gathered, 0, 0
        compare(answers)


def even(model: nn.Module) -> None:
    """``CombinationError`` inside torch's ``Join``, whose ranks without inputs answer DDP's messages and not ours."""
    config = getattr(model, "_join_config", None)
    if config is not None and config.enable:
        raise CombinationError(
            "uneven inputs under Join (model.join()) are not for a compressed model: a rank that has run out would "
            "keep what it owes, and the others would wait for it. Give all ranks as many batches (drop_last=True, "
            "DistributedSampler), or train without compress()"
        )


def _step_frame() -> FrameType | None:
    """Torch's innermost call of an optimiser's step."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _OPTIMIZERS:
        frame = frame.f_back
    return frame


_OPTIMIZERS = Optimizer.profile_hook_step.__code__.co_filename
ALIVE: WeakSet[Compressed] = WeakSet()  # those that have to know of every step of what they train


@cache
def _watch_steps() -> None:
    register_optimizer_step_pre_hook(_about_to_step)


def _about_to_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for compressed in ALIVE:
        compressed.beside(optimizer)


def parameters(optimizer: Optimizer) -> list[Any]:
    """Those of all its groups: parameters, or tensors where it was given such."""
    return [p for group in optimizer.param_groups for p in group["params"]]
