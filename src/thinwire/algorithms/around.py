"""A method around another one: what it does not write is the inner one's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..key import Key
from ..local import Local
from ..params import Params
from ..passing import Inner, pass_on
from .base import Algorithm, Client, Start


@dataclass(frozen=True)
@pass_on(Algorithm, assemble=("prepare",), init_with=("init",), weigh=("weights", "local"))
class Around(Algorithm):
    """An algorithm around another one, ``inner``: what it does not write is the inner one's, given what it was given.

    So a wrapper that keeps the inner one's states and messages writes only what it changes. One that holds them in
    states of its own, as LUAR does, says in ``nests`` which these are: what it does not write is given the inner state.
    It writes every method that returns one of them, or a message of its own, and of ``init`` and ``init_with`` one.
    ``assemble``, ``init_with``, ``weigh`` and ``whole`` are made of ``prepare``, ``init``, ``weights``, ``local`` and
    ``see``, where it writes these.
    """

    inner: Algorithm

    nests: ClassVar[tuple[str, ...]] = ()
    """Its states that hold the inner method's in their field ``inner``: "server", "view"."""

    up: ClassVar[Any] = Inner()  # type: ignore[misc]
    down: ClassVar[Any] = Inner()  # type: ignore[misc]
    weights: ClassVar[Any] = Inner()  # type: ignore[misc]
    buffers: ClassVar[Any] = Inner()  # type: ignore[misc]

    broadcast: ClassVar[Any]  # which have no default
    client: ClassVar[Any]
    server: ClassVar[Any]

    bypass = Algorithm.bypass  # a wrapper around what that of ``inner`` returns

    @property
    def whole(self) -> bool:
        return type(self).see is Around.see and self.inner.whole

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        if type(self).init_with is Around.init_with:
            return self.inner.init(x, num_clients, key)
        return self.init_with(x, None, num_clients, key)


def adapts(algorithm: Algorithm) -> bool:
    """Whether a client's own model is made of its examples when it is asked for (``adapt``), and lies nowhere."""
    algorithm = _writer(algorithm, "adapt")
    return isinstance(algorithm, Around) or algorithm.adapting


def predicts(algorithm: Algorithm) -> bool:
    """Whether a prediction is another than that of the model that all share (``predict``)."""
    return type(_writer(algorithm, "predict")).predict is not Algorithm.predict


def _writer(algorithm: Algorithm, name: str) -> Algorithm:
    """The method whose half of this name counts: the first that writes it, from the outside, or the inmost one."""
    while isinstance(algorithm, Around) and getattr(type(algorithm), name) is getattr(Around, name):
        algorithm = algorithm.inner
    return algorithm


def asking(work: Client, change: Callable[[Local], Local]) -> Client:
    """The client's round ``work``, whose requests for training are passed on as ``change`` makes them.

    In a wrapper's ``client``: ``reply, state = yield from asking(self.inner.client(...), change)``.
    """
    try:
        request = next(work)
        while True:
            request = work.send((yield change(request)))
    except StopIteration as done:
        reply, state = done.value
        return reply, state
