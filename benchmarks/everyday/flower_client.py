import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from own import BATCH, LR, Net, parts

app = ClientApp()


def fit(net, x, y, mu=0.0):
    first = [weight.detach().clone() for weight in net.parameters()]
    sgd = torch.optim.SGD(net.parameters(), LR)
    for batch in torch.randperm(len(x)).split(BATCH):
        sgd.zero_grad()
        far = sum((weight - start).square().sum() for weight, start in zip(net.parameters(), first, strict=True))
        (torch.nn.functional.cross_entropy(net(x[batch]), y[batch]) + mu / 2 * far).backward()
        sgd.step()


@app.train()
def train(message, context):
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = parts()[context.node_config["partition-id"]]
    fit(net, x, y, message.content["config"].get("proximal-mu", 0.0))
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(content), reply_to=message)
