from own import show
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.restore_training import RestoreTrainingCallback
from pfl.metrics import Metrics
from pfl_model import AVERAGING, setting


class Show(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        print("round", central_iteration + 1, flush=True)
        return False, Metrics()


algorithm, about = FederatedAveraging(), setting()
restore = RestoreTrainingCallback([about["model"], algorithm], "checkpoints")
show("FedAvg", algorithm.run(AVERAGING, callbacks=[Show(), restore], **about).pytorch_model.net)
