"""The hostile clients of a simulation: what they send in place of what an honest client would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import CombinationError, require
from ..key import Key
from ..params import Params
from ..robust import Attack
from ..robust.attack import Others
from ..task import Task
from ..wire import dumps, loads
from .messages import Form, Leaf


class Hostile(NamedTuple):
    """Who is hostile, what these do, and the form by which they send: with senders that may lie."""

    attack: Attack
    clients: frozenset[int]
    form: Form

    @staticmethod
    def of(attack: Attack, form: Form, clients: int, seed: int) -> Hostile:
        """Raises :class:`~thinwire.errors.CombinationError` where the attack means nothing for what clients send."""
        if not any(map(bendable, form.leaves)):
            raise CombinationError(f"attack={attack!r} bends fields of layers that are averaged, and replies have none")
        attack.check(leaf.link for leaf in form.leaves if leaf.link is not None)
        lying = [leaf if leaf.link is None else leaf._replace(link=attack.link(leaf.link)) for leaf in form.leaves]
        return Hostile(attack, attack.hostile(clients, seed), Form(form.blank, tuple(lying), form.where))

    def poison(self, tasks: Sequence[Task]) -> list[Task]:
        """What all clients train on. Raises ``ValueError`` where hostile ones have nothing to train on."""
        poisoned = [self.attack.poison(t, tasks) if i in self.clients else t for i, t in enumerate(tasks)]
        for client in sorted(self.clients):
            task = poisoned[client]
            fits = isinstance(task, Task) and len(task) > 0
            require(fits, f"{self.attack!r}.poison gave {type(task).__name__}: a Task with examples is expected")
        return poisoned

    def values(self, values: Sequence[Any], told: bytes, key: Key) -> list[Any]:
        """What a hostile client sends as its leaves, in place of these; ``told`` is what it knows of others."""
        known = unpack(self.form, told)
        triples = zip(self.form.leaves, values, known, strict=True)
        return [self._bend(leaf, value, others, key) for leaf, value, others in triples]

    def _bend(self, leaf: Leaf, value: Any, others: Others | None, key: Key) -> Any:
        if not bendable(leaf) or not value.names:
            return value
        if others is not None:
            mean, deviation = others.mean.only(value.names), others.deviation.only(value.names)
            others = others._replace(mean=mean, deviation=deviation)
        bent = self.attack.bend(value, others, key.at(f"up/{leaf.name}"))
        fits = isinstance(bent, Params) and bent.layout == value.layout and bent.flat.dtype == value.flat.dtype
        require(
            fits,
            f"{self.attack!r}.bend gave {type(bent).__name__} in place of {leaf.name}: Params of the same layers and "
            f"type are expected, made of what it is given",
        )
        return bent


def bendable(leaf: Leaf) -> bool:
    """Whether an attack may bend a field: one of layers that is averaged or summed, norm statistics aside."""
    return leaf.link is not None and leaf.kind != "each" and not leaf.statistics and bool(leaf.blank.names)


def tell(form: Form, replies: Iterable[Sequence[Any]], hostile: int) -> bytes:
    """What hostile clients know once the honest ones have sent these leaves: means and deviations, in one pass."""
    count, sums = 0, [None if not bendable(leaf) else [leaf.blank.zeros(), leaf.blank.zeros()] for leaf in form.leaves]
    for values in replies:
        count += 1
        for value, pair in zip(form.fill(values), sums, strict=True):
            if pair is not None:  # Welford's update
                apart = value - pair[0]
                pair[0] = pair[0] + apart / count
                pair[1] = pair[1] + apart * (value - pair[0])
    if not count:
        return b""
    moments = [None if pair is None else [pair[0].flat, (pair[1].flat / count).sqrt()] for pair in sums]
    return dumps([count, hostile, moments])


def unpack(form: Form, told: bytes) -> list[Others | None]:
    """What :func:`tell` said, for each leaf."""
    if not told:
        return [None] * len(form.leaves)
    count, hostile, moments = loads(told, max_values=None, finite=False)

    def of(leaf: Leaf, pair: list[Any] | None) -> Others | None:
        if pair is None:
            return None
        return Others(Params(leaf.blank.layout, pair[0]), Params(leaf.blank.layout, pair[1]), count, hostile)

    return list(map(of, form.leaves, moments))


def honest_first(
    jobs: Sequence[Any],
    hostile: frozenset[int],
    rounds: Callable[[Sequence[Any]], Iterator[Any]],
    tell: Callable[[dict[int, Any]], bytes],
) -> list[Any]:
    """The replies of jobs, in their order, where the hostile clients train after the others and are told of these."""
    own = [job for job in jobs if job.key.client in hostile]
    rest = [job for job in jobs if job.key.client not in hostile]
    replies = dict(zip([job.key.client for job in rest], rounds(rest), strict=True))
    told = tell(replies)
    late = rounds([job._replace(told=told) for job in own])
    replies |= dict(zip([job.key.client for job in own], late, strict=True))
    return [replies[job.key.client] for job in jobs]
