import torch
from flower_client import fit
from flower_run import run
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from own import MOST, Net, parts

app = ClientApp()


@app.train()
def train(message, context):
    net, first = Net(), message.content["arrays"].to_torch_state_dict()
    net.load_state_dict(first)
    x, y = parts()[context.node_config["partition-id"]]
    fit(net, x, y)
    changes = {name: weight - first[name] for name, weight in net.state_dict().items()}
    norm = float(torch.cat([change.flatten() for change in changes.values()]).norm())
    arrays = ArrayRecord({name: first[name] + change * min(1.0, MOST / norm) for name, change in changes.items()})
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(content), reply_to=message)


run(FedAvg(fraction_evaluate=0.0), app, "Clipped")
