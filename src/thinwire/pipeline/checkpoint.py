"""The state of a part as a checkpoint has it, and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from ..ddp.frozen import freeze, thaw
from ..errors import WireError, require
from ..wire import State
from .memory import copy_state, in_order, is_channels_last
from .stage import Kept, Stage


def stage_state(stage: Stage, pending: Sequence[Sequence[Any]] = ()) -> dict[str, State]:
    """All that the next operation depends on, as copies. ``pending`` are messages back that arrived and wait."""
    state = {
        "part": stage.part,
        "replica": stage.replica,
        "steps": stage.steps,
        "first": stage.first,
        "given": stage.given,
        "owed": stage.owed,
        "most": stage.most,
        "module": stage.module.state_dict(),
        "optimizer": stage.optimizer.state_dict(),
        "optimizer_name": type(stage.optimizer).__name__,
        # Of a batch whose other micro-batches go back later.
        "grads": {n: p.grad for n, p in stage.trained.items() if p.grad is not None},
        "queue": [[k.batch, k.micro, k.x, k.y, k.version] for k in stage.queue],
        "shares": [k.share for k in stage.queue],
        "queue_channels_last": [is_channels_last(k.x) for k in stage.queue],
        "versions": [[v, {n: p.detach() for n, p in w.items()}] for v, w in stage.versions.items()],
        "losses": [[b, [float(loss) for loss in each]] for b, each in stage.losses.items()],
        **stage.auxiliary.state(),
        "worker": None if stage.worker is None else freeze(stage.worker.memory),
        "sent": [[e, h] for e, h in stage.messages.sent.held.items()],
        "received": [[e, h] for e, h in stage.messages.received.held.items()],
        "pending": [list(message) for message in pending],
        **({} if stage.watch is None else {"watch": stage.watch.state()}),
    }
    return {name: copy_state(value) for name, value in state.items()}


@torch.no_grad()
def load_stage(stage: Stage, state: dict[str, Any]) -> list[Any]:
    """Go on from what :func:`stage_state` gave; returns the messages that wait. Raises ``WireError`` for another's."""
    try:
        mine, theirs = stage.module.state_dict(), state["module"]
        fits = mine.keys() == theirs.keys() and all(mine[n].shape == theirs[n].shape for n in mine)
        require(fits, f"its part {stage.part} has other parameters")
        own, name = type(stage.optimizer).__name__, state.get("optimizer_name", "another optimiser")
        groups, others = (each.get("param_groups", []) for each in (stage.optimizer.state_dict(), state["optimizer"]))
        fits = name in (own, "another optimiser") and [set(g) for g in groups] == [set(g) for g in others]
        require(fits, f"part {stage.part} of it was trained with {name}, in its groups, and here it is {own}")
        state = copy_state(state)
        for name, value in mine.items():
            value.copy_(state["module"][name])
        stage.optimizer.load_state_dict(state["optimizer"])
        for name, p in stage.trained.items():
            p.grad = torch.empty_like(p).copy_(state["grads"][name]) if name in state["grads"] else None
        for name in ("steps", "first", "given", "owed", "most"):
            setattr(stage, name, state[name])
        # In the order in memory that the parameters have: sums over another order have other bits.
        stage.versions = {
            v: {n: torch.empty_like(stage.trained[n]).copy_(p).requires_grad_() for n, p in w.items()}
            for v, w in state["versions"]
        }
        stage.losses = {
            b: [torch.tensor(x, dtype=torch.float32, device="cpu") for x in each] for b, each in state["losses"]
        }
        if stage.worker is not None:
            stage.worker.memory = thaw(state["worker"], stage.worker.memory)
        stage.auxiliary.load(state)
        for store, held in ((stage.messages.sent, state["sent"]), (stage.messages.received, state["received"])):
            store.held.clear()
            store.held.update((e, h) for e, h in held)
        stage.queue, lasts = deque(), state.get("queue_channels_last", [])
        shares = state.get("shares") or [1 / stage.schedule.pieces] * len(state["queue"])
        for (batch, micro, x, y, version), last, own in zip_longest(state["queue"], lasts, shares):
            x, y = in_order(x.to(stage.device), last), None if y is None else y.to(stage.device)
            kept = Kept(batch, micro, x, y, None, version, own)
            if version is not None:
                stage.graph(kept, still=True)
            stage.queue.append(kept)
        if stage.watch is not None:
            stage.watch.load(state.get("watch"), len(stage.queue))
        return list(state["pending"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise WireError(f"this is the state of another training, or of another version ({error})") from error
