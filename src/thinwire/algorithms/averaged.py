"""A served model beside the trained one: the average of the models of late.

Averages of the last iterates of stochastic gradient descent: Polyak, Juditsky, SIAM Journal on Control and
Optimization, 1992; with weights that fall by a factor a step, as used in deep learning since Szegedy et al., CVPR 2016,
arXiv:1512.00567, section 8.

Differences from the papers: the average is taken once a round, of the server's model. The first rounds weigh as if
there had been no others, so the model that training began with has no part in it. Norm statistics are not averaged:
those of the trained model go with the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..key import Key
from ..params import Params
from ..ranges import BelowOne
from ..wire import State
from .around import Around
from .base import Algorithm, Message, Start


class Server(NamedTuple):
    """What the server keeps."""

    inner: State
    average: Params
    rounds: int  # that are in it


@dataclass(frozen=True)
class Averaged(Around):
    """Around any method: the server also keeps the average of its models, that of a round ago with weight ``decay``.

    x̄ <- x̄ + (x - x̄) (1 - decay) / (1 - decay^t) after round t. Training, messages and bytes are those of ``inner``. The
    average is evaluated on the test set beside the trained model (``served_accuracy``, ``served_loss`` and so on in a
    round's record) and saved beside it (``served.safetensors``, ``result.served``). Of a method whose clients have
    models of their own it is the average of the model that all share. The server keeps one vector more.

    Raises ``ValueError`` for a decay outside 0 to 1.
    """

    nests = ("server",)
    paper = "Polyak, Juditsky, SIAM J. Control Optim., 1992"

    decay: BelowOne = 0.8

    def init_with(self, x: Params, buffers: Params | None, num_clients: int, key: Key) -> Start:
        start = self.inner.init_with(x, buffers, num_clients, key)
        return start._replace(server=Server(start.server, self.inner.model(start.server), 0))

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        inner, rounds = self.inner.server(server.inner, view, mean, key), server.rounds + 1
        x = self.inner.model(inner)
        if rounds == 1 or not self.decay:
            return Server(inner, x, rounds)
        share = (1 - self.decay) / (1 - self.decay**rounds)
        return Server(inner, server.average + (x - server.average) * share, rounds)

    def bypass(self, layers: Sequence[str]) -> Algorithm:
        return super().bypass(layers)  # the average is none of what the inner server keeps

    def served(self, server: State) -> Params | None:
        average: Params = server.average
        return average
