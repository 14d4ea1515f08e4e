from dataclasses import dataclass

from own import BATCH, LR, MOST, ROUNDS, Net, parts, show

import thinwire as tw


@dataclass(frozen=True)
class Clipped(tw.FedAvg):
    most: float = MOST

    def client(self, view, state, task, key):
        reply, state = yield from super().client(view, state, task, key)
        return reply._replace(update=reply.update * (self.most / max(reply.update.norm(), self.most))), state


show("Clipped", tw.simulate(Clipped(tw.LocalSGD(LR, batch=BATCH)), Net, parts(), ROUNDS).model)
