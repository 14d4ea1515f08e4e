"""What a method sends to one client alone, as bytes and back: a personal model, the weights of a mixture."""

from __future__ import annotations

from typing import NamedTuple

from ..algorithms.base import Algorithm, Start
from ..key import Key
from ..links.base import floats
from ..wire import State, clone, dumps, restore
from .messages import Form, Message, present, which_layers


def private(algorithm: Algorithm, start: Start) -> Form | None:
    """The form of what a method sends to one client alone; None where it sends nothing."""
    return None if start.alone is None else Form.of(start.alone, algorithm.personal, "personal")


class Letter(NamedTuple):
    """What one client alone is sent: bytes, the papers' figure, and the sending ends once it has been taken."""

    blob: bytes
    floats: float
    tx: State


def write_letter(form: Form, msg: Message, tx: State, key: Key, anew: bool, first: Message | None = None) -> Letter:
    """The server's half: a message for one client, whose link's sending ends are ``tx``.

    A pair that is opened ``anew`` holds nothing in common. Where links have a memory it is then sent everything, as it
    is, and both ends open at that: :func:`read_letter`. Where the start is known, ``first`` is what the client would
    have been sent before round 1. A message that is still the same has no bytes then.
    """
    values = form.values(msg)
    if anew and first is not None and dumps(values) == dumps(form.values(first)):
        return Letter(b"", 0.0, form.open(form.fill(values))[0])
    if anew and form.memory:
        packet = [
            [which_layers(value.layout, leaf.blank.layout), value.flat if value.names else None] if leaf.link else value
            for leaf, value in zip(form.leaves, values, strict=True)
        ]
        count = floats([part[1] if leaf.link else part for leaf, part in zip(form.leaves, packet, strict=True)])
        return Letter(dumps(packet), count, form.open(form.fill(values))[0])
    body, _, tx = form.send(values, tx, key)
    return Letter(dumps(body), form.floats(body), tx)


def read_letter(
    form: Form, blob: bytes, rx: State, key: Key, anew: bool, first: Message | None = None
) -> tuple[Message, State]:
    """A client's half: the message, and the next receiving ends. Raises ``WireError``."""
    if anew and first is not None and not blob:
        return first, form.open(form.fill(form.values(first)))[1]
    if anew and form.memory:
        values = []
        for leaf, packet in zip(form.leaves, form.read(blob), strict=True):
            if leaf.link is None:
                values.append(restore(packet, leaf.blank))
            else:
                layout, flat = present(packet, leaf)
                values.append(restore(flat, layout.zeros()) if layout.names else leaf.blank.only(()))
        return form.build(values)[0], form.open(form.fill(values))[1]
    values, rx = form.recv(form.read(blob), rx, key)
    return form.build([clone(value) for value in values])[0], clone(rx)
