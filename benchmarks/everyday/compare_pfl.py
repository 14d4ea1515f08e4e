from own import CLIENTS, MU, ROUNDS, show
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl_model import AVERAGING, setting

for algorithm, params in (
    (FederatedAveraging(), AVERAGING),
    (FedProx(), FedProxParams(ROUNDS, ROUNDS + 1, CLIENTS, 0, mu=MU)),
):
    model = algorithm.run(params, **setting())
    show(type(algorithm).__name__, model.pytorch_model.net)
