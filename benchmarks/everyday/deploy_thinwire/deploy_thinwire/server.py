from flwr.serverapp import ServerApp
from own import BATCH, CLIENTS, LR, ROUNDS, Net

from thinwire import FedAvg, LocalSGD
from thinwire.deploy import flower

app = ServerApp()


@app.main()
def main(grid, context):
    out = context.run_config["out"]
    flower.serve(grid, FedAvg(LocalSGD(LR, batch=BATCH)), Net, CLIENTS, ROUNDS, out=out)
