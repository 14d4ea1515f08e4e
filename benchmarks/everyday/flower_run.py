from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from own import CLIENTS, ROUNDS, Net, show


def run(strategy, client, name):
    server = ServerApp()

    @server.main()
    def main(grid, context):
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=ROUNDS)
        show(name, result.arrays.to_torch_state_dict())

    run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1}})
