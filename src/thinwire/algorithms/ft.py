"""FT: the model that was trained together, fine-tuned by each client on its own examples.

Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage, "Federated Evaluation of On-device Personalization", 2019,
arXiv:1910.10252. It is the baseline "FT" of later papers.

Differences from the paper: fine-tuning is part of the evaluation, whichever round that is in, and always of the newest
model. The paper fine-tunes once, after the last round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..key import Key
from ..local import Local
from ..params import Params
from ..ranges import AboveZero
from ..task import Task
from .around import Around
from .own import Adapting


@dataclass(frozen=True)
class FT(Around):
    """Any method; a client's own model is the one it would have there, trained ``epochs`` more on its own examples.

    Nothing else is trained or sent: rounds and bytes are those of ``inner``. A client's own model is made when it is
    evaluated or asked for (``client_tests``, ``result.personal(client)``), at the cost of its training. It is trained
    as the inner method's ``local`` says, for ``epochs``, without a pull (``prox``).

    Raises ``ValueError`` for ``epochs`` that are not positive.
    """

    paper = "Wang et al., 2019, arXiv:1910.10252"
    personal_models = True

    epochs: AboveZero = 1.0

    def adapt(self, x: Params, task: Task, key: Key) -> Adapting:
        x = yield from self.inner.adapt(x, task, key)
        tuned = yield Local(x, replace(self.local, epochs=self.epochs, steps=None, prox=0.0, keep=False))
        return tuned.x
