"""What a server expects of an honest client: how large an answer is, how much it weighs, and that it can be used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ..federated.envelope import SMALL
from ..federated.mean import Mean
from ..federated.messages import Form, noise_like
from ..key import Key
from ..wire import count, length

FEW = 64  # values of an answer beyond twice those of noise

log = logging.getLogger("thinwire")


def honest_sizes(form: Form, key: Key) -> tuple[int, int]:
    """Bytes, and values, that no honest answer has: twice those of dense noise, and some for what noise has not."""
    blank = [leaf.blank for leaf in form.leaves]
    noise = noise_like(blank, key.generator("noise"))
    bodies = [form.send(values, form.open()[0], key._replace(client=0))[0] for values in (blank, noise)]
    return 2 * max(length(noise), *map(length, bodies)) + 2 * SMALL, 2 * max(map(count, bodies)) + FEW


def warn_of_clipped(mean: Mean, round: int) -> None:
    """Log whose fields were longer than their bound."""
    for client, name, norm in mean.clipped:
        what = name if norm is None else f"a norm of {norm:.3g}"
        log.warning(
            "round %d: client %d sent %s; it counts as %g",
            round,
            client,
            what,
            mean.limit(name),
            extra={"client": client},
        )


def warn_of_weight(examples: Mapping[int, int], round: int) -> None:
    """Log a client among three or more that says to have more than half of all examples, by which replies weigh."""
    total = sum(examples.values())
    client = max(examples, key=lambda c: examples[c], default=-1)
    if len(examples) >= 3 and 2 * examples[client] > total:
        log.warning(
            "round %d: client %d says that it has %d of all %d examples: its reply has more than half of the "
            "weight; most_examples= bounds what is believed",
            *(round, client, examples[client], total),
        )


def find_usable(
    clients: list[int], attempt: Callable[[list[int]], object], refuse: Callable[[int, Exception], object]
) -> list[int]:
    """Those of the clients with whose answers an ``attempt`` succeeds. ``refuse`` is called for each of the others.

    Where all together will not do, each half is tried by itself, down to single clients: for one among n that is
    2 log2(n) steps of the server, over two answers of each client in all, and never more than 2 n steps.
    """
    try:
        attempt(clients)
    except Exception as error:
        if len(clients) > 1:
            middle = len(clients) // 2
            halves = clients[:middle], clients[middle:]
            return [client for half in halves for client in find_usable(half, attempt, refuse)]
        refuse(clients[0], error)
        return []
    return clients
