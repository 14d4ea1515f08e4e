from nvflare.recipe import PocEnv
from nvflare_run import run
from own import CLIENTS

environment = PocEnv(num_clients=CLIENTS)
try:
    run("FedAvg", environment=environment)
finally:
    environment.stop(clean_up=True)
