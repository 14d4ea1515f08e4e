from own import BATCH, LR, Net, parts

from thinwire import FedAvg, LocalSGD
from thinwire.deploy import flower


def client(context):
    task = parts()[context.node_config["partition-id"]]
    return flower.Node(FedAvg(LocalSGD(LR, batch=BATCH)), Net, task, flower.folder_of(context))
