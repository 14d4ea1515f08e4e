import argparse

import nvflare.client as flare
import torch
from own import BATCH, LR, Net, parts

parser = argparse.ArgumentParser()
parser.add_argument("--mu", type=float, default=0.0)
parser.add_argument("--most", type=float, default=float("inf"))
asked = parser.parse_args()
flare.init()
x, y = parts()[int(flare.get_site_name().removeprefix("site-")) - 1]
net = Net()
while flare.is_running():
    model = flare.receive()
    net.load_state_dict({name: torch.as_tensor(value) for name, value in model.params.items()})
    first = [weight.detach().clone() for weight in net.parameters()]
    sgd = torch.optim.SGD(net.parameters(), LR)
    for batch in torch.randperm(len(x)).split(BATCH):
        sgd.zero_grad()
        far = sum((weight - start).square().sum() for weight, start in zip(net.parameters(), first, strict=True))
        (torch.nn.functional.cross_entropy(net(x[batch]), y[batch]) + asked.mu / 2 * far).backward()
        sgd.step()
    with torch.no_grad():
        norm = float(torch.cat([(w - s).flatten() for w, s in zip(net.parameters(), first, strict=True)]).norm())
        for weight, start in zip(net.parameters(), first, strict=True):
            weight.copy_(start + (weight - start) * min(1.0, asked.most / norm))
    flare.send(flare.FLModel(params=net.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": len(x)}))
