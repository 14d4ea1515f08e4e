import torch
from own import BATCH, CLIENTS, LR, ROUNDS, Net, parts
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import nn


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def loss(self, x, y, eval=False):
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x, y, eval=False):
        return {}


def setting(*postprocessors):
    data = FederatedDataset(lambda client: Dataset(parts()[client]), get_user_sampler("minimize_reuse", range(CLIENTS)))
    module = Trained()
    return {
        "backend": SimulatedBackend(data, data, postprocessors=list(postprocessors)),
        "model": PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        "model_train_params": NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR),
        "send_metrics_to_platform": False,
    }


AVERAGING = NNAlgorithmParams(ROUNDS, ROUNDS + 1, CLIENTS, 0)
