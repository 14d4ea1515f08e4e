"""The numbers that the law needs: seconds and bytes of a model's parts, measured, and what a schedule makes of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..errors import require
from ..train.precision import without_cache
from ..train.threads import one_thread
from . import law
from .cost import now, repeats
from .frames import LEAST
from .losses import Loss, mean_loss, scale
from .schedule import DNI, DSP, GPipe, Schedule
from .simulation import Simulation
from .stored import AQSGD

__all__ = ["Profile", "costs", "least", "measure", "memory", "messages", "seconds"]

Bytes = tuple[tuple[int, ...], tuple[int, ...]]
"""Of a batch's messages, by boundary: activations of part k to k + 1, and error gradients of part k + 1 to k."""


@dataclass(frozen=True)
class Profile:
    """A model's parts, measured with one batch. Each field but ``examples`` has a number a part.

    - ``examples``: of the batch.
    - ``forward``, ``backward``: seconds with one thread of torch's. A replay is not in them.
    - ``inputs``: bytes of the part's input.
    - ``graphs``: bytes that a forward pass keeps for the backward pass besides its input and the parameters.
    - ``weights``: bytes of the parameters that are trained.
    """

    examples: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    inputs: tuple[int, ...]
    graphs: tuple[int, ...]
    weights: tuple[int, ...]


def measure(stages: Sequence[nn.Module], x: Tensor, y: Tensor, loss: Loss = mean_loss) -> Profile:
    """Take a batch forward and back through each part, three times or more; the shortest times count.

    ``x`` and ``y`` are as for ``step``, ``loss`` as for :func:`~thinwire.pipeline.pipeline`. Modules, statistics and
    random numbers are left as they are.
    """
    ahead, back, inputs, graphs, weights = [], [], [], [], []
    with one_thread(), torch.random.fork_rng(devices=[]):
        for part, stage in enumerate(copy.deepcopy(list(stages)), 1):
            last = part == len(stages)
            finish = partial(_loss, loss, y.to(_device(stage))) if last else _same
            x = x.to(_device(stage)).detach()
            if part > 1:
                x.requires_grad_()
            times: list[tuple[float, float]] = []
            for _ in repeats():
                began = now(x.device)
                with without_cache(x.device):
                    out = finish(stage(x.clone()))  # a copy, which may be written over
                between = now(x.device)
                torch.autograd.backward(out.sum() if last else out, None if last else torch.ones_like(out))
                times.append((between - began, now(x.device) - between))
            ahead.append(min(first for first, _ in times))
            back.append(min(second for _, second in times))
            inputs.append(x.numel() * x.element_size())
            graphs.append(_graph_bytes(stage, x, finish))
            weights.append(sum(p.numel() * p.element_size() for p in stage.parameters() if p.requires_grad))
            x = out.detach()
    return Profile(len(y), tuple(ahead), tuple(back), tuple(inputs), tuple(graphs), tuple(weights))


def _device(stage: nn.Module) -> torch.device:
    return next(stage.parameters()).device


def _same(out: Tensor) -> Tensor:
    return out


def _loss(loss: Loss, targets: Tensor, out: Tensor) -> Tensor:
    return scale(loss, out, targets, 1.0, 1)


def _graph_bytes(stage: nn.Module, x: Tensor, finish: Callable[[Tensor], Tensor]) -> int:
    """Bytes that a graph keeps, each memory counted once."""
    own = {t.untyped_storage().data_ptr() for t in (x, *stage.parameters(), *stage.buffers())}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with without_cache(x.device), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = finish(stage(x.clone()))
    del out
    return sum(sizes.values())


def messages(stages: Sequence[nn.Module], schedule: Schedule, x: Tensor, y: Tensor, loss: Loss = mean_loss) -> Bytes:
    """The bytes of a batch's messages under a schedule's links, from messages that are encoded: a batch is trained.

    The modules are left as they are. ``AQSGD`` sends whole examples in a first epoch, and this is of those after it.
    """
    way = GPipe(schedule.pieces, activations=schedule.activations, gradients=schedule.gradients)
    training = Simulation(copy.deepcopy(list(stages)), lambda p: torch.optim.SGD(p, 0.0), way, loss=loss)
    each, before = [training.ledger[part] for part in range(len(stages))], [(0, 0)] * len(stages)
    for _ in range(2):  # the first message of a direction announces those that follow
        before = [(own.forward_sent, own.backward_sent) for own in each]
        training.step(x, y, examples=range(len(y)))
    sent = [(own.forward_sent - a, own.backward_sent - b) for own, (a, b) in zip(each, before, strict=True)]
    return tuple(a for a, _ in sent[:-1]), tuple(b for _, b in sent[1:])


def costs(
    schedule: Schedule, forward: Sequence[float], backward: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds forward and back of each part under a schedule: a replay is a forward pass more on the way back.

    The last part hands nothing on, so where it replays it computes once. DNI's auxiliary networks count as nothing.
    """
    parts = len(forward)
    late = [schedule.keeps == "input" and delay > 0 for delay in schedule.delays(parts)]
    ahead = tuple(0.0 if late[k] and k == parts - 1 else f for k, f in enumerate(forward))
    return ahead, tuple(b + (f if again else 0.0) for f, b, again in zip(forward, backward, late, strict=True))


def _links(size: Sequence[float], pieces: int, mbit: float, latency: float) -> tuple[list[float], list[float]]:
    """Seconds of a batch's messages in one direction, by boundary, and those of them in which the link is busy."""
    busy = [each * 8 / (mbit * 1e6) for each in size]
    return [latency * pieces + each for each in busy], busy


def seconds(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    sizes: tuple[Sequence[float], Sequence[float]],
    mbit: float,
    latency: float,
) -> float:
    """Seconds a batch by the law, where all parts and links are equally fast at all times.

    - ``forward``, ``backward``: seconds of each part, without a replay, as :class:`Profile` has them.
    - ``sizes``: bytes of a batch's messages by boundary, those ahead and those back.
    - ``mbit``, ``latency``: of each link and direction, in Mbit/s and in seconds one way.

    Schedules with micro-batches, or a barrier, are what :func:`~thinwire.pipeline.law.events` finds.
    """
    ahead, back = (_links(size, schedule.pieces, mbit, latency) for size in sizes)
    own, busy = costs(schedule, forward, backward), (ahead[1], back[1])
    if schedule.pieces == 1 and not schedule.barrier and not isinstance(schedule, DNI):
        return law.tick(schedule.delays(len(forward)), *own, ahead[0], back[0], busy)
    return law.events(schedule, *own, ahead[0], back[0], 40, busy)


def least(
    forward: Sequence[float],
    backward: Sequence[float],
    sizes: tuple[Sequence[float], Sequence[float]],
    mbit: float,
    latency: float,
) -> DSP:
    """The DSP with the least delays that hide the links; arguments as of :func:`seconds`."""
    parts = len(forward)
    ahead, back = (_links(size, 1, mbit, latency) for size in sizes)
    # All parts but the last replay where they are late.
    replayed = [f + b if k < parts - 1 else b for k, (f, b) in enumerate(zip(forward, backward, strict=True))]
    return law.plan(forward, replayed, ahead[0], back[0], (ahead[1], back[1]))


def memory(schedule: Schedule, profile: Profile, sizes: tuple[Sequence[int], Sequence[int]]) -> tuple[int, ...]:
    """Bytes that each part keeps at most of forward passes, stashed parameters and frames.

    Of forward passes they are as many as its queue can hold. ``sizes`` are bytes of a batch's messages by boundary, as
    :func:`messages` has them. The model itself, its gradients, the optimiser's state and what ``AQSGD`` remembers are
    not in it. Messages of a link whose bytes depend on the numbers may be longer than the one that was measured.
    """
    parts, pieces, kept = len(profile.inputs), schedule.pieces, []
    for part, delay in enumerate(schedule.delays(parts)):
        held, inputs, graph = delay + 1, profile.inputs[part], profile.graphs[part]
        replayed = schedule.keeps == "input" and delay > 0  # one graph at a time
        size = held * inputs + graph if replayed else held * (inputs + graph) // pieces
        if schedule.lookback:
            size += 2 * profile.weights[part]
        elif schedule.keeps == "weights" and delay:
            size += held * profile.weights[part]
        if isinstance(schedule, DNI) and part < parts - 1:
            size += schedule.lag * profile.inputs[part + 1]
        size += sum(_frames(schedule, profile, sizes, boundary) for boundary in (part - 1, part))
        kept.append(size)
    return tuple(kept)


def _frames(schedule: Schedule, profile: Profile, sizes: tuple[Sequence[int], Sequence[int]], boundary: int) -> int:
    """Bytes of the frames, at one end of a boundary, that are sent or waited for, and of an announcement.

    In each direction they are those by which a part can be ahead of its neighbour's answers, and one more.
    """
    parts, pieces = len(profile.inputs), schedule.pieces
    if not 0 <= boundary < parts - 1:
        return 0
    ahead, back = (each[boundary] // pieces for each in sizes)
    if isinstance(schedule.activations, AQSGD):  # whole examples follow a frame that is for differences
        ahead += profile.inputs[boundary + 1] // pieces
    return (schedule.slack(boundary, parts) + 1) * (ahead + back) + LEAST


def cut_into(batch: int, schedule: Schedule) -> None:
    """Raise ``ValueError`` where a batch is no whole number of micro-batches of equal size."""
    require(
        batch % schedule.pieces == 0,
        f"{schedule!r} cuts a batch into {schedule.pieces} micro-batches of equal size, and {batch} examples are not: "
        f"take a multiple of {schedule.pieces}",
    )
