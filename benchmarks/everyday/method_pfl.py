from own import MOST, show
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor
from pfl_model import AVERAGING, setting


class Clipped(Postprocessor):
    def postprocess_one_user(self, *, stats, user_context):
        norm = float(get_framework_module().global_norm(stats.get_weights()[1], 2))
        return stats.apply_elementwise(lambda change: change * min(1.0, MOST / norm)), Metrics()

    def postprocess_server(self, *, stats, central_context, aggregate_metrics):
        return stats, Metrics()


show("Clipped", FederatedAveraging().run(AVERAGING, **setting(Clipped())).pytorch_model.net)
