from nvflare_run import run
from own import MU

run("FedAvg")
run("FedProx", f"--mu {MU}")
