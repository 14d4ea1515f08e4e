from flower_client import app
from flower_run import run
from flwr.serverapp.strategy import FedAvg, FedProx
from own import MU

run(FedAvg(fraction_evaluate=0.0), app, "FedAvg")
run(FedProx(fraction_evaluate=0.0, proximal_mu=MU), app, "FedProx")
