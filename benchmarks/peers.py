"""The jobs J1 and J2 of simulate.py on pfl-research and Flower's simulation, beside thinwire.

J1  60,000 pictures of 28x28 over 100 clients, 10 a round, the FedAvg CNN (582,026 parameters), 1 epoch, batch 32
J2  1,000 clients of 60 pictures, 100 a round, MLP 784-64-10, 1 epoch, batch 10

Everyone has two workers of one torch thread each, the same model (channels last in J1), pictures kept as bytes, plain
SGD, and nothing evaluated: thinwire with workers=2; pfl with its SimulatedBackend over two processes joined by gloo;
Flower with run_simulation, a message-based ClientApp and FedAvg, on Ray with two CPUs and one a client, so two actors.

Each is a process of its own, one at a time, taking turns for several passes. What it prints after a round is timed from
outside: from its start to the end of the first round (imports, set-up and one round; some 0.2 s of a peer's are the
import of thinwire, for the model), and every round after that. A ratio is of the medians of one pass; the figures are
medians over passes. Memory is the largest sum, sampled five times a second, of what all its processes have resident
(pages that several share count in each). Needs Linux, and for the peers: pip install "thinwire[peers]".

With ``--device cuda`` all of them train on one GPU. pfl is one process there: its processes speak by NCCL, which takes
one a GPU. Flower's two actors share it. A round ends when the GPU has done its work.

    python benchmarks/peers.py [--passes 3] [--rounds 5] [--only J2] [--device cuda] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import simulate
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORKERS = 2
DEVICE = os.environ.get("PEERS_DEVICE", "cpu")  # of the processes that are measured
NEEDS = {"thinwire": ["thinwire"], "pfl": ["pfl"], "flower": ["flwr", "ray"]}
HERE = Path(__file__).resolve().parent
QUIET = {
    "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # without it, Ray listens on all interfaces whatever address it gets
    "GLOO_SOCKET_IFNAME": "lo",
}

# -- what the processes do ------------------------------------------------------------------------------------------


def done() -> None:
    """A round is over: the process that started this one looks at its watch."""
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    print("round", flush=True)


def job(name: str) -> tuple[simulate.Job, Callable[[], nn.Module]]:
    """Of simulate.py; its smallest size where the process that started this one says so."""
    return simulate.job(name, bool(os.environ.get("PEERS_TINY")))


def model_of(name: str) -> tuple[simulate.Job, nn.Module]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work, make = job(name)
    work.inputs, work.targets = work.inputs.to(DEVICE), work.targets.to(DEVICE)
    net = make().to(DEVICE)
    return work, net.to(memory_format=torch.channels_last) if name == "J1" else net


def pictures(work: simulate.Job, client: int) -> tuple[Tensor, Tensor]:
    """A client's, shuffled: there is one epoch."""
    order = (torch.randperm(work.each) + client * work.each).to(DEVICE)
    return work.inputs[order].float().div_(255).sub_(0.3).div_(0.3), work.targets[order]


def run_thinwire(name: str, rounds: int) -> None:
    torch.set_num_threads(1)
    run = simulate.simulation(*job(name), DEVICE, workers=WORKERS)
    with run.pool:
        for _ in range(rounds):
            run.step(evaluate=False)
            done()


def run_pfl(name: str, rounds: int) -> None:
    other = None
    if (
        DEVICE == "cpu" and "RANK" not in os.environ
    ):  # what torchrun sets, but with a store that only this machine reaches
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORKERS)}
        os.environ |= {"TORCHELASTIC_RUN_ID": "peers", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        other = subprocess.Popen(command("pfl", name, rounds), env={**os.environ, "RANK": "1", "LOCAL_RANK": "1"})
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
        store = torch.distributed.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
        )

    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Trained(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.net(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict:
            raise AssertionError("nothing is evaluated")

    class Averaging(FederatedAveraging):
        def get_next_central_contexts(self, model, iteration, *others):
            return super().get_next_central_contexts(model, iteration + 1, *others)  # it would evaluate in round 0

    class Watch(TrainingProcessCallback):
        def after_central_iteration(self, *found, **round):
            if os.environ.get("RANK", "0") == "0":
                done()
            return super().after_central_iteration(*found, **round)

    np.random.seed(0)  # both draw the same cohorts  # noqa: NPY002
    work, net = model_of(name)
    clients = FederatedDataset(
        lambda client: Dataset(pictures(work, client)), get_user_sampler("minimize_reuse", range(work.clients))
    )
    module = Trained(net)
    Averaging().run(
        NNAlgorithmParams(rounds + 1, rounds + 2, work.sample, 0),
        SimulatedBackend(clients, clients),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=simulate.LR),
        callbacks=[Watch()],
        send_metrics_to_platform=False,
    )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if other is not None:
        assert other.wait() == 0, "pfl's other process failed"
        del store


@functools.cache
def actor(name: str) -> tuple[simulate.Job, nn.Module]:
    """What a Ray actor keeps from one client to the next."""
    return model_of(name)


def flower_client(message, context):
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    work, net = actor(message.content["config"]["job"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, targets = pictures(work, context.node_config["partition-id"])
    sgd = torch.optim.SGD(net.parameters(), simulate.LR)
    for x, y in zip(inputs.split(work.batch), targets.split(work.batch), strict=True):
        sgd.zero_grad()
        F.cross_entropy(net(x), y).backward()
        sgd.step()
    records = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": work.each})}
    return Message(RecordDict(records), reply_to=message)


def run_flower(name: str, rounds: int) -> None:
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    work, net = model_of(name)
    logging.getLogger("flwr").setLevel(logging.ERROR)

    class Timed(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            wrong = [reply.error.reason for reply in replies if reply.has_error()]
            assert not wrong, wrong[0]
            assert len(replies) == work.sample, f"{len(replies)} replies"
            mean = super().aggregate_train(server_round, replies)
            done()
            return mean

    server, client = ServerApp(), ClientApp()
    client.train()(flower_client)

    @server.main()
    def main(grid, context) -> None:
        strategy = Timed(work.sample / work.clients, 0.0, work.sample, min_available_nodes=work.clients)
        strategy.start(grid, ArrayRecord(net.state_dict()), rounds, train_config=ConfigRecord({"job": name}))

    ray = {"num_cpus": WORKERS, "_node_ip_address": "127.0.0.1", "_temp_dir": os.environ["TMPDIR"]}
    ray |= {"object_store_memory": 1 << 28, "logging_level": "error", "log_to_driver": False}
    backend = {
        "init_args": ray,
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0 if DEVICE == "cpu" else 1 / WORKERS},
    }
    run_simulation(server, client, work.clients, backend_config=backend)


# -- what is measured of them ---------------------------------------------------------------------------------------


def command(peer: str, name: str, rounds: int) -> list[str]:
    """By its import, so that Ray's actors find the client under its name."""
    return [sys.executable, "-c", f"import peers; peers.run_{peer}({name!r}, {rounds})"]


class Family:
    """A process and all that it starts."""

    def __init__(self, root: int) -> None:
        self.root, self.peak, self.over = root, 0, threading.Event()
        self.born: dict[int, str] = {}  # when, of all that were ever seen: a number may be given again
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def alive(self) -> dict[int, int]:
        """Bytes resident, of those that run."""
        stats = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        found = {pid for pid, born in self.born.items() if pid in stats and stats[pid][19] == born}
        new = {self.root} & stats.keys()
        while new:
            found |= new
            new = {pid for pid, stat in stats.items() if int(stat[1]) in found} - found
        self.born |= {pid: stats[pid][19] for pid in found}
        return {pid: int(stats[pid][21]) * os.sysconf("SC_PAGE_SIZE") for pid in found if stats[pid][0] != "Z"}

    def watch(self) -> None:
        while not self.over.wait(0.2):
            self.peak = max(self.peak, sum(self.alive().values()))

    def end(self) -> None:
        """Nothing of it is left behind."""
        self.over.set()
        self.thread.join()
        for _ in range(50):
            if not self.alive():
                return
            time.sleep(0.1)
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def measure(peer: str, name: str, rounds: int) -> dict[str, float]:
    """One process: seconds to the end of its first round, median seconds of ``rounds`` more, peak MB."""
    with (
        tempfile.TemporaryDirectory(prefix="peers", ignore_cleanup_errors=True) as folder,
        open(f"{folder}/stderr", "w+") as errors,
    ):
        env = {**os.environ, **QUIET, "TMPDIR": folder, "FLWR_HOME": folder}
        env.pop("RAY_ADDRESS", None)
        began = time.perf_counter()
        child = subprocess.Popen(
            command(peer, name, rounds + 1), stdout=subprocess.PIPE, stderr=errors, env=env, text=True
        )
        family = Family(child.pid)
        try:
            times = [time.perf_counter() for line in child.stdout or () if line == "round\n"]
            failed = child.wait() != 0
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            family.end()
            if child.stdout:
                child.stdout.close()
        if failed or len(times) != rounds + 1:
            raise SystemExit(f"{peer} failed at {name}:\n{Path(errors.name).read_text()[-4000:]}")
    steady = [after - before for before, after in itertools.pairwise(times)]
    return {"first": times[0] - began, "seconds": statistics.median(steady), "peak": family.peak / 2**20}


def compare(name: str, peers: list[str], rounds: int, passes: int) -> dict[str, dict[str, float | str]]:
    turns = [{peer: measure(peer, name, rounds) for peer in peers} for _ in range(passes)]
    found: dict[str, dict[str, float | str]] = {}
    for peer in peers:
        of = {what: statistics.median(turn[peer][what] for turn in turns) for what in ("first", "seconds", "peak")}
        ratio = statistics.median(turn[peer]["seconds"] / turn["thinwire"]["seconds"] for turn in turns)
        found[peer] = {
            "version": importlib.metadata.version(NEEDS[peer][0]),
            "first_round_seconds": round(of["first"], 2),
            "seconds": round(of["seconds"], 4),
            "peak_mb": round(of["peak"]),
            "ratio": round(ratio, 2),
        }
        print(name, peer, found[peer], file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=3, help="processes started of each, in turn")
    parser.add_argument("--rounds", type=int, default=5, help="rounds timed of each process, after the first (J2: x 2)")
    parser.add_argument("--only", choices=["J1", "J2"], action="append")
    parser.add_argument("--peer", choices=list(NEEDS), action="append", help="beside thinwire; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="the smallest size: that it runs, not how fast")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    chosen = parser.parse_args()
    sys.path.append(str(HERE.parent / "experiments"))
    import record

    os.environ |= {"PEERS_TINY": "1"} if chosen.tiny else {}
    os.environ |= {"PEERS_DEVICE": chosen.device}
    if chosen.device != "cpu":
        os.environ |= {"PFL_PYTORCH_DEVICE": chosen.device}
    wanted = [peer for peer in NEEDS if peer in ["thinwire", *(chosen.peer or NEEDS)]]
    peers = [peer for peer in wanted if all(map(importlib.util.find_spec, NEEDS[peer]))]
    for peer in wanted:
        if peer not in peers:
            print(f'{peer} is not installed, and skipped: pip install "thinwire[peers]"', file=sys.stderr)
    found = {}
    for name in chosen.only or ["J1", "J2"]:
        rounds = chosen.rounds * (2 if name == "J2" else 1)
        key = {"benchmark": "peers", "job": name, "passes": chosen.passes, "rounds": rounds, "peers": peers}
        key |= {} if chosen.device == "cpu" else {"device": chosen.device}
        key |= {"tiny": True} if chosen.tiny else {}
        packages = [package for peer in peers for package in NEEDS[peer]]
        found[name] = record.measured(
            chosen.into,
            key,
            lambda name=name, rounds=rounds: {"found": compare(name, peers, rounds, chosen.passes)},
            *packages,
        )
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
