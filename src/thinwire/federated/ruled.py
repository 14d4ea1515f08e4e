"""The replies of a round under a rule that is no mean (``aggregate=``), and who is far off again and again.

Of every reply each field that is averaged or summed is held, as it was decoded, with zeros for layers that it lacks.
When all are there the rule makes one vector of them. A reply is far off in a round where one of its fields is further
from that than :data:`~thinwire.robust.base.FAR` times the lower median distance of all replies from it. Of fewer than
half hostile replies that median is at most an honest reply's distance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..algorithms.base import Algorithm
from ..errors import CombinationError, require
from ..params import Params
from ..robust import Aggregator, Mean
from ..robust.base import far_off, reduce
from ..robust.rows import Rows
from .messages import Form, Leaf

Centres = dict[str, Tensor]
"""By field, what a rule that remembers made of the round before: a vector."""
Strikes = dict[int, int]
"""Of clients, in how many rounds one after another their replies were far off or refused."""

AGAIN = 3  # such rounds, from which on a client is named


def rule_of(aggregate: Aggregator | None) -> Aggregator | None:
    """The rule, where it is not the mean of packets."""
    return None if isinstance(aggregate, Mean) else aggregate


class Ruled:
    """The replies of a round, and what a rule makes of them. ``centres`` are those of the round before."""

    def __init__(self, form: Form, rule: Aggregator, centres: Mapping[str, Tensor]) -> None:
        self.form, self.rule, self.before = form, rule, centres
        self.clients, self.weights = list[int](), list[float]()
        self.rows: dict[int, Rows] = {}
        self.names: dict[int, set[str]] = {}  # of the layers that any reply has
        self.centres: Centres = {}
        self.far: set[int] = set()  # once the values are made

    def rules(self, leaf: Leaf) -> bool:
        """Whether the rule is applied to a field."""
        return leaf.kind != "each" and not (leaf.statistics and self.rule.changes)

    @property
    def enough(self) -> bool:
        """Whether there are as many replies as the rule needs."""
        return len(self.clients) >= self.rule.least

    def add(self, i: int, value: Any) -> None:
        """One reply's value of the field of number ``i``."""
        blank = self.form.leaves[i].blank
        if isinstance(value, Params):
            self.names.setdefault(i, set()).update(value.names)
            row = value.flat if value.layout == blank.layout else blank.zeros().replace(value).flat
        else:
            row = torch.as_tensor(value, dtype=torch.float64, device="cpu").reshape(-1)
        if i not in self.rows:
            self.rows[i] = Rows(row.numel(), row.dtype)
        self.rows[i].add(row)

    def enter(self, client: int, weight: float) -> None:
        """The reply whose fields were added is this client's."""
        self.clients.append(client)
        self.weights.append(weight)

    def value(self, i: int) -> Any:
        """What the rule makes of a field: of one that is summed as many times that as there are replies."""
        leaf, rows = self.form.leaves[i], self.rows[i]
        summed = leaf.kind == "sum"
        weights = torch.ones(len(rows)) if summed else torch.tensor(self.weights, dtype=torch.float64, device="cpu")
        made, distances = reduce(self.rule, rows, weights, self.before.get(leaf.name))
        if self.rule.remembers:
            self.centres[leaf.name] = made
        if not leaf.statistics:
            self.far |= {self.clients[row] for row in far_off(distances)}
        total = made * len(rows) if summed else made
        if isinstance(leaf.blank, Params):
            return Params(leaf.blank.layout, total).only(self.names[i])
        if isinstance(leaf.blank, Tensor):
            return total.to(torch.float32).reshape(leaf.blank.shape)
        return float(total)


class Suspects:
    """Who is far off again and again. With ``most`` who was so in so many rounds on end is left out.

    Never as many as half of the clients are left out, nor so many that fewer are left than the ``rule`` needs.
    """

    def __init__(self, most: int | None, clients: int, rule: Aggregator | None = None) -> None:
        self.most, self.room = most, min((clients - 1) // 2, clients - (1 if rule is None else rule.least))
        self.strikes, self.expelled = Strikes(), list[int]()
        self.refused = set[int]()  # clients of whose replies one was refused in this round

    def judge(self, ruled: Ruled | None, replied: Iterable[int]) -> dict[str, Any]:
        """End a round in which these clients replied: what its record has of it."""
        far, few = set[int]() if ruled is None else ruled.far, ruled is not None and not ruled.enough
        self.strikes = follow(self.strikes, () if few else replied, far | self.refused)  # of too few none is judged
        self.expelled, self.refused = expel(self.expelled, self.strikes, self.most, self.room), set()
        again = [[client, times] for client, times in self.strikes.items() if times >= AGAIN]
        return {
            **({} if ruled is None else {"far": sorted(far)}),
            **({"too_few": len(ruled.clients)} if ruled is not None and few else {}),
            **({"again": again} if again else {}),
            **({"expelled": list(self.expelled)} if self.expelled else {}),
        }

    def state(self) -> dict[str, Any]:
        """For a checkpoint: nothing where nobody is suspected."""
        return {"suspects": [self.strikes, self.expelled]} if self.strikes or self.expelled else {}

    def load(self, packet: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.strikes, self.expelled = packet.get("suspects") or ({}, [])


def follow(strikes: Mapping[int, int], replied: Iterable[int], bad: Iterable[int]) -> Strikes:
    """The strikes after a round in which these clients replied, and the replies of some were far off or refused."""
    after = {client: strikes.get(client, 0) + 1 for client in bad}
    return dict(sorted(({c: n for c, n in strikes.items() if c not in set(replied)} | after).items()))


def expel(expelled: Sequence[int], strikes: Mapping[int, int], most: int | None, room: int) -> list[int]:
    """Who is left out from now on: those with ``most`` strikes, the worst first, and ``room`` of them at most."""
    there = list(expelled)
    for client in sorted(strikes, key=lambda client: -strikes[client]) if most else ():
        if most and strikes[client] >= most and client not in there and len(there) < room:
            there.append(client)
    return sorted(there)


def check_rule(rule: Aggregator, algorithm: Algorithm, form: Form, replies: int) -> None:
    """Raise :class:`~thinwire.errors.CombinationError` where a rule would have no meaning for what a method sends."""
    for leaf in form.leaves:
        if leaf.kind == "each" and leaf.blank is not None:
            raise CombinationError(
                f"aggregate={rule!r} is about replies that are averaged, and of {algorithm!r} the server takes each "
                f"client's {leaf.name} by itself: leave aggregate out"
            )
        if rule.changes and not leaf.statistics and (leaf.exact or not algorithm.scalable):
            raise CombinationError(
                f"aggregate={rule!r} shortens changes, and {leaf.name} in the replies of {algorithm!r} is a value as "
                f"it is: give a rule that does not shorten, such as Median()"
            )
    require(
        replies >= rule.least,
        f"aggregate={rule!r} needs {rule.least} replies a round, and {replies} of the clients take part: let more take "
        f"part, or give another rule",
    )
