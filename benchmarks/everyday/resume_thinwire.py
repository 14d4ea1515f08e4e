from own import BATCH, LR, ROUNDS, Net, parts, show

import thinwire as tw

method = tw.FedAvg(tw.LocalSGD(LR, batch=BATCH))
result = tw.simulate(method, Net, parts(), ROUNDS, out="run", checkpoint_every=1, resume=True,
                     on_round=lambda record: print("round", record["round"], flush=True))  # fmt: skip
show("FedAvg", result.model)
