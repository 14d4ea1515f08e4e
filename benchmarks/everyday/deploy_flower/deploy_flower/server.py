import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from own import CLIENTS, ROUNDS, Net

app = ServerApp()


@app.main()
def main(grid, context):
    out = Path(context.run_config["out"])
    out.mkdir(parents=True)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=ROUNDS)
    torch.save(result.arrays.to_torch_state_dict(), out / "model.pt")
    (out / "summary.json").write_text(json.dumps({"rounds": ROUNDS}))
