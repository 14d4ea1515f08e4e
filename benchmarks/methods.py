"""What a round of each method costs, as a ratio to a round of FedAvg measured in the same run.

8 clients of 96 pictures of 16x16, a CNN of two convolutions, 2 epochs, batch 32. The methods' rounds are taken in turn
and each is compared with FedAvg's of its turn; the figures are medians of processor time, so that a busy neighbour
counts little. ``adds`` is what a method's own definition asks for beyond FedAvg's steps, measured here too: forward
passes of other models (MOON two, FedNTD one), a pass over all data (SCAFFOLD, option I), the training of a generator
(FedGen), weights composed of factors (FedPara), sparse messages (PruneFL). Of the methods that give clients models of
their own it is counted in FedAvg's steps: a second model to train (Ditto, APFL), a second gradient a step (Per-FedAvg;
HF has four, and both have sums of whole vectors, measured), five steps for each mini-batch (pFedMe). FedRep's steps of
the head alone are measured, and so are SoftPull's pull and its message to each client alone. FedSM trains a second
model and a selector besides, and sends both. What the selector's training adds is a loop in plain PyTorch over as many
mini-batches, with torch.optim.Adam. In the last rounds of FedSM-extra and Ensemble, "late" here, that and forward
passes of all models take the place of FedAvg's steps. Evaluating a client's own model, and fine-tuning it for that
(FT), is no part of a round. The goal is a ratio of at most 1.15 + adds.

    python benchmarks/methods.py [--rounds 15] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.algorithms.softpull import pull

GOAL = 1.15
CLIENTS, EACH, EPOCHS, BATCH = 8, 96, 2, 32
LOCAL = tw.LocalSGD(0.05, epochs=EPOCHS, batch=BATCH)
HEAD = 2.0  # FedRep's epochs of the head
HEAVY = tw.LocalSGD(0.02, epochs=EPOCHS, batch=BATCH, momentum=0.6)
SELECTING = tw.LocalAdam(0.001, epochs=EPOCHS, batch=BATCH)
SELECTOR: dict[str, Any] = {"selector": "mlp", "shape": (1, 16, 16)}
METHODS: dict[str, tw.Algorithm] = {
    "FedAvg": tw.FedAvg(LOCAL),
    "FedAvg again": tw.FedAvg(LOCAL),
    "FedProx": tw.FedProx(LOCAL),
    "SCAFFOLD": tw.SCAFFOLD(LOCAL),
    "SCAFFOLD I": tw.SCAFFOLD(LOCAL, option="I"),
    "FedDyn": tw.FedDyn(LOCAL),
    "FedDC": tw.FedDC(LOCAL),
    "MOON": tw.MOON(LOCAL),
    "FedNTD": tw.FedNTD(LOCAL),
    "FedGen": tw.FedGen(LOCAL),
    "FedMut": tw.FedMut(LOCAL),
    "FedACG": tw.FedACG(LOCAL),
    "FedAvgSM": tw.FedAvgSM(LOCAL),
    "FedAvgLM": tw.FedAvgLM(HEAVY),
    "FedAvgLMZ": tw.FedAvgLMZ(HEAVY),
    "FedAvgSLM": tw.FedAvgSLM(HEAVY),
    "FedAvgSLMZ": tw.FedAvgSLMZ(HEAVY),
    "DOMO": tw.DOMO(0.9, HEAVY),
    "DOMO-S": tw.DOMO(0.9, HEAVY, intra=True),
    "FedPara": tw.FedPara(tw.FedAvg(LOCAL), ratio=0.5),
    "PruneFL": tw.PruneFL(tw.FedAvg(LOCAL), every=10),
    "LUAR": tw.LUAR(tw.FedAvg(LOCAL), recycle=2),
    "FLSS": tw.FLSS(tw.FedAvg(LOCAL), rank=4, start=5, every=5),
    "Intrinsic": tw.Intrinsic(1000, local=LOCAL),
    "FedBN": tw.FedBN(LOCAL),
    "FedPer": tw.FedPer(LOCAL),
    "FedRep": tw.FedRep(LOCAL, head_epochs=HEAD),
    "Ditto": tw.Ditto(LOCAL),
    "APFL": tw.APFL(LOCAL),
    "APFL, learnt": tw.APFL(LOCAL, adaptive=True),
    "PerFedAvg FO": tw.PerFedAvg(LOCAL),
    "PerFedAvg HF": tw.PerFedAvg(LOCAL, hessian="HF"),
    "pFedMe": tw.pFedMe(LOCAL, steps=5),
    "FT": tw.FT(tw.FedAvg(LOCAL)),
    "SoftPull": tw.SoftPull(tw.FedAvg(LOCAL)),
    "FedSM": tw.FedSM(LOCAL, selecting=SELECTING, **SELECTOR),
    "FedSM, epoch": tw.FedSM(LOCAL, selecting=SELECTING, form="epoch", **SELECTOR),
    "FedSMExtra": tw.FedSMExtra(LOCAL, selecting=SELECTING, start=1000, **SELECTOR),
    "FedSMExtra, late": tw.FedSMExtra(LOCAL, selecting=SELECTING, start=2, **SELECTOR),  # from the first timed round on
    "Ensemble, late": tw.Ensemble(LOCAL, selecting=SELECTING, start=2, **SELECTOR),
}
# Steps besides FedAvg's, as a share of them.
STEPS = {
    "Ditto": 1.0,
    "APFL": 1.0,
    "APFL, learnt": 1.0 + BATCH / (EPOCHS * EACH),  # and a gradient of one mini-batch
    "pFedMe": 4.0,
}


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def tasks(clients: int = CLIENTS) -> list[tw.Supervised]:
    g = torch.Generator().manual_seed(0)
    inputs = torch.rand(clients * EACH, 1, 16, 16, generator=g)
    targets = torch.randint(10, (len(inputs),), generator=g)
    return [tw.Supervised(inputs, targets, part) for part in torch.arange(len(inputs)).split(EACH)]


def seconds(work: Callable[[], object]) -> float:
    """Of processor time."""
    began = time.process_time()
    work()
    return time.process_time() - began


def added(fedavg: float, generator: tw.Simulation, times: int = 30) -> dict[str, float]:
    """What definitions ask for, in rounds of FedAvg; medians of ``times``, or of a third where one takes long."""
    net, x = model(), torch.rand(BATCH, 1, 16, 16)

    def look() -> None:
        with torch.no_grad():
            net(x)

    def gradient(x: Tensor) -> None:
        net(x).sum().backward()

    whole = torch.rand(EACH, 1, 16, 16)
    look()
    gradient(whole)
    forward = statistics.median(seconds(look) for _ in range(times)) * CLIENTS * EPOCHS * EACH / BATCH
    everything = statistics.median(seconds(lambda: gradient(whole)) for _ in range(max(1, times // 3))) * CLIENTS
    method, server = generator.algorithm, generator.server
    zero = server.x.zeros()
    reply = generator.start.reply._replace(update=zero, labels=torch.ones(10))
    taught = statistics.median(
        seconds(lambda: method.server(server, None, reply, tw.Key(0, 1))) for _ in range(min(3, times))
    )
    # FedPara composes every weight of its factors in each forward pass, and sends their gradients back through that.
    batch = torch.rand(BATCH, 1, 16, 16)

    def step(module: nn.Module) -> float:
        module(batch).sum().backward()
        return statistics.median(seconds(lambda: module(batch).sum().backward()) for _ in range(times))

    composing = step(METHODS["FedPara"].prepare(model())) - step(net)
    last = model()
    for layer in list(last.children())[:-1]:
        layer.requires_grad_(False)
    sparse, pruned = tw.Sparse(), zero.map(lambda f: torch.randn(f.shape) * (torch.rand(f.shape) < 0.5))

    def carry() -> None:
        tx, rx = sparse.open(pruned)
        packet = sparse.send(pruned, tx, tw.Key(0, 1, 0))[0]
        sparse.recv(tw.loads(tw.dumps(packet)), pruned.layout, rx, tw.Key(0, 1, 0))

    # Clients' own models: the server's pull, and what goes to one client alone.
    own = [zero.map(torch.randn_like) for _ in range(CLIENTS)]

    def pull_all() -> None:
        pull(own, 0.7)
        for x in own:
            tw.loads(tw.dumps(x))

    pulling = statistics.median(seconds(pull_all) for _ in range(times))
    selector = METHODS["FedSM"].beside(METHODS["FedSM"].assemble(model(), CLIENTS))["selector"]
    chooser = tw.Params.trainable(selector)

    def told() -> None:  # the selector down and up, and a client's own model up; pull_all() has it down
        for x in own:
            for part in (chooser, chooser, x):
                tw.loads(tw.dumps(part))

    # Per-FedAvg makes the models whose gradients it asks for, and HF a step out of four of them.
    summing = statistics.median(seconds(lambda: zero + zero) for _ in range(times)) * CLIENTS * EPOCHS * EACH / BATCH
    telling = statistics.median(seconds(told) for _ in range(times))

    def choose(size: int) -> float:
        optimizer = torch.optim.Adam(selector.parameters(), lr=0.001)

        def epochs() -> None:
            for rows in [rows for _ in range(EPOCHS) for rows in torch.randperm(EACH).split(size)]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(selector(whole[rows]), torch.zeros(len(rows), dtype=torch.long)).backward()
                optimizer.step()

        return statistics.median(seconds(epochs) for _ in range(times)) * CLIENTS

    choosing = choose(BATCH)
    models = (CLIENTS + 1) * forward
    found = {
        "PerFedAvg FO": fedavg + 2 * summing,
        "PerFedAvg HF": 3 * fedavg + 9 * summing,
        "SoftPull": pulling,
        "FedSM": fedavg + pulling + telling + choosing,
        "FedSM, epoch": fedavg + pulling + telling + choose(EACH),
        "FedSMExtra": fedavg + pulling,
        "FedSMExtra, late": choosing + models - fedavg,
        "Ensemble, late": choosing + models - fedavg,
        "SCAFFOLD I": everything,
        "MOON": 2 * forward,
        "FedNTD": forward,
        "FedGen": taught,
        "FedPara": composing * CLIENTS * EPOCHS * EACH / BATCH,
        "FedRep": step(last) * CLIENTS * HEAD * EACH / BATCH,
        "PruneFL": statistics.median(seconds(carry) for _ in range(times)) * CLIENTS,
    }
    return {**STEPS, **{name: cost / fedavg for name, cost in found.items()}}


def measure(rounds: int, tiny: bool = False, only: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Rounds of all in turn, after two of each that are not timed (FedMut and MOON begin in the second).

    ``tiny``: of three methods, with two clients. ``only``: of those with one of these words in their names, beside
    FedAvg and FedGen, which are measured in any case.
    """
    torch.set_num_threads(1)
    wanted = [name for name in METHODS if only is None or any(word in name for word in only)]
    chosen = ("FedAvg", "MOON", "FedGen") if tiny else dict.fromkeys(["FedAvg", *wanted, "FedGen"])
    dealt = tasks(2 if tiny else CLIENTS)
    runs = {name: tw.Simulation(METHODS[name], model, dealt, workers=1, plan="each") for name in chosen}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            spent = seconds(lambda run=run: run.step(evaluate=False))  # type: ignore[misc]
            if turn >= 2:
                times[name].append(spent)
    fedavg = times["FedAvg"]
    adds = added(statistics.median(fedavg), runs["FedGen"], min(30, 2 * rounds))
    for run in runs.values():
        run.pool.close()
    found = {}
    for name, own in times.items():
        ratio = statistics.median(a / b for a, b in zip(own, fedavg, strict=True))
        extra = adds.get(name, 0.0)
        found[name] = {"ratio": round(ratio, 3), "adds": round(extra, 3), "goal": round(GOAL + extra, 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--tiny", action="store_true", help="the smallest size: that it runs, not how fast")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    parser.add_argument("--only", action="append", help="methods with this in their names")
    arguments = parser.parse_args()
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    key = {"benchmark": "methods", "rounds": arguments.rounds} | ({"tiny": True} if arguments.tiny else {})
    key |= {"only": arguments.only} if arguments.only else {}

    def found_now() -> record.Line:
        return {"found": measure(arguments.rounds, arguments.tiny, arguments.only)}

    line = record.measured(arguments.into, key, found_now, "numpy")
    found = line["found"]
    print(f"{'method':16} {'ratio':>7} {'adds':>7} {'goal':>7}")
    for name, row in found.items():
        mark = "" if row["ratio"] <= row["goal"] else "  over"
        print(f"{name:16} {row['ratio']:7.2f} {row['adds']:7.2f} {row['goal']:7.2f}{mark}")
    if arguments.json:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
