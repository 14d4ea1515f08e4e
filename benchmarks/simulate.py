"""What simulating costs, as ratios to bare PyTorch loops measured in the same run.

J1  60,000 pictures of 28x28 over 100 clients, 10 a round, the FedAvg CNN (582,026 parameters), 1 epoch, batch 32
J2  1,000 clients of 60 pictures, 100 a round, MLP 784-64-10, 1 epoch, batch 10
J3  ResNet-20, 5 clients of 200 colour pictures, all a round, 1 epoch, batch 32
J4  20 clients of 300 texts of 1 to 64 words, all a round, fastText of 20,002 words, 1 epoch, batch 16

The bare loops do the same SGD steps with no federation but the averaging, as fast as plain PyTorch allows: J1, J3 and
J4 in two threads of one torch thread each, pictures channels last; J2 in one thread. Rounds of both are taken in turn
and compared in pairs; the figures are medians. Pictures and texts are random: the time does not depend on them. On a
GPU (--device cuda) the bare loops are one thread, and all examples are on the device.

``outside_us``, where clients are trained in C, are the microseconds a client that a processor computes outside of that:
calls, draws, messages, sums. ``passes_us`` are those of a reply's numbers alone, each moved four times.

    python benchmarks/simulate.py [--rounds 7] [--only J2] [--device cuda] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

JOBS = ["J1", "J2", "J3", "J4"]
LR = 0.01
WORDS = 20_002


class Job:
    """One workload: the pictures or the texts, who has them, the model, and how it is trained."""

    def __init__(self, shape: tuple[int, ...], clients: int, each: int, sample: int, batch: int, workers: int) -> None:
        g = torch.Generator().manual_seed(0)
        self.inputs = torch.randint(256, (clients * each, *shape), generator=g, dtype=torch.uint8)
        if len(shape) == 1:
            words = torch.randint(1, WORDS, self.inputs.shape, generator=g)
            self.inputs = words * (torch.arange(shape[0]) <= self.inputs[:, :1] % shape[0])
        self.targets = torch.randint(10, (clients * each,), generator=g)
        self.clients, self.each, self.sample, self.batch, self.workers = clients, each, sample, batch, workers


def job(name: str, tiny: bool = False) -> tuple[Job, Callable[[], nn.Module]]:
    """``tiny``: a batch or two a client, and no client but those of a round."""
    from thinwire import models

    if name == "J1":
        return Job((1, 28, 28), *((3, 40, 3) if tiny else (100, 600, 10)), 32, 2), lambda: models.fedavg_cnn()
    if name == "J2":
        return Job((1, 28, 28), *((4, 20, 4) if tiny else (1000, 60, 100)), 10, 1), lambda: models.mlp()
    if name == "J4":
        return Job((64,), *((2, 8, 2) if tiny else (20, 300, 20)), 16, 2), lambda: models.fasttext(WORDS, 10)
    return Job((3, 32, 32), *((2, 8, 2) if tiny else (5, 200, 5)), 32, 2), lambda: models.resnet20()


def simulation(job: Job, make: Callable[[], nn.Module], device: str = "cpu", workers: int | None = None):
    import thinwire as tw

    parts = torch.arange(job.clients * job.each).split(job.each)
    scale = {"mean": (0.3,), "std": (0.3,)} if job.inputs.ndim == 4 else {}
    tasks = [tw.Supervised(job.inputs, job.targets, part, **scale) for part in parts]
    method = tw.FedAvg(tw.LocalSGD(LR, batch=job.batch))
    return tw.Simulation(method, make, tasks, sample=job.sample, device=device, workers=workers)


class Bare:
    """The same steps by hand."""

    def __init__(self, job: Job, make: Callable[[], nn.Module], device: str = "cpu") -> None:
        self.job, self.device = job, device
        pictures = job.inputs.ndim == 4
        self.inputs = ((((job.inputs.float() / 255) - 0.3) / 0.3) if pictures else job.inputs).to(device)
        self.targets = job.targets.to(device)
        self.last = job.inputs.ndim == 4 and job.workers > 1
        self.models = [make().to(device) for _ in range(job.workers if device == "cpu" else 1)]
        if self.last:
            self.models = [m.to(memory_format=torch.channels_last) for m in self.models]
        self.server = [t.detach().clone() for t in self.models[0].state_dict().values()]
        self.round = 0

    def step(self) -> None:
        self.round += 1
        order = torch.randperm(self.job.clients, generator=torch.Generator().manual_seed(self.round))
        cohort = order[: self.job.sample].tolist()
        totals: list[list[Tensor]] = [[] for _ in self.models]
        threads = [
            threading.Thread(target=self.work, args=(w, cohort[w :: len(self.models)], totals))
            for w in range(len(self.models))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(totals), "a worker failed"
        self.server = [
            (sum(parts) / self.job.sample).to(parts[0].dtype)  # type: ignore[call-overload]
            for parts in zip(*(t for t in totals if t), strict=True)
        ]

    def work(self, worker: int, cohort: list[int], totals: list[list[Tensor]]) -> None:
        torch.set_num_threads(1)
        model, job = self.models[worker], self.job
        params, state = list(model.parameters()), list(model.state_dict().values())
        model.train()
        for client in cohort:
            with torch.no_grad():
                for mine, theirs in zip(state, self.server, strict=True):
                    mine.copy_(theirs)
            order = (torch.randperm(job.each) + client * job.each).to(self.device)
            for start in range(0, job.each, job.batch):
                where = order[start : start + job.batch]
                x = self.inputs[where]
                if self.last:
                    x = x.contiguous(memory_format=torch.channels_last)
                loss = F.cross_entropy(model(x), self.targets[where])
                for p in params:
                    p.grad = None
                loss.backward()
                with torch.no_grad():
                    for p in params:
                        p.sub_(p.grad, alpha=LR)  # type: ignore[arg-type]
            with torch.no_grad():
                if not totals[worker]:
                    totals[worker] = [t.detach().float().clone() for t in state]
                else:
                    for total, now in zip(totals[worker], state, strict=True):
                        total.add_(now)


def measure(name: str, rounds: int, device: str, tiny: bool = False) -> dict[str, float]:
    """Rounds of both in turn, after one of each that is not timed."""
    work, make = job(name, tiny)
    run, bare = simulation(work, make, device), Bare(work, make, device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours, theirs = [], []
    with run.pool:
        run.step(evaluate=False)
        bare.step()
        for _ in range(rounds):
            began = time.perf_counter()
            bare.step()
            if device != "cpu":
                torch.cuda.synchronize()
            middle = time.perf_counter()
            run.step(evaluate=False)
            theirs.append(middle - began)
            ours.append(time.perf_counter() - middle)
    torch.set_num_threads(threads)
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    found = {
        "ratio": round(statistics.median(pairs), 3),
        "seconds": round(statistics.median(ours), 4),
        "bare_seconds": round(statistics.median(theirs), 4),
        "plan": run.plan,
    }
    outside = outside_training(run, work.sample, rounds)
    return found if outside is None else {**found, "outside_us": round(outside), "passes_us": round(passes(run))}


def outside_training(run: Any, clients: int, rounds: int) -> float | None:
    """Microseconds of processor time that a client takes in a round beside training in C; None where nobody does."""
    from thinwire.kernels import native

    lib, inside = native.library(), list[float]()
    if lib is None:
        return None
    train = lib.tw_chains

    def train_and_time(*arguments: Any) -> Any:
        began = time.thread_time()
        status = train(*arguments)
        inside.append(time.thread_time() - began)
        return status

    lib.tw_chains, costs = train_and_time, []
    try:
        with run.pool:
            for _ in range(rounds):
                inside.clear()
                began = time.process_time()
                run.step(evaluate=False)
                costs.append((time.process_time() - began - sum(inside)) / clients * 1e6)
                if not inside:
                    return None
    finally:
        lib.tw_chains = train
    return statistics.median(costs)


def passes(run: Any) -> float:
    """Microseconds that the numbers of a reply take in a warm cache: subtract, make bytes, look at them, add."""
    from thinwire.kernels.magnitude import magnitude

    x = run.algorithm.model(run.server).flat
    w, total, times = x * 1.01, torch.zeros_like(x), []
    for _ in range(200):
        began = time.perf_counter()
        update = torch.frombuffer(bytearray((w - x).numpy()), dtype=x.dtype)
        magnitude(update)
        total.add_(update)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


TORCH = "import time, torch; print(time.time())"
PROCESS = """
import sys; sys.path.insert(0, {folder!r})
import simulate as benchmark, time, torch
work, make = benchmark.job({name!r}, {tiny})
run = benchmark.simulation(work, make, {device!r})
torch.set_num_threads(1)
with run.pool:
    run.step(evaluate=False)
    print(time.time())
    for _ in range({more}):
        run.step(evaluate=False)
print(benchmark.peak())
"""


def peak() -> float:
    """The most memory this process has had, MB: of this program alone, where getrusage keeps that of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def process(name: str, rounds: int, device: str, tiny: bool = False) -> tuple[float, float]:
    """(seconds, peak MB) of a process that imports, sets up and simulates: of its first round, and of some rounds."""
    folder = str(Path(__file__).resolve().parent)
    code = PROCESS.format(folder=folder, name=name, more=rounds - 1, device=device, tiny=tiny)
    seconds, lines = start(code)
    return seconds, float(lines[-1])


def start(code: str) -> tuple[float, list[str]]:
    """Seconds from the start of a process of Python's to the time that it prints first, and all that it prints."""
    began = time.time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return float(lines[0]) - began, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of rounds timed of each job")
    parser.add_argument("--only", choices=JOBS, action="append")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="the smallest size: that it runs, not how fast")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    chosen = parser.parse_args()
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    def whole(name: str) -> dict[str, float]:
        seconds, peak = process(name, 2 if name == "J1" else 1, chosen.device, chosen.tiny)
        pairs = chosen.rounds * (3 if name in ("J2", "J4") else 1)
        found = {**measure(name, pairs, chosen.device, chosen.tiny), "peak_mb": round(peak)}
        found["first_round_seconds"] = round(seconds, 2)  # import, set-up and first round, as a process
        found["torch_seconds"] = round(statistics.median(start(TORCH)[0] for _ in range(3)), 2)  # by itself
        return found

    found = {}
    for name in chosen.only or JOBS:
        key = {"benchmark": "simulate", "job": name, "device": chosen.device, "rounds": chosen.rounds}
        key |= {"tiny": True} if chosen.tiny else {}
        found[name] = record.measured(chosen.into, key, lambda name=name: whole(name), "numpy")
        print(name, found[name], file=sys.stderr)
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
