"""Intrinsic gradient compression, Table 2 in kind: FetchSGD, local top-k and fewer, longer rounds beside it.

The paper trains GPT-2 on PersonaChat, one local step an update, and lists perplexity beside the compression of both
directions. Here: Fashion-MNIST (the FedAvg CNN) or Shakespeare by role (a small character transformer). As in the
paper FedAvg with 2 and 5 local steps has a half and a fifth of the rounds, so every method sees as many batches; k and
columns are its shares of the model or near them. Compression is in bytes that were sent, framing, positions and
catching up included, against one step a round without any; "total" is the bytes of both directions added. The second
table says how far each method was when it had used a budget of bytes, both directions added.

A learning rate is not the same to every method: give several with --lr, and the best is shown.

    python experiments/fetchsgd/table2.py --data fashion_mnist --rounds 400 --lr 0.05 --lr 0.2
    python experiments/fetchsgd/table2.py --data shakespeare --rounds 400 --clients 64 --lr 0.5 --lr 2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire import data as sets
from thinwire.problem import standard

MB = 1e6


class Row(NamedTuple):
    """A line of the table."""

    name: str
    method: tw.Algorithm
    share: int = 1  # one round in so many
    paper: tuple[float, float, float, float] | None = None  # perplexity; compression up, down, total


def rows(size: int, lr: float, batch: int, rho: float) -> list[Row]:
    """Every method for a model of ``size`` parameters."""

    def steps(num: int) -> tw.LocalSGD:
        return tw.LocalSGD(lr, batch=batch, steps=num)

    def top_k(share: float, down: tw.Link) -> tw.Algorithm:
        return tw.FedAvg(steps(1), up=tw.ErrorFeedback(tw.Flat(tw.TopK(share))), down=down)

    def fetch(cols: int, k: int) -> tw.Algorithm:
        # Its momentum makes steps 1 / (1 - rho) times as long: the server's rate makes up for it.
        fields = {"momentum": rho, "lr": round(1 - rho, 6), "local": steps(1), "known": True}
        return tw.FetchSGD(max(1, size // cols), max(1, size // k), **fields)

    def intrinsic(share: int, subspaces: int = 1) -> tw.Algorithm:
        return tw.Intrinsic(max(1, size // share), subspaces=subspaces, local=steps(1), known=True)

    sparse = tw.EF21(tw.Flat(tw.TopK(0.01)))
    return [
        Row("uncompressed", tw.FedAvg(steps(1)), 1, (13.9, 1, 1, 1)),
        Row("FedAvg (2 local steps)", tw.FedAvg(steps(2)), 2, (16.3, 2, 2, 2)),
        Row("FedAvg (5 local steps)", tw.FedAvg(steps(5)), 5, (20.1, 5, 5, 5)),
        Row("local top-k (D / 2,500)", top_k(1 / 2500, tw.Dense()), 1, (19.3, 30.3, 2490, 60)),
        Row("local top-k (D / 250)", top_k(1 / 250, tw.Dense()), 1, (17.1, 3.6, 248, 7.1)),
        Row("local top-k (D / 100), EF21 down", top_k(1 / 100, sparse), 1),
        Row("FetchSGD (k = D / 5,000)", fetch(20, 5000), 1, (14.8, 3.8, 100, 7.3)),
        Row("FetchSGD (k = D / 2,500)", fetch(12, 2500), 1, (15.8, 2.4, 10, 3.9)),
        Row("FetchSGD (k = D / 500)", fetch(50, 500), 1),
        Row("FetchSGD (k = D / 100)", fetch(10, 100), 1),
        Row("Intrinsic (static, D / 1,900)", intrinsic(1900), 1, (20.6, 1900, 1900, 1900)),
        Row("Intrinsic (8 subspaces, D / 1,900)", intrinsic(1900, 8), 1, (17.8, 1900, 237, 422)),
        Row("Intrinsic (static, D / 475)", intrinsic(475), 1, (17.6, 475, 475, 475)),
        Row("Intrinsic (8 subspaces, D / 475)", intrinsic(475, 8), 1, (16.6, 475, 59.3, 105)),
        Row("Intrinsic (static, D / 119)", intrinsic(119), 1, (15.8, 119, 119, 119)),
        Row("Intrinsic (static, D / 30)", intrinsic(30), 1, (14.8, 29.7, 29.7, 29.7)),
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["fashion_mnist", "shakespeare", "digits"], default="fashion_mnist")
    parser.add_argument("--rounds", type=int, default=400, help="of one local step")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--lr", type=float, action="append")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--momentum", type=float, default=0.9, help="of FetchSGD")
    parser.add_argument("--beta", type=float, default=0.5, help="of the Dirichlet split")
    parser.add_argument("--every", type=int, default=20, help="local steps between evaluations")
    parser.add_argument("--budget", type=float, action="append", help="MB, both directions; several may be given")
    parser.add_argument("--only", action="append", help="rows whose name has this in it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    o = parser.parse_args(arguments)
    split = None if o.data == "shakespeare" else sets.Dirichlet(o.beta)
    problem = standard(o.data, clients=o.clients, split=split, seed=o.seed)
    assert callable(problem.model)
    size = tw.Params.trainable(problem.model()).layout.size
    into = o.into / f"table2_{o.data}.jsonl"
    runs: dict[str, list[record.Line]] = {}
    papers: dict[str, tuple[float, ...] | None] = {}
    for lr in o.lr or [0.05]:
        for row in rows(size, lr, o.batch, o.momentum):
            if o.only and row.name != "uncompressed" and not any(word in row.name for word in o.only):
                continue
            about = {"experiment": "fetchsgd, table 2", "data": o.data, "row": row.name, "lr": lr, "paper": row.paper}
            options = {"sample": o.sample, "seed": o.seed, "evaluate_every": max(1, o.every // row.share)}
            num = max(1, o.rounds // row.share)
            if line := record.run(row.method, problem, num, into, about, **options):  # at this rate
                runs.setdefault(row.name, []).append(line)
                papers[row.name] = row.paper
    if "uncompressed" not in runs:
        sys.exit("nothing to compare with: training without compression diverged; give a lower --lr")
    summary(runs, papers, [b * MB for b in o.budget or (1, 3, 10, 30, 100, 300, 1000)], into)


def summary(
    runs: dict[str, list[record.Line]],
    papers: dict[str, tuple[float, ...] | None],
    budgets: list[float],
    into: Path,
) -> None:
    """Both tables, printed and appended as one JSON line."""
    whole = [runs["uncompressed"][0][f"bytes_{way}"] for way in ("up", "down")]
    table = []
    print(f"\n{'':36}{'best %':>8}{'up':>9}{'down':>9}{'total':>9}   paper: perplexity, up, down, total")
    for name, tried in runs.items():
        best = max(tried, key=lambda line: line["best_accuracy"])
        top, up, down = best["best_accuracy"], best["bytes_up"], best["bytes_down"]
        less = [whole[0] / up, whole[1] / down, sum(whole) / (up + down)]
        print(f"{name:36}{record.shown(top):>8}" + "".join(f"{x:9.1f}" for x in less) + f"   {papers[name] or ''}")
        # At a budget every rate may be another method's best.
        fits = [[a for a in (record.within(line, b) for line in tried) if a is not None] for b in budgets]
        at = [max(found, default=None) for found in fits]
        table.append({"row": name, "accuracy": top, "compression": less, "paper": papers[name], "within": at})
    print("\nbest accuracy when so many MB have crossed, up and down together (-: not one evaluated round fits)")
    print(f"{'':36}" + "".join(f"{b / MB:>8g}" for b in budgets))
    for line in table:
        print(f"{line['row']:36}" + "".join(f"{record.shown(a):>8}" for a in line["within"]))
    key = {"experiment": "fetchsgd, table 2, summary"}
    line = {**key, "budgets": budgets, "table": table, **record.code(), "hardware": record.hardware()}
    record.replace(into, line, key)


if __name__ == "__main__":
    main()
