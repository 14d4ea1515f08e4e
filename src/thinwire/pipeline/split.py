"""A model as parts, one after the other, of about equal cost."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from ..ddp.collectives import Group, Traffic, gather
from ..errors import OutOfSync, RankLost, require
from ..ranges import SLOWEST
from ..train.given import refuse_shared_memory
from ..wire import dumps, loads
from .base import Schedule
from .cost import Cost, Named, measure_modules

__all__ = ["split"]

NEAR = 1.05  # times the least cost: what is no slower, as far as one can measure
EVEN = 1.5  # times the least cost of the costliest part: what it may cost for the sake of a link


Pair = tuple[float, float]
Looked = tuple[list[Named], list[bool], list[Cost]]
"""A chain, which of its modules have parameters to train, and what each of them takes."""


def split(
    model: nn.Module | Sequence[Any],
    parts: int,
    sample: Any = None,
    costs: Sequence[float] | None = None,
    at: Sequence[int] | None = None,
    schedule: Schedule | None = None,
    mbit: float | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: float = 300.0,
) -> list[nn.Sequential]:
    """Cut a model into ``parts`` chains of modules, the costliest of which costs as little as can be.

    ``model`` is an ``nn.Sequential`` (within which others are opened), a list of modules, or a module with a method
    ``chain()`` that returns such a list. A list may have a module several times. ``sample`` is a batch: inputs, or a
    tuple that begins with them. It goes forward and back through each module, and the seconds that takes are the
    module's cost: the shortest of three measurements, and of up to twenty where these take less than a second in all.
    With ``schedule``, a part that replays its forward passes, as all but the last do under DSP, is charged for them
    twice. With ``mbit``, what a link between parts carries each way in Mbit/s, the seconds in which a link is busy with
    what a part hands on, as whole floats, are a cost beside those of parts: a schedule that hides its links is as fast
    as the slowest of both. No part then takes more than half as long again as the costliest has to, so that each
    machine has a share of the work and of the memory, be the link ever so slow. Of all cuts that cost at most a
    twentieth more than the least, the one that hands on the fewest bytes is taken.

    ``costs`` are given costs in place of measured ones, one a module of the chain, in any unit: so the result is the
    same everywhere. ``at`` are the places themselves: the number, in the chain, of the module that each part but the
    first begins with. The modules themselves are in the parts, not copies, and a part's ``state_dict()`` has the names
    of the model's.

    Under ``torch.distributed`` all ranks of ``group``, by default all there are, call it with a sample at the same
    place, within ``timeout`` seconds. They use what the first of them measured.

    Raises ``ValueError`` for a model that is no chain, for fewer modules with parameters than parts, for a parameter
    that lies in two parts, for places that leave a part without parameters, and for a sample that does not go through.
    With a sample, :class:`OutOfSync` on every rank where one has another model, and :class:`RankLost` where another
    rank has raised, or is missing.
    """
    require(timeout > 0, f"split(timeout={timeout}): seconds, above 0")
    require(mbit is None or mbit >= SLOWEST, f"split(mbit={mbit}): Mbit/s of a link, at least {SLOWEST}")
    require(
        mbit is None or (costs is None and at is None),
        f"split(mbit={mbit}): bytes are measured with a sample; leave it out beside costs= or at=",
    )
    if costs is None and at is None:
        chain, trained, measured = _agree(lambda: _look_at(model, parts, schedule, sample), group, timeout)
        late = [] if schedule is None else replays(schedule, parts)
        both, again = [one.forward + one.backward for one in measured], [one.forward for one in measured]
        cuts = balance(both, trained, parts, again, late, [one.handed for one in measured], 8e-6 / (mbit or math.inf))
    else:
        chain, trained = _check_chain(model, parts, schedule)
        cuts = _cuts_at(chain, trained, parts, at) if at is not None else _cuts_by_cost(chain, trained, parts, costs)
    made = [_join(chain[a:b]) for a, b in zip([0, *cuts], [*cuts, len(chain)], strict=True)]
    apart(made)
    return made


def places(stages: Sequence[nn.Module]) -> tuple[int, ...]:
    """Where :func:`split` has cut a chain into ``stages``: what it takes as ``at``."""
    lengths = [len(_open((), stage)) for stage in stages]
    return tuple(itertools.accumulate(lengths[:-1]))


def replays(schedule: Schedule, parts: int) -> list[bool]:
    """Which parts compute a forward pass twice: those that are behind and have to hand something on."""
    schedule.check(parts)
    return [schedule.keeps == "input" and delay > 0 for delay in schedule.delays(parts)[:-1]] + [False]


def _check_chain(model: Any, parts: int, schedule: Schedule | None) -> tuple[list[Named], list[bool]]:
    """The chain of a model, and which of its modules have parameters to train."""
    require(parts >= 1, f"split(parts={parts}): at least 1")
    if schedule is not None:
        schedule.check(parts)
    chain = _chain(model)
    trained = [any(p.requires_grad for p in module.parameters()) for _, module in chain]
    require(
        sum(trained) >= parts,
        f"split(parts={parts}): the chain has {sum(trained)} modules with parameters to train, and a part without any "
        "would have nothing to do: take fewer parts, or cut the modules up",
    )
    return chain, trained


def _cuts_by_cost(
    chain: Sequence[Named], trained: Sequence[bool], parts: int, costs: Sequence[float] | None
) -> list[int]:
    assert costs is not None
    require(
        len(costs) == len(chain),
        f"split(costs=...): {len(costs)} costs for {len(chain)} modules: {', '.join('.'.join(n) for n, _ in chain)}",
    )
    require(all(cost >= 0 for cost in costs), "split(costs=...): a cost is below 0")
    return balance([float(cost) for cost in costs], trained, parts)


def _cuts_at(chain: Sequence[Named], trained: Sequence[bool], parts: int, at: Sequence[int]) -> list[int]:
    require(len(at) == parts - 1, f"split(at={list(at)}): {parts} parts begin at {parts - 1} places after the first")
    ends = [0, *at, len(chain)]
    for part, (begin, end) in enumerate(itertools.pairwise(ends)):
        fits = 0 <= begin < end <= len(chain) and any(trained[begin:end])
        require(
            fits,
            f"split(at={list(at)}): part {part} would be the modules {begin} to {end - 1} of {len(chain)}, and each "
            "part needs some, with parameters to train among them",
        )
    return list(at)


def balance(
    costs: Sequence[float],
    trained: Sequence[bool],
    parts: int,
    again: Sequence[float] = (),
    late: Sequence[bool] = (),
    handed: Sequence[int] = (),
    byte: float = 0.0,
) -> list[int]:
    """Where to cut: the first module of each part after the first.

    The largest sum of a part is as small as can be where each part has a module that is ``trained``. A module costs
    ``again`` more in a part that is ``late``. With ``handed``, the bytes that a module gives, the cut is the one that
    hands on the fewest of those whose largest sum is at most ``NEAR`` times as much. Where each of these bytes costs
    ``byte``, a link is what is as small as can be beside the parts, among cuts whose largest sum is at most ``EVEN``
    times as much. Of several such cuts the one with the smallest sum, and then the one with the earliest places.
    """
    each = [[c + a for c, a in zip(costs, again, strict=True)] if again and slow else costs for slow in late]
    sums = [[0.0, *itertools.accumulate(own)] for own in each or [costs] * parts]
    n, some = len(costs), [0, *itertools.accumulate(trained)]

    def cost(part: int, i: int, j: int) -> float:
        """The cost of a part from module i up to j."""
        return sums[part][j] - sums[part][i] if some[j] > some[i] else math.inf

    def handed_on(j: int) -> int:
        """The bytes that a part up to module j hands on."""
        return handed[j - 1] if j < n else 0

    def within(most: float, weigh: Callable[[int, float], Pair]) -> tuple[Pair, list[int]]:
        """The least cut of those whose parts cost so much at most, by what ``weigh`` makes of bytes and cost."""

        def own(part: int, i: int, j: int) -> Pair:
            took = cost(part, i, j)
            return weigh(handed_on(j) if handed else 0, took) if took <= most else (math.inf, math.inf)

        return _least(n, parts, own)

    (_, least), cuts = within(math.inf, lambda _, took: (0.0, took))
    if not handed:
        return cuts
    most, slowest = NEAR * least, math.inf
    if byte:
        most = EVEN * least
        slowest = NEAR * within(most, lambda size, took: (0.0, max(took, byte * size)))[0][1]
    return within(most, lambda size, took: (size if max(took, byte * size) <= slowest else math.inf, took))[1]


def _least(n: int, parts: int, cost: Callable[[int, int, int], Pair]) -> tuple[Pair, list[int]]:
    """The least sum of first costs over the parts and, where that is alike, largest second one; and where to cut."""
    never = (math.inf, math.inf)
    ahead = [[never] * (n + 1) for _ in range(parts + 1)]  # ahead[k][i]: of the last k parts, from module i on
    ahead[0][n] = (0.0, 0.0)
    place = [[n] * (n + 1) for _ in range(parts + 1)]
    for k in range(1, parts + 1):
        for i in range(n - 1, -1, -1):
            for j in range(i + 1, n + 1):
                own, rest = cost(parts - k, i, j), ahead[k - 1][j]
                both = own[0] + rest[0], max(own[1], rest[1])
                if both < ahead[k][i]:
                    ahead[k][i], place[k][i] = both, j
    cuts, at = [], 0
    for k in range(parts, 1, -1):
        at = place[k][at]
        cuts.append(at)
    return ahead[parts][0], cuts


def _chain(model: Any) -> list[Named]:
    """The modules of a chain, by their names within the model."""
    chain: Any = getattr(model, "chain", None)
    if not isinstance(model, nn.Module) and isinstance(model, Sequence):
        modules = list(model)
    elif callable(chain):
        modules = list(chain())
    else:
        modules = []
    if modules:
        strange = next((m for m in modules if not isinstance(m, nn.Module)), None)
        require(strange is None, f"split: {type(strange).__name__} in the list is no module; wrap it in one")
        # What chain() returns has its name in the model, and a number where it is not the model's own.
        own = {id(m): n.split(".") for n, m in model.named_modules() if n} if isinstance(model, nn.Module) else {}
        named = [
            (tuple(own.get(id(module), [f"chain{i}" if own else str(i)])), module) for i, module in enumerate(modules)
        ]
        return [one for name, module in named for one in _open(name, module)]
    if isinstance(model, nn.ModuleList) or _called_in_turn(model):
        model = nn.Sequential(OrderedDict(model.named_children()))  # its modules, under its names
    if type(model) is not nn.Sequential:
        raise ValueError(
            f"split: {type(model).__name__} is no chain, whose modules each take what the one before gives: make it an "
            "nn.Sequential or a list of modules, or give it a method chain() that returns one"
        )
    return _open((), model)


def _called_in_turn(model: Any) -> bool:
    """True for a subclass of nn.Sequential that is called as one, by its modules in turn."""
    plain = isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward
    return plain and type(model) is not nn.Sequential and not (model._forward_hooks or model._forward_pre_hooks)


class Chained(nn.Sequential):
    """Modules that are called in an ``order`` which their names do not have, some of them several times."""

    def __init__(self, named: OrderedDict[str, nn.Module], order: Sequence[str]) -> None:
        super().__init__(named)
        self.order = tuple(order)

    def forward(self, x: Any) -> Any:
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x


def _open(name: tuple[str, ...], module: nn.Module) -> list[Named]:
    if type(module) is Chained:
        return [((*name, *inner.split(".")), module.get_submodule(inner)) for inner in module.order]
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks or not len(module):
        return [(name, module)]
    return [
        one for inner, child in module._modules.items() if child is not None for one in _open((*name, inner), child)
    ]


def _join(chain: Sequence[Named]) -> nn.Sequential:
    """The modules in Sequentials that are named as in the model, and called in the chain's order."""
    if chain and not chain[0][0]:  # one module alone
        return nn.Sequential(chain[0][1])
    named = _tree(chain)
    joined = nn.Sequential(named)
    same = [module for _, module in _open((), joined)] == [module for _, module in chain]
    return joined if same else Chained(named, [".".join(name) for name, _ in chain])


def _tree(chain: Sequence[Named]) -> OrderedDict[str, nn.Module]:
    inside: OrderedDict[str, list[Named]] = OrderedDict()
    for name, module in chain:
        inside.setdefault(name[0], []).append((name[1:], module))
    # A module that is in the chain itself has those within it.
    own = {name: next((module for rest, module in below if not rest), None) for name, below in inside.items()}
    return OrderedDict((name, own[name] or nn.Sequential(_tree(below))) for name, below in inside.items())


def apart(parts: Sequence[nn.Module]) -> None:
    """``ValueError`` for a parameter or buffer that two parts share."""
    owner: dict[int, tuple[int, str]] = {}
    for number, part in enumerate(parts):
        for name, tensor in [*part.named_parameters(), *part.named_buffers()]:
            first = owner.setdefault(id(tensor), (number, name))
            require(
                first[0] == number,
                f"{name!r} of part {number} is {first[1]!r} of part {first[0]} too, and machines share no memory: "
                "untie them, or cut so that both lie in one part (split(..., costs=) or at=)",
            )
    refuse_shared_memory(nn.ModuleList(parts))


def _look_at(model: Any, parts: int, schedule: Schedule | None, sample: Any) -> Looked:
    """A model that this rank can cut, with what its modules take."""
    chain, trained = _check_chain(model, parts, schedule)
    require(sample is not None, "split: give sample=, a batch whose way through the model is measured, or costs=")
    return chain, trained, measure_modules(chain, sample)


def _agree(look: Callable[[], Looked], group: dist.ProcessGroup | None, timeout: float) -> Looked:
    """The chain that this rank has from ``look``, and the first rank's costs: parts have to be the same everywhere.

    An error of one rank is one of every rank.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return look()
    failed: Exception | None = None
    try:
        chain, trained, costs = look()
        names = [[".".join(name), type(module).__name__] for name, module in chain]
        mine: list[Any] = [names, trained, [[*cost] for cost in costs]]
    except Exception as error:  # said to the others before it is raised
        failed, mine = error, [f"{type(error).__name__}: {error}"]
    group = group or dist.group.WORLD
    assert group is not None
    everyone = Group(group, Traffic(), timeout).drive(gather(dumps(mine)), "cutting a model")
    if failed is not None:
        raise failed
    ranks = [loads(data, max_values=None) for data in everyone]
    for rank, theirs in enumerate(ranks):
        if len(theirs) == 1:
            raise RankLost(f"split: rank {rank} has no parts: {theirs[0]}")
    for rank, theirs in enumerate(ranks):
        if theirs[:2] != ranks[0][:2]:
            sizes = f"{len(theirs[0])} modules, not {len(ranks[0][0])}"
            said = sizes if len(theirs[0]) != len(ranks[0][0]) else "other names, types, or parameters to train"
            raise OutOfSync(f"split: rank {rank} has another model than rank 0: {said}")
    return chain, trained, [Cost(*each) for each in ranks[0][2]]
