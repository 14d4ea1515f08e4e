from nvflare_run import run

run("FedAvg")
