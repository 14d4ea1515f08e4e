"""What ``Auto`` takes for granted of movements and views, looked at on the four sets of ``curve.py`` with seed 100.

FedAvg trains 24 rounds, with error feedback around an uplink of a hundredth of its bytes. Its models are coded for 100
clients in as many bytes. Ten a round are drawn, and each is sent the difference to what it holds (``PerClient``). What
is printed is of squared lengths in rounds 13 to 24, but for the first, which is of lengths:

- ``moved``: by how many times the mean update of four clients in round 1 the model moves in ten rounds. Auto says the
  root of ten, 3.16
- ``view``: how far a client's view is off after its visit, in what a first message of the same movement would leave
- ``common``: the share of that which the ten views of a round have in common
- ``mean``: how far the mean of the ten is off, in what a first message would leave. Auto says 1

It takes about two minutes a set on one core.

    python experiments/onepercent/views.py
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import groups
import record
import torch

import thinwire as tw
from thinwire.federated.auto_run import AGAIN, COHORT
from thinwire.federated.setting import Setting
from thinwire.federated.simulation import Simulation

SEED, ROUNDS, LATE = 100, 24, 12
INTO = Path(__file__).parent / "results" / "views.jsonl"


def square(x: tw.Params) -> float:
    return float(x.norm()) ** 2


def models(group: groups.Group, link: tw.Link) -> tuple[list[tw.Params], tw.Params]:
    """The server's models after every round, and the mean update of four clients in round 1."""
    problem = groups.problem(group, SEED)
    method = tw.FedAvg(tw.LocalSGD(groups.RATES[group.name]), up=tw.ErrorFeedback(link))

    def begun(sample: int) -> Simulation:
        setting = Setting(sample=sample, workers=1, seed=SEED, start="known")
        return Simulation(method, problem.model, problem.tasks, setting)

    with begun(COHORT) as few:
        start = few.algorithm.model(few.server).clone()
        few.step(evaluate=False)
        first = few.algorithm.model(few.server) - start
    found = [start]
    with begun(group.sample) as run:
        for _ in range(ROUNDS):
            run.step(evaluate=False)
            found.append(run.algorithm.model(run.server).clone())
    return found, first


def sent(link: tw.Link, x: tw.Params) -> tw.Params:
    return link.send(x, link.open(x)[0], tw.Key(0))[1]


def measure(group: groups.Group) -> dict[str, float]:
    link = tw.TransformCoding(round(0.01 * 4 * groups.size(group)))
    x, first = models(group, link)
    views, seen = [x[0]] * group.clients, [0] * group.clients
    draws = torch.Generator().manual_seed(SEED)
    sums = {"off": 0.0, "alone": 0.0, "mean": 0.0}
    for t in range(1, ROUNDS + 1):
        cohort = torch.randperm(group.clients, generator=draws)[: group.sample].tolist()
        off, alone = [], 0.0
        for client in cohort:
            moved = x[t] - x[seen[client]]
            alone += square(moved - sent(link, moved)) / len(cohort)
            views[client] = views[client] + sent(link, x[t] - views[client])
            seen[client] = t
            off.append(x[t] - views[client])
        if t > LATE:
            sums["off"] += sum(map(square, off)) / len(off)
            sums["alone"] += alone
            sums["mean"] += square(sum(off[1:], off[0]) * (1 / len(off)))
    many = group.sample
    return {
        "moved": float((x[AGAIN] - x[0]).norm() / first.norm()),
        "view": sums["off"] / sums["alone"],
        "common": (many * sums["mean"] / sums["off"] - 1) / (many - 1),
        "mean": sums["mean"] / sums["alone"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=INTO)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for group in groups.GROUPS:
        key = {**group.setting(), "rate": groups.RATES[group.name], "seed": SEED, "rounds": ROUNDS}
        line = record.found(asked.into, key)
        if line is None:
            began = time.time()
            line = {**key, **measure(group), **record.about("TransformCoding", began)}
            record.replace(asked.into, line, key)
        print(group.name, *(f"{name} {line[name]:.2f}" for name in ("moved", "view", "common", "mean")), flush=True)


if __name__ == "__main__":
    main()
