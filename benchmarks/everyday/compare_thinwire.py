from own import BATCH, LR, MU, ROUNDS, Net, parts, show

import thinwire as tw

for method in (tw.FedAvg(tw.LocalSGD(LR, batch=BATCH)), tw.FedProx(tw.LocalSGD(LR, batch=BATCH), mu=MU)):
    result = tw.simulate(method, Net, parts(), ROUNDS)
    show(type(method).__name__, result.model)
