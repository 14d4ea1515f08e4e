from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from own import CLIENTS, ROUNDS, Net, show


def run(name, arguments="", environment=None):
    about = {
        "min_clients": CLIENTS,
        "num_rounds": ROUNDS,
        "train_script": str(Path(__file__).with_name("nvflare_client.py")),
    }
    recipe = FedAvgRecipe(name=name, model=Net(), train_args=arguments, **about)
    done = recipe.execute(environment or SimEnv(num_clients=CLIENTS, workspace_root=str(Path("nvflare").resolve())))
    (file,) = Path(done.get_result(clean_up=False)).rglob("FL_global_model.pt")
    show(name, torch.load(file, weights_only=False)["model"])
