from flower_client import app
from flower_run import run
from flwr.serverapp.strategy import FedAvg


def size(messages):
    return sum(len(array.data) for message in messages for array in message.content["arrays"].values())


class Counted(FedAvg):
    up = down = 0

    def configure_train(self, *words):
        messages = list(super().configure_train(*words))
        self.down += size(messages)
        return messages

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.up += size(replies)
        return super().aggregate_train(server_round, replies)


strategy = Counted(fraction_evaluate=0.0)
run(strategy, app, "FedAvg")
print("bytes:", strategy.up, strategy.down)
