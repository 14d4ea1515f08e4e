from own import BATCH, LR, ROUNDS, Net, parts

import thinwire as tw

result = tw.simulate(tw.FedAvg(tw.LocalSGD(LR, batch=BATCH)), Net, parts(), ROUNDS)
print("bytes:", result.bytes_up, result.bytes_down)
